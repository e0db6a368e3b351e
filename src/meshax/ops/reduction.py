"""Reductions over dims, split or not. None of them sees the padding of an uneven dim, whatever it holds."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from .. import collectives
from ..compat import Array
from ..dim import DimLike, Dims, DimsLike, find, select, without
from ..layout import Axes, current
from ..sources import operation
from ..tensors import Tensor, check_tensor
from ..transfer import along, fill_padding, indices
from .creation import places_fit
from .elementwise import abs as magnitude
from .elementwise import astype, stop_gradient
from .operands import compute

__all__ = ["all", "any", "argmax", "argmin", "max", "mean", "min", "prod", "sum", "var"]

Over = DimsLike | None


def reduced_dims(x: Tensor, over: Over, op: str) -> Dims:
    """Returns the dims to reduce over: all of them, if none are named."""
    check_tensor(x, f"mx.{op}")
    return x.dims if over is None else select(x.dims, over)


def _reduce(
    x: Tensor, over: Dims, local: Callable[..., Array], fill: Callable[[Any], Any], *, keep_pending: bool = False
) -> tuple[Tensor, Axes]:
    """Reduces each slice as it is stored; returns the partial result, and the axes it is still to be reduced over."""
    placement = current().placement(x.dims, x.role)
    positions = tuple(x.dims.index(dim) for dim in over)
    result, split = without(x.dims, over), placement.over(over)

    def reduce(array: Array) -> Array:
        return local(fill_padding(array, placement, over, fill(array.dtype)), axis=positions)

    if keep_pending and x._pending and x._placement is None and collectives.can_stay_pending(x.dtype):
        partial = reduce(x._array)
        if partial.dtype == x.dtype:  # else a sum that wraps around would not
            return Tensor(partial, result, x.role, pending=x._pending), split
    return Tensor(compute(reduce, [x], x.role), result, x.role), split


def sum(x: Tensor, over: Over = None) -> Tensor:
    """Sums over some dims, or all.

    Communication: none, if no summed dim is split; otherwise a pending sum, reduced by its first use. That of float16
    (or narrower) is reduced at once, in float32: parts of it may overflow where the whole does not.
    """
    dims = reduced_dims(x, over, "sum")
    if _overflows(x):
        return _in_float32(sum, x, dims)
    return _pending_sum(x, dims, jnp.sum)


def _pending_sum(x: Tensor, dims: Dims, local: Callable[..., Array]) -> Tensor:
    partial, split = _reduce(x, dims, local, lambda dtype: 0, keep_pending=True)
    return Tensor(partial._array, partial.dims, partial.role, pending=partial._pending | frozenset(split))


def _overflows(x: Tensor) -> bool:
    """Whether parts of sums and products of such elements may well overflow where the whole does not."""
    return jnp.issubdtype(x.dtype, jnp.floating) and collectives.summing_dtype(x.dtype) != x.dtype


def _in_float32(op: Callable[..., Tensor], x: Tensor, dims: Dims) -> Tensor:
    return astype(op(astype(x, jnp.float32), dims), x.dtype)


def mean(x: Tensor, over: Over = None) -> Tensor:
    """Averages over some dims, or all; floats narrower than float32 are added up in float32.

    Communication: as `mx.sum`.
    """
    dims = reduced_dims(x, over, "mean")
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        x = astype(x, jnp.float32)
    if _overflows(x):
        return _in_float32(mean, x, dims)
    count = float(math.prod(dim.size for dim in dims))  # as an integer it may not fit into 32 bits
    return _pending_sum(x, dims, functools.partial(_average, count=count))


@functools.partial(jax.jit, static_argnames=("axis", "count"), inline=True)  # traced once
def _average(array: Array, axis: tuple[int, ...], count: float) -> Array:
    wide = jnp.promote_types(array.dtype, jnp.float32)
    return (jnp.sum(array, axis, dtype=wide) / count).astype(array.dtype)


def var(x: Tensor, over: Over = None) -> Tensor:
    """Averages the squared distance from the mean over some dims, or all.

    Communication: that of two `mx.sum`, one after the other.
    """
    dims = reduced_dims(x, over, "var")
    centred = x - mean(x, dims)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        centred = magnitude(centred)
    return mean(centred * centred, dims)


def prod(x: Tensor, over: Over = None) -> Tensor:
    """Multiplies over some dims, or all.

    Communication: none, if no such dim is split; otherwise an all-gather of one partial product per processor.
    """
    dims = reduced_dims(x, over, "prod")
    if _overflows(x):
        return _in_float32(prod, x, dims)
    partial, split = _reduce(x, dims, jnp.prod, lambda dtype: 1)
    if not split:
        return partial
    stacked = collectives.gather(partial._array[None], split, 0, copies=False)
    return Tensor(jnp.prod(stacked, axis=0), partial.dims, partial.role)


def max(x: Tensor, over: Over = None) -> Tensor:
    """Takes the maximum over some dims, or all; in the gradient, ties share equally.

    Communication: none, if no such dim is split; otherwise an all-reduce of the result, and one in the backward pass.
    """
    return _extremum(x, reduced_dims(x, over, "max"), jnp.max, collectives.max_over, lowest)


def max_without_derivative(x: Tensor, over: Dims) -> Tensor:
    """Takes the maximum over some dims; no gradient flows through it, and nothing is kept for one."""
    return _extremum(stop_gradient(x), over, jnp.max, collectives.max_over, lowest, differentiable=False)


def min(x: Tensor, over: Over = None) -> Tensor:
    """Takes the minimum over some dims, or all; in the gradient, ties share equally.

    Communication: none, if no such dim is split; otherwise an all-reduce of the result, and one in the backward pass.
    """
    return _extremum(x, reduced_dims(x, over, "min"), jnp.min, collectives.min_over, highest)


def all(x: Tensor, over: Over = None) -> Tensor:
    """Whether all elements are true, over some dims or all.

    Communication: as `mx.min`.
    """
    return min(astype(check_tensor(x, "mx.all"), jnp.bool_), over)


def any(x: Tensor, over: Over = None) -> Tensor:
    """Whether some element is true, over some dims or all.

    Communication: as `mx.max`.
    """
    return max(astype(check_tensor(x, "mx.any"), jnp.bool_), over)


def lowest(dtype: Any) -> Any:
    """Returns the value that no maximum notices."""
    if dtype == jnp.bool_:
        return False
    return -jnp.inf if jnp.issubdtype(dtype, jnp.inexact) else jnp.iinfo(dtype).min


def highest(dtype: Any) -> Any:
    """Returns the value that no minimum notices."""
    if dtype == jnp.bool_:
        return True
    return jnp.inf if jnp.issubdtype(dtype, jnp.inexact) else jnp.iinfo(dtype).max


def widened(array: Array, bits: int = 16) -> Array:
    """Returns floats of fewer bits in float32. Some of a byte or less have no infinities to mask with."""
    is_narrow = jnp.issubdtype(array.dtype, jnp.floating) and jnp.finfo(array.dtype).bits < bits
    return array.astype(jnp.float32) if is_narrow else array


def _extremum(
    x: Tensor,
    over: Dims,
    local: Callable[..., Array],
    across: Callable[[Array, Axes], Array],
    fill: Callable[[Any], Any],
    differentiable: bool = True,
) -> Tensor:
    placement = current().placement(x.dims, x.role)
    positions = tuple(x.dims.index(dim) for dim in over)
    split = placement.over(over)
    has_rule = differentiable and split and jnp.issubdtype(x.dtype, jnp.inexact)

    def masked(array: Array, value: Any) -> Array:
        return fill_padding(array, placement, over, value)

    def forward(array: Array) -> Array:
        return across(local(array, axis=positions), split)

    def save(array: Array) -> tuple[Array, tuple[Array, Array]]:
        result = extremum(array)  # not `forward`: the result has a derivative of its own, for a second derivative
        return result, (array, result)

    def backward(saved: tuple[Array, Array], ct: Array) -> tuple[Array]:
        array, result = saved
        hit = masked((array == jnp.expand_dims(result, positions)).astype(ct.dtype), 0)
        hits = collectives.sum_over(jnp.sum(hit, axis=positions), split)
        return (masked(hit * jnp.expand_dims(ct / hits, positions), 0),)  # a derivative of this is a sum: masked too

    extremum = jax.custom_vjp(forward)
    extremum.defvjp(save, backward)

    def of_any_dtype(array: Array) -> Array:
        wide = widened(array)
        return (extremum if has_rule else forward)(masked(wide, fill(wide.dtype))).astype(array.dtype)

    return Tensor(compute(of_any_dtype, [x], x.role), without(x.dims, over), x.role)


def argmax(x: Tensor, over: DimLike) -> Tensor:
    """Returns the place (int32) of the first maximum along a dim.

    Communication: none, if the dim is not split; otherwise two all-reduces of the result.
    """
    return _arg_extremum(x, over, "argmax", jnp.argmax, jnp.max, collectives.max_over, lowest)


def argmin(x: Tensor, over: DimLike) -> Tensor:
    """Returns the place (int32) of the first minimum along a dim.

    Communication: none, if the dim is not split; otherwise two all-reduces of the result.
    """
    return _arg_extremum(x, over, "argmin", jnp.argmin, jnp.min, collectives.min_over, highest)


def _arg_extremum(x: Tensor, over: DimLike, op: str, whole: Any, local: Any, across: Any, fill: Any) -> Tensor:
    dim = places_fit(find(check_tensor(x, f"mx.{op}").dims, over), op)
    placement, position = current().placement(x.dims, x.role), x.dims.index(dim)
    axes = placement.of(dim)

    def place(array: Array) -> Array:
        array = widened(jax.lax.stop_gradient(array))
        if not axes:  # in one pass
            return whole(array, axis=position).astype(jnp.int32)
        array = fill_padding(array, placement, (dim,), fill(array.dtype))
        places = indices(placement, dim)
        best = jnp.expand_dims(across(local(array, axis=position), axes), position)
        hit = (array == best) | ((array != array) & (best != best))  # NaN is the first of all
        places = along(places, position, array.ndim)
        first = jnp.min(jnp.where(hit, places, jnp.iinfo(jnp.int32).max), axis=position)
        return collectives.min_over(first, axes)

    return Tensor(compute(place, [x], x.role), without(x.dims, (dim,)), x.role)


for _method in (all, any, argmax, argmin, max, mean, min, prod, sum, var):
    setattr(Tensor, _method.__name__, operation(_method))
