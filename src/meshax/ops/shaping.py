"""Slice, concat, stack, flip, shift: legal along a split dim, and moving only what has to move."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from ..compat import Array
from ..dim import Dim, DimLike, Dims, find, show, unique, without
from ..errors import ArgumentError, DtypeError, ShapeError
from ..layout import Placement, block_size, current
from ..tensors import Tensor, check_tensor
from ..transfer import along, fill_padding
from .creation import one_sized_dim
from .neighbours import stretch_in_block, window
from .operands import compute, describe, integers
from .resharding import placed, transpose, unsplit

__all__ = ["concat", "flip", "shift", "slice", "stack", "unstack"]


def slice(x: Tensor, dim: DimLike, start: int, size: int, stride: int = 1) -> Tensor:
    """Takes `size` elements of a dim from `start` on, every `stride`-th.

    >>> from meshax import arange, dims
    >>> slice(arange(*dims(length=10)), "length", 1, 3, stride=2).numpy()
    array([1, 3, 5], dtype=int32)

    Communication: none, if the dim is not split; otherwise permutes of what changes its processor.
    """
    dim = find(check_tensor(x, "mx.slice").dims, dim)
    start, size, stride = integers("slice", start=start, size=size, stride=stride)
    if stride < 1 or size < 1 or start < 0 or start + (size - 1) * stride >= dim.size:
        raise ArgumentError(
            f"dim {dim} has no such slice.",
            values=f"start {start}, size {size}, stride {stride}",
            rule="all elements lie in the dim, and there is at least one.",
            fix=f"the last element is at start + (size - 1) * stride, and must be less than {dim.size}.",
        )
    finish = lambda array, position, block: lax.slice_in_dim(array, 0, None, stride, position)  # noqa: E731
    return windowed(x, dim, Dim(dim.name, size), finish, offset=start, stride=stride)


def flip(x: Tensor, dim: DimLike) -> Tensor:
    """Reverses the order along a dim.

    Communication: none, if the dim is not split; otherwise permutes between mirrored processors.
    """
    dim = find(check_tensor(x, "mx.flip").dims, dim)
    finish = lambda array, position, block: jnp.flip(array, position)  # noqa: E731
    return windowed(x, dim, dim, finish, offset=dim.size - 1, stride=-1)


def shift(x: Tensor, dim: DimLike, offset: int, wrap: bool = False) -> Tensor:
    """Moves elements along a dim: `y[i] = x[i - offset]`, zeros where nothing comes, or what wraps around.

    Communication: none, if the dim is not split; otherwise a permute of the `offset` elements at each boundary, or
    several if that is more than a block.
    """
    dim = find(check_tensor(x, "mx.shift").dims, dim)
    (offset,) = integers("shift", offset=offset)
    if wrap and offset % dim.size == 0:
        return x
    return _moved(x, dim, dim, offset, wrap=wrap)


def concat(xs: Sequence[Tensor], dim: DimLike) -> Tensor:
    """Joins tensors along a dim; their other dims are the same.

    Communication: none, if the dim is not split; otherwise permutes of what changes its processor.
    """
    xs = _alike(xs, "concat")
    name = dim.name if isinstance(dim, Dim) else dim  # each has its own size
    dims = [find(x.dims, name) for x in xs]
    if len({frozenset(without(x.dims, (d,))) for x, d in zip(xs, dims, strict=True)}) > 1:
        raise ShapeError(
            "mx.concat joins tensors whose other dims are the same.",
            values=describe(xs),
            fix="rename or broadcast them.",
        )
    whole = Dim(dims[0].name, sum(d.size for d in dims))
    xs = [transpose(x, [d.name for d in xs[0].dims]) for x in xs]
    position = xs[0].dims.index(dims[0])
    if not current().placement((whole,)).axes:
        shape = (*xs[0].dims[:position], whole, *xs[0].dims[position + 1 :])
        return Tensor(compute(lambda *arrays: jnp.concatenate(arrays, position), xs), shape)
    parts, offset = [], 0
    for x, part in zip(xs, dims, strict=True):
        parts.append((offset, offset + part.size, _moved(x, part, whole, offset)))
        offset += part.size
    return _choose(whole, parts)


def stack(xs: Sequence[Tensor], dim: DimLike) -> Tensor:
    """Joins tensors of the same dims along a new dim, which comes first.

    Communication: none; if the new dim is split, an all-gather in the backward pass.
    """
    xs = _alike(xs, "stack")
    new = Dim(dim, len(xs)) if isinstance(dim, str) else one_sized_dim(dim, "stack")
    if new.size != len(xs):
        raise ShapeError(f"{len(xs)} tensors do not make a dim {new}.", fix=f"pass the name {new.name!r} alone.")
    if any(set(x.dims) != set(xs[0].dims) for x in xs):
        raise ShapeError(
            "mx.stack joins tensors of the same dims.", values=describe(xs), fix="rename or broadcast them."
        )
    shape = xs[0].dims
    unique((new, *shape))
    array = compute(lambda *arrays: jnp.stack(arrays), [transpose(x, shape) for x in xs])
    return placed(array, current().placement(shape).stacked(new), None)


def unstack(x: Tensor, dim: DimLike) -> list[Tensor]:
    """Takes a tensor apart along a dim.

    Communication: none, if the dim is not split; otherwise it is gathered.
    """
    dim = find(check_tensor(x, "mx.unstack").dims, dim)
    position, shape = x.dims.index(dim), without(x.dims, (dim,))
    array = unsplit(x, (dim,))
    return [Tensor(lax.index_in_dim(array, i, position, keepdims=False), shape) for i in range(dim.size)]


def windowed(
    x: Tensor,
    dim: Dim,
    new: Dim,
    finish: Callable[[Array, int, int], Array] = lambda array, position, block: array,
    *,
    offset: int,
    stride: int = 1,
    reach: int = 1,
    fill: Any = 0,
    extra: Dims = (),
    wrap: bool = False,
) -> Tensor:
    """Makes each block of a result from one window of the operand: what its elements read, and what lies between.

    Element i reads `reach` places from `offset + i * stride` on; outside of the dim stands `fill`, or its other end
    (`wrap`). `finish` makes the block, given the window, the dim's position and the block's size, and appends `extra`.
    """
    setting, position = current(), x.dims.index(dim)
    placement = setting.placement(x.dims)
    count = placement.count(dim)
    block = block_size(new.size, count)
    width = (block - 1) * abs(stride) + reach
    starts = [offset + stride * (i * block if stride > 0 else (i + 1) * block - 1) for i in range(count)]
    shape = tuple(new if d == dim else d for d in x.dims)
    result = Placement(unique((*shape, *extra)), setting.mesh, (*setting.placement(shape), *((),) * len(extra)))

    def make(array: Array) -> Array:
        array = finish(window(array, placement, dim, starts, width, fill, wrap), position, block)
        return fill_padding(array, result, (new,))  # it may stem from real elements: nothing may flow back through it

    return placed(compute(make, [x]), result, None)


def _moved(x: Tensor, dim: Dim, new: Dim, offset: int, fill: Any = 0, wrap: bool = False) -> Tensor:
    """Puts the elements of a dim `offset` further into a dim of another size."""
    return windowed(x, dim, new, offset=-offset, fill=fill, wrap=wrap)


def _choose(dim: Dim, parts: Sequence[tuple[int, int, Tensor]]) -> Tensor:
    """Takes each stretch [first, last) of a split dim from its tensor."""
    _, _, result = parts[0]
    placement, position = current().placement(result.dims), result.dims.index(dim)

    def choose(*arrays: Array) -> Array:
        chosen = arrays[0]
        for (first, last, _), array in zip(parts[1:], arrays[1:], strict=True):
            inside = stretch_in_block(placement, dim, first, last)
            chosen = jnp.where(along(inside, position, array.ndim), array, chosen)
        return chosen

    return Tensor(compute(choose, [part for _, _, part in parts]), result.dims)


def _alike(xs: Sequence[Tensor], op: str) -> list[Tensor]:
    if not isinstance(xs, Iterable):
        raise ShapeError(
            f"mx.{op} takes a list of tensors, not {'one tensor' if isinstance(xs, Tensor) else type(xs).__name__}.",
            fix=f"write mx.{op}([x, y], dim).",
        )
    checked = [check_tensor(x, f"mx.{op}") for x in xs]
    if not checked:
        raise ShapeError(f"mx.{op} needs at least one tensor.", fix="pass a list of tensors.")
    if len({x.dtype for x in checked}) > 1:
        raise DtypeError(
            f"mx.{op} joins tensors of one dtype.",
            values=" and ".join(f"{show(x.dims)} {x.dtype}" for x in checked),
            fix="cast some of them: x.astype(y.dtype).",
        )
    return checked
