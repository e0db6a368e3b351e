"""The processors: a named n-dimensional mesh.

A `Mesh` gives names and sizes to the axes along which processors are arranged. It stands on real devices, on the
devices of a machine that is not there (a TPU topology, for compiling), or on nothing at all (for tracing). Of several
hosts, the last axes stay inside one, where links are fast, and the first go from host to host.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType

from .dim import parse_pairs
from .errors import MeshError

_EXAMPLE = 'write for example mx.Mesh("rows:2 cols:4").'


class Mesh:
    """A named mesh of processors.

    >>> Mesh("rows:64 cols:64", abstract=True).size
    4096
    """

    axes: dict[str, int]
    size: int

    def __init__(
        self, spec: str, devices: Sequence[Any] | None = None, *, abstract: bool = False, topology: str | None = None,
        across: str = "",
    ):  # fmt: skip
        """Arranges the devices.

        Args:
            spec: the axes and their sizes, as in `"rows:2 cols:4"`; one size may be -1: all remaining devices.
            devices: the devices to use; by default the first ones that JAX knows.
            abstract: no devices at all, for tracing and explaining.
            topology: a machine that is not there, as in `"tpu v2:16x16"`, for compiling too.
            across: the axes that go from host to host, as in `"rows"` or `"rows+cols"`; by default the first ones.
        """
        if sum((devices is not None, abstract, topology is not None)) > 1:
            raise MeshError(
                "a mesh stands on devices, or is abstract, or has a topology: only one of the three.",
                values=repr(spec),
                fix="leave out the other arguments.",
            )
        axes = _parse(spec)
        available = None if topology is None else _topology_devices(topology)
        if topology is None and not abstract:
            available = list(jax.devices() if devices is None else devices)
        if available is not None and not available:
            raise MeshError(
                "there are no devices for the mesh.",
                values=f"devices=[] for {spec!r}",
                fix="pass some, or leave out devices=.",
            )
        self.axes = _infer_size(axes, spec, available)
        outer = across.split("+") if across else []
        if wrong := [axis for axis in outer if axis not in axes]:
            raise MeshError(f"there is no axis {wrong[0]!r} to go from host to host.", values=f"{spec!r}, {across=}")
        self.order = (*outer, *(axis for axis in axes if axis not in outer))  # the last are the nearest processors
        self.size = math.prod(self.axes.values())
        self.topology = topology
        self.is_abstract = available is None
        names, shape, types = tuple(self.axes), tuple(self.axes.values()), (AxisType.Auto,) * len(self.axes)
        if available is None:
            self.jax_mesh: Any = AbstractMesh(shape, names, axis_types=types)
        else:
            _check_enough(self.axes, self.size, available, topology)
            arranged = _arrange([self.axes[axis] for axis in self.order], available, explicit=devices is not None)
            arranged = arranged.transpose([self.order.index(axis) for axis in names])
            self.jax_mesh = jax.sharding.Mesh(arranged, names, axis_types=types)

    @property
    def has_devices(self) -> bool:
        """Whether programs can run on it, not only be traced or compiled."""
        return not self.is_abstract and self.topology is None

    @property
    def _first(self) -> Any:
        return None if self.is_abstract else self.jax_mesh.devices.flat[0]

    @property
    def platform(self) -> str:
        """What the processors are: "cpu", "gpu", "tpu", or "" if there are no devices."""
        name = getattr(self._first, "platform", "")
        return "gpu" if name in ("cuda", "rocm") else name  # so devices are called that are only described

    @property
    def device_kind(self) -> str:
        """JAX's name for the kind of processor, as in "TPU v4" or "NVIDIA H200", or "" if there are no devices."""
        return getattr(self._first, "device_kind", "")

    @cached_property
    def hosts(self) -> dict[str, int]:
        """On how many hosts the processors along each axis are; on one if there are no devices to ask."""
        if not self.has_devices:
            return dict.fromkeys(self.axes, 1)
        hosts = np.vectorize(_host, otypes=[int])(self.jax_mesh.devices)
        lines = {axis: np.moveaxis(hosts, i, -1).reshape(-1, n) for i, (axis, n) in enumerate(self.axes.items())}
        return {axis: max(len(set(line)) for line in every.tolist()) for axis, every in lines.items()}

    def count(self, axes: Sequence[str]) -> int:
        """Returns the number of processors along some axes together."""
        return math.prod([self.axes[axis] for axis in axes])  # asked for often: a list is faster than a generator

    def __repr__(self) -> str:
        kind = ", abstract" if self.is_abstract else f", {self.topology}" if self.topology else ""
        crossing = [axis for axis, count in self.hosts.items() if count > 1]
        kind += f", {'+'.join(crossing)} across hosts" if crossing else ""
        return f"Mesh({' '.join(f'{axis}:{size}' for axis, size in self.axes.items())}{kind})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mesh) and self.jax_mesh == other.jax_mesh

    def __hash__(self) -> int:
        return hash(self.jax_mesh)


class OneProcessor(Mesh):
    """The mesh outside of programs: one processor without axes, JAX's default device."""

    def __init__(self) -> None:
        self.axes, self.size, self.topology, self.is_abstract, self.order = {}, 1, None, True, ()
        self.jax_mesh = AbstractMesh((), ())

    @property
    def _first(self) -> Any:
        return jax.devices()[0]


def _parse(spec: str) -> dict[str, int]:
    if not isinstance(spec, str):
        raise MeshError(
            f"a mesh is described by a string, not by {type(spec).__name__}.", values=repr(spec), fix=_EXAMPLE
        )
    axes: dict[str, int] = {}
    for name, text in parse_pairs(spec, MeshError, "a mesh", _EXAMPLE):
        if not name.isidentifier():
            raise MeshError(f"{name!r} is not a name for a mesh axis.", values=repr(spec), fix=_EXAMPLE)
        if name in axes:
            raise MeshError(
                f"mesh axis {name!r} is given twice.", values=repr(spec), fix="give each axis a name of its own."
            )
        if text != "-1" and (not text.isdecimal() or int(text) < 1):
            raise MeshError(
                f"{text!r} is not a size for mesh axis {name!r}.",
                values=repr(spec),
                rule="a size is a positive integer, or -1 for all remaining devices.",
            )
        axes[name] = int(text)
    if not axes:
        raise MeshError("a mesh has at least one axis.", values=repr(spec), fix=_EXAMPLE)
    return axes


def _infer_size(axes: dict[str, int], spec: str, available: list[Any] | None) -> dict[str, int]:
    unknown = [axis for axis, size in axes.items() if size == -1]
    if not unknown:
        return axes
    if len(unknown) > 1 or available is None:
        raise MeshError(
            "the size of a mesh axis cannot be inferred.",
            values=repr(spec),
            rule="at most one size may be -1, and only where there are devices to count.",
            fix="write the sizes out.",
        )
    known = math.prod(size for size in axes.values() if size != -1)
    if len(available) % known:
        raise MeshError(
            f"{len(available)} devices do not divide into groups of {known}.",
            values=repr(spec),
            fix="choose sizes whose product divides the number of devices.",
        )
    return {axis: len(available) // known if size == -1 else size for axis, size in axes.items()}


def _check_enough(axes: dict[str, int], size: int, available: list[Any], topology: str | None) -> None:
    if topology is not None and size != len(available):
        raise MeshError(
            f"the mesh has {size} processors, the topology {topology!r} has {len(available)}.",
            values=str(axes),
            fix="choose sizes whose product is the number of cores of the topology.",
        )
    if size > len(available):
        raise MeshError(
            f"the mesh has {size} processors, but there are only {len(available)} devices.",
            values=f"{axes} on {available[0].platform} devices",
            fix=f'on a CPU, call jax.config.update("jax_num_cpu_devices", {size}) before the first use of JAX, '
            "or trace without devices: mx.Mesh(..., abstract=True).",
        )


def _host(device: Any) -> int:
    """Returns which group of near devices this is in: a TPU slice, the GPUs of a machine, the CPUs of a process."""
    return device.process_index if device.platform == "cpu" else getattr(device, "slice_index", 0)


def _arrange(shape: Sequence[int], devices: list[Any], *, explicit: bool) -> np.ndarray:
    """Orders devices so that neighbours in the mesh are neighbours in the machine, where JAX knows how."""
    chosen = (devices if explicit else sorted(devices, key=_host))[: math.prod(shape)]
    if not explicit:
        with suppress(ValueError, NotImplementedError, AssertionError):  # some shapes do not fold onto a torus
            return jax.make_mesh(tuple(shape), tuple(map(str, range(len(shape)))), devices=chosen).devices
    return np.array(chosen, dtype=object).reshape(shape)


# How JAX is asked for a machine by its name, for platforms where a name is not enough: who knows machines stands above.
DESCRIPTIONS: dict[str, Callable[[str], dict[str, Any]]] = {}


def _topology_devices(topology: str) -> list[Any]:
    platform, _, name = topology.partition(" ")
    if not name:
        raise MeshError(
            f"{topology!r} is not a topology.",
            rule="a topology is a platform and a name.",
            fix='write for example mx.Mesh("rows:32 cols:16", topology="tpu v2:16x16").',
        )
    from jax.experimental import topologies  # slow to import, and only needed here

    asked = DESCRIPTIONS.get(platform, lambda name: {"platform": platform, "topology_name": name})(name)
    try:
        return list(topologies.get_topology_desc(**asked).devices)
    except Exception as error:
        raise MeshError(
            f"there is no compiler here for the topology {topology!r}.",
            values=str(error).splitlines()[0],
            rule="TPUs need libtpu and TPU_SKIP_MDS_QUERY=1; GPUs jax's for CUDA, and where none is JAX_PLATFORMS=cpu.",
            fix="pip install 'meshax[tpu]' or 'meshax[cuda]', as the installed jax asks for; or use abstract=True.",
        ) from error
