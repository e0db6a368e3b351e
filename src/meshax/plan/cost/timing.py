"""How long a program takes on given hardware, by a roofline.

Each kernel takes the longer of its matrix product (FLOPs over the reachable peak) and its memory traffic (bytes over
the reachable bandwidth), the time to start it, and what its elements take on top, on hardware where they do. Each
collective takes the time to start it, its hops' latency and the bytes one processor sends over the bandwidth of the
slowest link, at the pace of its kind; what compilers join to another only adds its bytes. All of it is added up, less
the communication that is hidden behind computation: none, unless overlap is asked for (`hiding.py`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from ...mesh import Mesh
from ..reading.broadcasting import Number, where
from ..reading.communication import Collective, is_collective
from ..reading.kernels import Kernel
from ..reading.walk import Step
from .hardware import Hardware

EXPOSED = "computation and communication do not overlap"
HIDDEN = "a collective runs beside computation that neither waits for it nor is waited for, in its turn of a loop"


@dataclass(frozen=True)
class Time:
    """Seconds, by what they are spent on."""

    compute: Number = 0.0
    memory: Number = 0.0
    communication: Number = 0.0
    hidden: Number = 0.0  # of the communication: what runs beside computation

    @property
    def exposed(self) -> Number:
        """The communication during which nothing is computed."""
        return self.communication - self.hidden

    @property
    def total(self) -> Number:
        """All of it, what happens at the same time once."""
        return self.compute + self.memory + self.exposed

    def __add__(self, other: "Time") -> "Time":
        return Time(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


def kernel_time(kernel: Kernel, hardware: Hardware) -> Time:
    """Returns the time of one execution of a kernel."""
    if is_collective(kernel.step):
        return Time()
    bandwidth = hardware.memory_bandwidth * hardware.memory_efficiency
    moving = kernel.bytes / bandwidth
    copying = kernel.stacking / bandwidth if hardware.copies_into_stacks else 0.0
    extra = hardware.overhead + sum(kernel.work[kind] * seconds for kind, seconds in hardware.per_element.items())
    if not np.any(kernel.flops):
        return Time(memory=moving + copying + extra)
    reachable = hardware.peak(kernel.step.inputs[0].dtype) * hardware.flops_efficiency
    computing = kernel.flops * _rounding(kernel.step, hardware.tile) / reachable
    is_bound = computing >= moving  # by computing
    return Time(where(is_bound, computing + extra, 0.0), copying + where(is_bound, 0.0, moving + extra))


def _rounding(step: Step, tile: int) -> Number:
    """Returns by how much a matrix product grows when its sizes are rounded up to whole tiles."""
    if tile == 1 or step.name != "dot_general":
        return 1.0
    (left, right), (left_batch, right_batch) = step.params["dimension_numbers"]
    a, b = step.inputs[0].shape, step.inputs[1].shape
    sizes = [
        math.prod(a[i] for i in left),
        math.prod(n for i, n in enumerate(a) if i not in (*left, *left_batch)),
        math.prod(n for i, n in enumerate(b) if i not in (*right, *right_batch)),
    ]
    growth = math.prod(where(n > 1, -(-n // tile) * tile / n, 1.0) for n in sizes)
    return where(growth < _MOST_GROWTH, growth, _MOST_GROWTH)


_MOST_GROWTH = 8.0  # a product with very few rows is bound by memory anyway
_HOPS = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1, "all-to-all": 1}


@dataclass(frozen=True)
class Network:
    """How the processors of a mesh are joined: inside a host by fast links, between hosts by slow ones.

    A ring over several hosts leaves each once for every processor that it has there, and these share the host's link:
    it is as fast as the slower of its links. In an all-to-all every processor sends to all others itself.
    """

    hardware: Hardware
    sizes: Mapping[str, int]  # of each axis
    hosts: Mapping[str, int]  # over how many each axis goes

    @classmethod
    def of(cls, hardware: Hardware, mesh: Mesh, order: Sequence[str] = ()) -> "Network":
        """Returns that of a mesh: on its hosts, or on those of the hardware, with the last axes inside a host.

        Args:
            hardware: the processors.
            mesh: how they are arranged.
            order: the axes, from those between hosts to the nearest processors; by default the mesh's own.
        """
        hosts, count = mesh.hosts, math.prod(mesh.hosts.values())
        if count == 1 or order:
            hosts = _hosts_along(mesh, order or mesh.order, mesh.size // count if count > 1 else hardware.node)
        return cls(hardware, mesh.axes, hosts)

    @property
    def crossing(self) -> list[str]:
        """The axes that go from host to host."""
        return [axis for axis, count in self.hosts.items() if count > 1]

    def ring_time(self, kind: str, axes: Sequence[str], wire_bytes: Number, joined: Number = False) -> Number:
        """Returns the seconds in which a processor sends so many bytes; `joined` to others, they only add up."""
        inside, between = self.hardware.inside, self.hardware.between or self.hardware.inside
        hosts = math.prod(self.hosts[axis] for axis in axes)
        near = sum(self.sizes[axis] - self.hosts[axis] for axis in axes)
        far = sum(self.hosts[axis] - 1 for axis in axes)
        near, far, times = (near, far, _HOPS[kind]) if kind in _HOPS else (hosts == 1, hosts > 1, 1)
        slowness, start = self.hardware.slowness.get(kind, 1.0) / inside.bandwidth, inside.start
        if hosts > 1:
            together = 1 if kind == "all-to-all" else math.prod(self.sizes[axis] for axis in axes) // hosts
            slowness = max(slowness, self.hardware.slowness.get(kind, 1.0) / (between.bandwidth * together))
            start = between.start
        sending = wire_bytes * slowness
        return where(joined, sending, start + times * (near * inside.latency + far * between.latency) + sending)

    def collective_time(self, record: Collective) -> float:
        """Returns the seconds of one execution of a collective."""
        return self.ring_time(record.kind, record.axes, record.wire_bytes, record.joined)


def _hosts_along(mesh: Mesh, order: Sequence[str], node: int) -> dict[str, int]:
    """Returns over how many hosts of so many processors each axis goes, if the last are the nearest."""
    hosts, reach = {}, 1
    for axis in reversed(order):
        within = max(min(mesh.axes[axis], node // reach), 1) if node else mesh.axes[axis]
        hosts[axis] = -(-mesh.axes[axis] // within)
        reach *= mesh.axes[axis]
    return {axis: hosts[axis] for axis in mesh.axes}
