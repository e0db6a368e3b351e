"""Order along a dim: top-k, sort, cumulative sums. Along a split dim, top-k moves candidates and a sum its totals."""

from typing import Any

import jax.numpy as jnp
from jax import lax

from .. import collectives
from ..compat import Array
from ..dim import Dim, DimLike, find, unique, without
from ..errors import ArgumentError
from ..layout import Placement, current
from ..tensors import Tensor, check_tensor
from ..transfer import along, fill_padding, indices
from .creation import one_sized_dim, places_fit
from .neighbours import stretch
from .operands import compute
from .reduction import lowest, widened
from .resharding import placed, unsplit

__all__ = ["argsort", "cumsum", "sort", "top_k"]


def top_k(x: Tensor, over: DimLike, k: Dim) -> tuple[Tensor, Tensor]:
    """Returns the k largest elements along a dim, descending, and their places (int32); the first of ties comes first.

    NaN counts as the largest.

    Args:
        x: the tensor.
        over: the dim.
        k: the dim that replaces it, of which the size says how many.

    Communication: none, if the dim is not split; otherwise an all-gather of k candidates per processor,
    values and places.
    """
    dim = places_fit(find(check_tensor(x, "mx.top_k").dims, over), "top_k")
    k = one_sized_dim(k, "top_k")
    unique([k if d == dim else d for d in x.dims])
    if k.size > dim.size:
        raise ArgumentError(f"dim {dim} does not have {k.size} largest elements.", fix="choose a smaller k.")
    placement, position = current().placement(x.dims), x.dims.index(dim)
    axes = placement.of(dim)

    def select(array: Array) -> tuple[Array, Array]:
        array = widened(jnp.moveaxis(array, position, -1))
        if jnp.issubdtype(array.dtype, jnp.inexact):  # a negative NaN would come behind what fills the padding
            array = jnp.where(jnp.isnan(array), jnp.asarray(jnp.nan, array.dtype), array)
        if not axes:
            values, places = lax.top_k(array, k.size)
        else:
            rest = without(x.dims, (dim,))
            last = Placement((*rest, dim), placement.mesh, (*map(placement.of, rest), axes))
            array = fill_padding(array, last, (dim,), lowest(array.dtype))
            values, places = lax.top_k(array, min(k.size, array.shape[-1]))
            places = jnp.take(indices(placement, dim), places)
            values, places = (collectives.gather(c, axes, c.ndim - 1, copies=False) for c in (values, places))
            values, best = lax.top_k(values, k.size)
            places = jnp.take_along_axis(places, best, axis=-1)
        return jnp.moveaxis(values, -1, position).astype(x.dtype), jnp.moveaxis(places, -1, position)

    now = Placement(tuple(k if d == dim else d for d in x.dims), placement.mesh, placement.whole((dim,)))
    values, places = compute(select, [x])
    return placed(values, now, None), placed(places, now, None)


def sort(x: Tensor, dim: DimLike) -> Tensor:
    """Sorts along a dim, ascending.

    Communication: none, if the dim is not split; otherwise it is gathered.
    """
    check_tensor(x, "mx.sort")
    return _on_whole(x, dim, lambda array, at: jnp.sort(widened(array), at, stable=True).astype(x.dtype))


def argsort(x: Tensor, dim: DimLike) -> Tensor:
    """Returns the places (int32) that sort a dim, ascending; ties keep their order.

    Communication: none, if the dim is not split; otherwise it is gathered.
    """
    places_fit(find(check_tensor(x, "mx.argsort").dims, dim), "argsort")
    return _on_whole(
        x, dim, lambda array, at: jnp.argsort(widened(lax.stop_gradient(array)), at, stable=True).astype(jnp.int32)
    )


def _on_whole(x: Tensor, some: DimLike, fn: Any) -> Tensor:
    dim = find(x.dims, some)
    array = fn(unsplit(x, (dim,)), x.dims.index(dim))
    return placed(array, current().placement(x.dims).whole((dim,)), None)


def cumsum(x: Tensor, dim: DimLike, exclusive: bool = False, reverse: bool = False) -> Tensor:
    """Adds up along a dim.

    Args:
        x: the tensor.
        dim: the dim.
        exclusive: whether an element's own value is left out.
        reverse: whether to add up from the end.

    Communication: none, if the dim is not split; otherwise an all-gather of one total per processor, and in the
    backward pass a reduce-scatter of as much.
    """
    dim = find(check_tensor(x, "mx.cumsum").dims, dim)
    if x.dtype != collectives.summing_dtype(x.dtype):  # parts may overflow where the whole does not; truths are counted
        wide = cumsum(x.astype(collectives.summing_dtype(x.dtype)), dim, exclusive, reverse)
        return wide if x.dtype == jnp.bool_ else wide.astype(x.dtype)
    placement, position = current().placement(x.dims), x.dims.index(dim)
    axes = placement.of(dim)

    def add_up(array: Array) -> Array:
        array = fill_padding(array, placement, (dim,))
        summed = lax.cumsum(array, position, reverse=reverse)
        if exclusive:
            summed = stretch(summed, position, 1 if reverse else -1, summed.shape[position])
        if not axes:
            return summed
        totals = jnp.sum(array, axis=position, keepdims=True, dtype=array.dtype)
        totals = collectives.gather(totals, axes, position, copies=True)
        places = along(jnp.arange(totals.shape[position]), position, array.ndim)
        here = collectives.processor_index(axes)
        before = places > here if reverse else places < here
        others = jnp.where(before, totals, jnp.zeros((), array.dtype))
        rest = jnp.sum(others, axis=position, keepdims=True, dtype=array.dtype)
        return fill_padding(summed + rest, placement, (dim,))  # nothing may flow back through it

    return Tensor(compute(add_up, [x]), x.dims)
