"""Programs: a function, a mesh and a layout, compiled into one SPMD program.

`spmd` traces the function once, under `jax.shard_map`, with the layout ambient. Every leaf of the arguments is placed
on the mesh before the call, so what a call returns goes into the next one without a copy and without a second trace.
Whoever wants to know something of a program without running it takes its `Trace`.
"""

import inspect
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from . import collectives
from .checking.slices import checked
from .compat import Array, is_traced
from .dim import Dims, show
from .errors import ArgumentError, MeshError, ShapeError
from .layout import Layout, Placement, RulesLike, Setting, ambient, current, is_inside
from .mesh import Mesh
from .ops.gradients import casting
from .tensors import Packed, Tensor, check_same_everywhere, copies_of, is_tensor, settled_array
from .transfer import crop, fill_padding, pad_to

if TYPE_CHECKING:
    from .plan.explain.report import Report

P = ParamSpec("P")
R = TypeVar("R")

# XLA's CPU client (jax before 0.12) deadlocks when about 32 executions wait for their turn: the waiting ones hold the
# threads that a running collective needs on the other devices. So on CPUs, calls run at most this far ahead.
_CALLS_AHEAD = 2
_in_flight: deque[Array] = deque()


@dataclass(frozen=True, eq=False)
class Trace:
    """A program as it is traced for some arguments. Nothing has run."""

    jaxpr: Any
    arguments: tuple[Any, ...]  # as they would be placed, with shapes in place of arrays; those by name in a dict, last
    num_positional: int
    results: Any  # what a call would return, likewise
    donated: list[bool]  # for each leaf of the arguments
    setting: Setting  # that of this trace alone
    _traced: Any

    @property
    def shapes(self) -> Mapping[tuple[Dims, str | None], Placement]:
        """The shapes met, each in its role, and how they are placed."""
        return self.setting.placements

    def lower(self) -> Any:
        """Returns JAX's own lowered program: `.compile()`, `.compiler_ir("stablehlo")`."""
        return self._traced.lower()


class Program(Generic[P, R]):
    """A function that runs on a mesh under a layout. Call it as the function."""

    def __init__(
        self, fn: Callable[P, R], mesh: Mesh, layout: Layout | RulesLike, donate: int | Sequence[int] = (),
        compiler_options: Mapping[str, Any] | None = None,
    ):  # fmt: skip
        self.fn: Callable[..., R] = fn
        self.setting = _setting(mesh, layout)
        self.mesh, self.layout = self.setting.mesh, self.setting.layout
        self.donate = (donate,) if isinstance(donate, int) else tuple(donate)
        named = fn.func if isinstance(fn, partial) else fn
        self.__name__ = getattr(named, "__name__", type(named).__name__)
        self._jit = partial(jax.jit, donate_argnums=self.donate, compiler_options=dict(compiler_options or {}) or None)
        self._jitted = self._jit(self._call)

    def __call__(self, *args: P.args, **named: P.kwargs) -> R:
        """Places the arguments on the mesh and runs."""
        _check_outside("a program cannot be called inside a program.", f"call its function, {self.__name__}, instead.")
        if not self.mesh.has_devices:
            raise MeshError(
                "this mesh has no devices to run on.",
                values=repr(self.mesh),
                fix=f"use .explain{'' if self.mesh.is_abstract else ' or .compile'}, or make a mesh of devices.",
            )
        placed, named_ones = _placed(self._bound(args, named), self.setting)
        result, done = self._jitted(*placed, **named_ones)
        if self.mesh.platform == "cpu" and not is_traced(done):
            _in_flight.append(done)
            if len(_in_flight) > _CALLS_AHEAD:
                _in_flight.popleft().block_until_ready()
        return result

    def _bound(self, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments by position, as many as the function takes so: what is donated is counted."""
        if not named:
            return args, {}
        bound = inspect.signature(self.fn).bind(*args, **named)
        return bound.args, bound.kwargs

    def trace(self, *args: Any, **named: Any) -> Trace:
        """Traces the program, anew each time. Arguments may be `jax.ShapeDtypeStruct` tensors: nothing runs."""
        setting = Setting(self.mesh, self.layout)
        positional, named = _abstract(self._bound(args, named), setting)
        arguments = (*positional, named) if named else positional

        def trace(casts: bool) -> tuple[Any, Any]:
            traced = self._jit(partial(self._run, setting, casts)).trace(*positional, **named)
            return traced.jaxpr, traced

        traced = checked(trace)
        results = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), traced.out_info[0])
        donated = [i in self.donate for i, arg in enumerate(arguments) for _ in jax.tree.leaves(arg, is_leaf=is_tensor)]
        return Trace(traced.jaxpr, arguments, len(positional), results, donated, setting, traced)

    def lower(self, *args: Any, **named: Any) -> Any:
        """Returns JAX's own lowered program, before any compiler has seen it. Nothing runs."""
        return self.trace(*args, **named).lower()

    def compile(self, *args: Any, **named: Any) -> Any:
        """Returns JAX's own compiled program: `.as_text()`, `.memory_analysis()`. Nothing runs."""
        if self.mesh.is_abstract:
            raise MeshError(
                "an abstract mesh has no compiler.",
                values=repr(self.mesh),
                fix='make a mesh of devices, or of a topology: mx.Mesh(..., topology="tpu v2:16x16").',
            )
        return self.lower(*args, **named).compile()

    def explain(self, *args: Any, **named: Any) -> "Report":
        """Says what the program does, without running it, for arguments as of a call; shapes of them do.

        That is every collective with its bytes and its line, FLOPs, memory, padding, and the time on given hardware.
        """
        from .plan.explain.report import explain  # the one import that points up: who reads programs stands above them

        return explain(self, *args, **named)

    def __repr__(self) -> str:
        return f"Program({self.__name__}, {self.mesh}, {self.layout})"

    def _call(self, /, *args: Any, **named: Any) -> tuple[Any, Array]:
        """Runs on whole arrays, already padded, once the program has been checked."""

        def trace(casts: bool) -> tuple[Any, Any]:
            run = jax.jit(partial(self._run, self.setting, casts), inline=True)
            return run.trace(*args, **named).jaxpr, run  # called with the same arguments, it is not traced again

        return checked(trace)(*args, **named)

    def _run(self, setting: Setting, casts: bool, /, *args: Any, **named: Any) -> tuple[Any, Array]:
        """Runs on whole arrays, already padded; gradients may be taken by copies if it `casts`.

        Returns the result, and beside it something to wait for that no later call can be donated.
        """
        if wrong := [i for i in self.donate if not 0 <= i < len(args)]:
            raise ArgumentError(
                f"argument {wrong[0]} is to be donated, and there is none.",
                values=f"arguments 0 to {len(args) - 1}" if args else "no arguments",
                fix="count the arguments from 0.",
            )
        operands = Packed((args, named))
        results: list[Packed] = []
        out_specs: list[PartitionSpec] = []  # shard_map reads them after it has run the function

        def specs(tree: Packed) -> list[PartitionSpec]:
            return [PartitionSpec() if kind is None else setting.placement(*kind).spec for kind in tree.kinds]

        def run_locally(*arrays: Array) -> list[Array]:
            with ambient(setting), casting(casts), collectives.remembering():
                args, named = operands.rebuild(arrays)
                results[:] = [Packed(self.fn(*args, **named))]
                out_specs[:] = specs(results[0])
                return [_result(leaf, setting) for leaf in results[0].leaves]

        run = jax.shard_map(run_locally, mesh=self.mesh.jax_mesh, in_specs=tuple(specs(operands)), out_specs=out_specs)
        arrays = run(*(leaf._array if is_tensor(leaf) else leaf for leaf in operands.leaves))
        return results[0].rebuild(arrays), jnp.zeros(())


def _result(leaf: Any, setting: Setting) -> Array:
    """Returns what a processor contributes to a result: its slice, the same as others' where it is not split."""
    if is_tensor(leaf):
        array, placement = settled_array(leaf), setting.placement(leaf.dims, leaf.role)
        whole = collectives.replicate(array, sorted(copies_of(array, placement)))
        return fill_padding(whole, placement, leaf.dims)  # with zeros, as `put` does: others may look at it
    if not _is_number_or_array(leaf):
        raise ShapeError(
            f"a program returns pytrees of tensors, arrays and numbers, not {type(leaf).__name__}.",
            values=repr(leaf)[:80],
            fix="return it from a function outside.",
        )
    array = jnp.asarray(leaf)
    check_same_everywhere(array)
    return array


def spmd(
    fn: Callable[P, R], mesh: Mesh, layout: Layout | RulesLike, donate: int | Sequence[int] = (),
    compiler_options: Mapping[str, Any] | None = None,
) -> Program[P, R]:  # fmt: skip
    """Makes one SPMD program of a function of tensors.

    Args:
        fn: takes and returns pytrees of tensors (arrays and numbers in them are replicated).
        mesh: the processors.
        layout: which dims are split over which mesh axes.
        donate: the arguments whose memory the results may take over.
        compiler_options: XLA's flags for this program alone, by name without dashes.
    """
    return Program(fn, mesh, layout, donate, compiler_options)


def put(tree: Any, mesh: Mesh, layout: Layout | RulesLike) -> Any:
    """Places the tensors of a pytree on the mesh; each device receives only its own slices."""
    _check_outside("tensors are placed before a program runs, not inside it.", "rename dims to change placements.")
    setting = _setting(mesh, layout)
    if not mesh.has_devices:
        raise MeshError("this mesh has no devices to put tensors on.", values=repr(mesh), fix="make a mesh of devices.")
    return _placed(tree, setting)


def _check_outside(what: str, fix: str) -> None:
    if is_inside():
        raise MeshError(what, values=repr(current()), rule="there is one mesh and one layout at a time.", fix=fix)


def _setting(mesh: Mesh, layout: Layout | RulesLike) -> Setting:
    if not isinstance(mesh, Mesh):
        raise MeshError(
            f"the mesh is a {type(mesh).__name__}.", values=repr(mesh), fix='make one: mx.Mesh("rows:2 cols:4").'
        )
    return Setting(mesh, layout if isinstance(layout, Layout) else Layout(layout)).check()


def _placed(tree: Any, setting: Setting) -> Any:
    return _map_leaves(tree, lambda x: _place_tensor(x, setting), lambda x: _place_array(x, setting))


def _abstract(tree: Any, setting: Setting) -> Any:
    def struct(x: Any, shape: tuple[int, ...], spec: PartitionSpec) -> jax.ShapeDtypeStruct:
        dtype = jax.dtypes.canonicalize_dtype(x.dtype, allow_extended_dtype=True)
        sharding = None if setting.mesh.is_abstract else NamedSharding(setting.mesh.jax_mesh, spec)
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    def of_tensor(x: Tensor) -> Tensor:
        placement = setting.placement(x.dims, x.role)
        array = x._array if hasattr(x._array, "dtype") else jnp.asarray(x._array)
        return Tensor(struct(array, placement.padded_shape, placement.spec), x.dims, x.role)

    def of_array(x: Any) -> jax.ShapeDtypeStruct:
        x = x if hasattr(x, "dtype") else jnp.asarray(x)
        return struct(x, x.shape, PartitionSpec())

    return _map_leaves(tree, of_tensor, of_array)


def _map_leaves(tree: Any, of_tensor: Callable[[Tensor], Any], of_array: Callable[[Any], Any]) -> Any:
    def mapped(leaf: Any) -> Any:
        if is_tensor(leaf):
            return of_tensor(leaf)
        if _is_number_or_array(leaf):
            return of_array(leaf)
        raise ShapeError(
            f"a program takes pytrees of tensors, arrays and numbers, not {type(leaf).__name__}.",
            values=repr(leaf)[:80],
            fix="close over it, or make it static data of the pytree.",
        )

    return jax.tree.map(mapped, tree, is_leaf=is_tensor)


def _is_number_or_array(x: Any) -> bool:
    return hasattr(x, "dtype") or isinstance(x, bool | int | float | complex)


def _place_tensor(x: Tensor, setting: Setting) -> Tensor:
    placement = setting.placement(x.dims, x.role)
    shape, sharding = placement.padded_shape, NamedSharding(setting.mesh.jax_mesh, placement.spec)
    array = x._array
    if isinstance(array, jax.Array):
        if array.shape == shape and (is_traced(array) or array.sharding == sharding):
            return x
        array = crop(array, x.dims)
        for position, size in enumerate(shape):
            array = pad_to(array, position, size)
        return Tensor(array if is_traced(array) else _put(array, sharding), x.dims, x.role)
    if isinstance(array, jax.ShapeDtypeStruct):
        raise ShapeError(
            "a shape is not a value.",
            values=f"{show(x.dims)} {x.dtype}",
            fix="pass arrays; only .explain and .compile take jax.ShapeDtypeStruct.",
        )
    host = np.asarray(array)
    host = host.astype(jax.dtypes.canonicalize_dtype(host.dtype), copy=False)
    slices = jax.make_array_from_callback(shape, sharding, lambda index: _padded_slice(host, index, shape))
    return Tensor(slices, x.dims, x.role)


def _padded_slice(host: np.ndarray, index: Any, shape: tuple[int, ...]) -> np.ndarray:
    part = host[index]
    bounds = [piece.indices(size)[:2] for piece, size in zip(index, shape, strict=True)]
    missing = [(0, stop - start - have) for (start, stop), have in zip(bounds, part.shape, strict=True)]
    return np.pad(part, missing) if any(after for _, after in missing) else part


def _place_array(x: Any, setting: Setting) -> Any:
    sharding = NamedSharding(setting.mesh.jax_mesh, PartitionSpec())
    if isinstance(x, jax.Array) and (is_traced(x) or x.sharding == sharding):
        return x
    return _put(x, sharding)


def _put(x: Any, sharding: NamedSharding) -> jax.Array:
    """Places an array, over processes the same in all: JAX's own way would compare it there first, and fail on keys."""
    if sharding.is_fully_addressable:
        return jax.device_put(x, sharding)
    if getattr(x, "weak_type", False) and not x.ndim:
        x = x.item()  # a number, which stays typed as weakly as it is
    if hasattr(x, "dtype") and getattr(x, "is_fully_addressable", True):
        return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])
    return jax.jit(jnp.asarray, out_shardings=sharding)(x)
