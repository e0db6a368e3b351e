"""Gather, scatter and one-hot, by integer tensors.

Tensors meet by name: a dim that the indexed tensor and the indices share is a batch dim. Along a split dim each
processor looks up what lies in its own block, and the results are a pending sum. An index out of range gathers zeros,
and what it scatters is dropped.
"""

import functools
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from ..collectives import summing_dtype
from ..compat import Array, varying_axes
from ..dim import Dim, DimLike, Dims, find, show, union, unique, without
from ..errors import ArgumentError, DtypeError, ShapeError
from ..layout import Axes, Placement, current
from ..sources import operation
from ..tensors import Tensor, check_tensor, local, moved
from ..transfer import fill_padding, move, refines
from ..transfer import indices as places
from .creation import arange, full, one_sized_dim, places_fit
from .elementwise import apply, astype
from .operands import compute, integers, varying_together
from .reduction import widened
from .resharding import placed, unsplit
from .shaping import flip
from .shaping import slice as slice_

__all__ = ["gather", "one_hot", "scatter_add"]


def one_hot(indices: Tensor, dim: Dim, dtype: Any = jnp.float32) -> Tensor:
    """Returns 1 where a new dim's place equals the index, else 0; an index out of range gives zeros only.

    Communication: none.
    """
    _check_integer(indices, "one_hot")
    *_, dim = unique((*indices.dims, one_sized_dim(dim, "one_hot")))
    return astype(places_along(indices, dim, "one_hot") == arange(dim), dtype)


def gather(x: Tensor, indices: Tensor, dim: DimLike) -> Tensor:
    """Looks up along a dim: the result has the indices' dims in its place. Dims that both have are batch dims.

    >>> from meshax import tensor
    >>> gather(tensor([[1, 2], [3, 4], [5, 6]], "word d_model"), tensor([2, 0, 9], "length"), "word").numpy()
    array([[5, 6],
           [1, 2],
           [0, 0]], dtype=int32)

    Communication: none, if the dim is not split; otherwise a pending sum of the result. If its axes split the indices
    too, these are gathered first, and the sum becomes a reduce-scatter. Of a parameter that is stored by slices of
    another dim, each processor looks up in the slices it has, if the rows that then are exchanged (an all-to-all, and
    an all-gather of the indices) are fewer bytes than the table.
    """
    dim = find(check_tensor(x, "mx.gather").dims, dim)
    _check_integer(indices, "gather")
    if dim.name in [d.name for d in indices.dims]:
        raise ShapeError(
            f"the indices have the dim {dim.name!r} that they index.",
            values=f"{show(x.dims)} and {show(indices.dims)}",
            fix="rename that dim of the indices.",
        )
    if x.dtype == jnp.bool_:  # which have no sum
        return gather(x.astype(jnp.int32), indices, dim).astype(jnp.bool_)
    union(x.dims, indices.dims)
    indices = places_along(indices, dim, "gather")
    position = x.dims.index(dim)
    new = without(indices.dims, x.dims)
    result = (*x.dims[:position], *new, *x.dims[position + 1 :])
    setting = current()
    placement, rules = setting.placement(x.dims), setting.placement(indices.dims)
    split = placement.of(dim)
    whole = tuple(d for d in indices.dims if set(rules.of(d)) & set(split))
    setting.meeting(without(result, whole), operands=[x.dims, indices.dims])
    added = () if whole else _stored_axes(x, dim, placement, rules)
    there, role = (placement, None) if not added else (local(x)[1], x.role)
    joined = _without_axes(rules, added) if added else rules.whole(whole)
    index = moved(indices, joined, varying_together([x, indices]) | set(added))
    # padding must find nothing: what flows back into it would be added to a real element
    index = fill_padding(index, joined, indices.dims, -1)
    if split:
        here = index - places(placement, dim)[0]
        index = jnp.where((here >= 0) & (here < placement.block(dim)), here, -1)
    array = compute(lambda a: _look_up(a, index, x.dims, indices.dims, dim, result), [x], role, varying_axes(index))
    axes = [there.of(d) if d in x.dims else joined.of(d) for d in result]
    found = Placement(result, setting.mesh, axes)
    if added:  # now, and not once for each consumer
        return Tensor(move(array, found, setting.placement(result), frozenset(split)), result)
    return placed(array, found, None, frozenset(split))


def _stored_axes(x: Tensor, dim: Dim, placement: Placement, rules: Placement) -> Axes:
    """Returns the axes that a parameter is stored split over, if to look up there and exchange the rows sends less.

    So it may be if one of the dims that stay is stored split further, and those axes split one dim of the indices, the
    minor way, or none.
    """
    array, stored = local(x)
    further = [d for d in x.dims if stored.of(d) != placement.of(d)]
    if x.role is None or x._pending or len(further) != 1 or further[0] in (dim, *rules.dims):
        return ()
    before, now = placement.of(further[0]), stored.of(further[0])
    added = now[len(before) :]
    joined = _without_axes(rules, added)
    can_exchange = refines(further[0], placement.mesh, before, now) and all(
        joined.of(d) == rules.of(d)
        or (rules.of(d) == (*joined.of(d), *added) and refines(d, rules.mesh, joined.of(d), rules.of(d)))
        for d in rules.dims
    )
    if not can_exchange or set(added) & placement.axes:
        return ()
    row_bytes = array.dtype.itemsize * math.prod(placement.block(d) for d in without(x.dims, (dim, *rules.dims)))
    index_bytes = 4 * placement.mesh.count(added) if set(added) & rules.axes else 0
    num_rows = math.prod(rules.local_shape)
    return added if num_rows * (row_bytes + index_bytes) < placement.block(dim) * row_bytes else ()


def _without_axes(placement: Placement, axes: Axes) -> Placement:
    """Returns a placement without some axes."""
    kept = [tuple(axis for axis in split if axis not in axes) for split in placement]
    return Placement(placement.dims, placement.mesh, kept)


def scatter_add(x: Tensor, indices: Tensor, updates: Tensor, dim: DimLike) -> Tensor:
    """Adds updates to the places along a dim that the indices name: what `gather` looks up, the other way round.

    Args:
        x: the tensor to add to.
        indices: places along the dim; dims that x has too are batch dims.
        updates: has the indices' dims, and those of x but the dim; a missing one is broadcast.
        dim: the dim.

    Communication: none, if the indices' own dims are not split; otherwise an all-reduce of the result, or a gather of
    indices and updates, if an axis of theirs splits x too.
    """
    dim = find(check_tensor(x, "mx.scatter_add").dims, dim)
    _check_integer(indices, "scatter_add")
    check_tensor(updates, "mx.scatter_add")
    if x.dtype == jnp.bool_:
        raise DtypeError(
            "truth values cannot be added up.", values=f"{show(x.dims)} bool", fix="cast them: x.astype(jnp.int32)."
        )
    indices = places_along(indices, dim, "scatter_add")
    own = without(indices.dims, x.dims)
    wanted = union(own, without(x.dims, (dim,)))
    if dim.name in [d.name for d in indices.dims] or not set(own) <= set(updates.dims) <= set(wanted):
        raise ShapeError(
            "updates do not fit what they are added to.",
            values=f"{show(x.dims)}, indices {show(indices.dims)} and updates {show(updates.dims)}",
            rule="updates have the indices' dims, and of x only dims other than the one indexed.",
            fix="rename or broadcast the updates.",
        )
    if updates.dtype != x.dtype:
        raise DtypeError(
            "updates have another dtype.", values=f"{updates.dtype} for {x.dtype}", fix="cast them with .astype."
        )
    if jnp.issubdtype(x.dtype, jnp.floating) and summing_dtype(x.dtype) != x.dtype:  # parts may overflow
        wide = scatter_add(x.astype(jnp.float32), indices, updates.astype(jnp.float32), dim)
        return wide.astype(x.dtype)
    setting = current()
    placement, rules = setting.placement(x.dims), setting.placement(own)
    whole = tuple(d for d in own if placement.axes.intersection(rules.of(d)))
    vary = varying_together([indices, updates]) | frozenset(placement.of(dim))
    index, update = (unsplit(t, whole, vary) for t in (indices, updates))
    update = fill_padding(update, _placement_without(updates.dims, whole), updates.dims)
    added = _add_up(index, update, indices.dims, updates.dims, placement, dim, own)
    return x + Tensor(added, x.dims, pending=rules.whole(whole).axes & varying_axes(added))


def _placement_without(shape: Dims, whole: Dims) -> Placement:
    """Returns the placement of dims of which those that are whole may share axes with others."""
    setting = current()
    return Placement(shape, setting.mesh, [() if d in whole else setting.placement((d,))[0] for d in shape])


def _check_integer(indices: Tensor, op: str) -> None:
    check_tensor(indices, f"mx.{op}")
    if not jnp.issubdtype(indices.dtype, jnp.integer):
        raise DtypeError(
            f"indices are integers, not {indices.dtype}.", values=show(indices.dims), fix="cast them with .astype."
        )


def places_along(indices: Tensor, dim: Dim, op: str) -> Tensor:
    """Returns the indices as int32, -1 for those out of range. A cast alone would wrap some of them into the range."""
    places_fit(dim, op)
    return apply(functools.partial(_narrow, size=dim.size), (indices,), op)


@functools.partial(jax.jit, static_argnames="size")  # traced once
def _narrow(index: Array, size: int) -> Array:
    wide = index if jnp.iinfo(index.dtype).bits > 32 or index.dtype == jnp.uint32 else index.astype(jnp.int32)
    last = jnp.asarray(size - 1, wide.dtype)
    return jnp.where((wide >= 0) & (wide <= last), wide.astype(jnp.int32), -1)


def _look_up(x: Array, index: Array, dims: Dims, index_dims: Dims, dim: Dim, result: Dims) -> Array:
    """Gathers from local arrays; an index outside of the array gives zeros."""
    shared = [d for d in index_dims if d in dims]
    rest = [d for d in dims if d not in shared and d != dim]
    new = [d for d in index_dims if d not in shared]
    x = jnp.transpose(x, [dims.index(d) for d in (*shared, dim, *rest)])
    index = jnp.transpose(index, [index_dims.index(d) for d in (*shared, *new)])

    def take(x: Array, index: Array) -> Array:
        inside = (index >= 0) & (index < x.shape[0])
        taken = _rows(x, jnp.clip(index, 0, x.shape[0] - 1))
        return jnp.where(inside.reshape(index.shape + (1,) * (x.ndim - 1)), taken, jnp.zeros((), x.dtype))

    for _ in shared:
        take = jax.vmap(take)
    order = (*shared, *new, *rest)
    return jnp.transpose(take(x, index), [order.index(d) for d in result])


# What comes back for one row is added up in float32 at least.
_rows = jax.custom_jvp(lambda x, index: jnp.take(x, index, axis=0))
_rows.defjvps(lambda change, _, x, index: jnp.take(widened(change, 32), index, axis=0).astype(change.dtype), None)


def _add_up(
    index: Array, updates: Array, index_dims: Dims, update_dims: Dims, placement: Placement, dim: Dim, own: Dims
) -> Array:
    """Adds local updates into zeros of a placement; an index outside of the local block is dropped."""
    dims, block = placement.dims, placement.block(dim)
    if placement.of(dim):
        index = index - places(placement, dim)[0]
    shared = [d for d in index_dims if d in dims]
    rest = [d for d in dims if d not in shared and d != dim]
    index = jnp.transpose(index, [index_dims.index(d) for d in (*shared, *own)])
    full = (*shared, *own, *rest)
    updates = jnp.transpose(updates, [update_dims.index(d) for d in full if d in update_dims])
    updates = jnp.expand_dims(updates, [i for i, d in enumerate(full) if d not in update_dims])
    updates = jnp.broadcast_to(updates, [*index.shape, *map(placement.block, rest)])
    # what flows back from the padding of a dim that they are broadcast along is dropped
    updates = fill_padding(updates, _placement_without(full, own), without(full, update_dims))

    def add(index: Array, updates: Array) -> Array:
        # One more row receives what is dropped: XLA before jax 0.12 may make a wrong read of an index out of range.
        flat = jnp.where((index >= 0) & (index < block), index, block).reshape(-1)
        rows = widened(updates.reshape(-1, *updates.shape[index.ndim :]), 32)
        added = jnp.zeros((block + 1, *rows.shape[1:]), rows.dtype).at[flat].add(rows, mode="promise_in_bounds")
        return added[:block].astype(updates.dtype)

    for _ in shared:
        add = jax.vmap(add)
    order = (*shared, dim, *rest)
    return jnp.transpose(add(index, updates), [order.index(d) for d in dims])


def _take(x: Tensor, places: Mapping[DimLike, Any]) -> Tensor:
    """Takes elements and ranges by the names of dims: `x[{"batch": 0, "length": slice(1, 5)}]`.

    A number takes an element, and the dim goes; negative ones count from the end. A `slice` takes a range, an integer
    tensor what `mx.gather` does.

    Communication: none along a dim that is not split; otherwise a pending sum for a number, as `mx.slice` for a range.
    """
    if not isinstance(places, Mapping):
        raise ShapeError(
            f"elements are taken by the names of dims, not by {places!r}.",
            values=show(x.dims),
            fix='name the dim: x[{"batch": 0}], or x[{"batch": slice(0, 2)}].',
        )
    for dim, place in {find(x.dims, name): place for name, place in places.items()}.items():
        if isinstance(place, Tensor):
            x = gather(x, place, dim)
        elif isinstance(place, slice):
            x = _range(x, dim, range(dim.size)[place])
        else:
            x = _element(x, dim, *integers("Tensor.__getitem__", **{dim.name: place}))
    return x


def _range(x: Tensor, dim: Dim, places: range) -> Tensor:
    if not places:
        raise ArgumentError(
            f"a range of dim {dim} is empty.", rule="a dim has at least one element.", fix="take one element or more."
        )
    forward = places if places.step > 0 else places[::-1]
    taken = slice_(x, dim, forward[0], len(forward), forward.step)
    return taken if places.step > 0 else flip(taken, dim.name)


def _element(x: Tensor, dim: Dim, place: int) -> Tensor:
    if not -dim.size <= place < dim.size:
        raise ArgumentError(
            f"dim {dim} has no element {place}.", fix=f"its elements are 0 to {dim.size - 1}, or -{dim.size} to -1."
        )
    place, position = place % dim.size, x.dims.index(dim)
    if current().placement((dim,)).axes:
        return gather(x, full((), place, jnp.int32), dim)
    take = lambda array: jax.lax.index_in_dim(array, place, position, keepdims=False)  # noqa: E731
    return Tensor(compute(take, [x]), without(x.dims, (dim,)))


Tensor.__getitem__ = operation(_take, "operator []")  # type: ignore[method-assign]
