"""Rename, reshape, transpose and broadcast: the operations that change which dims a tensor has.

Names decide placement, so these are the operations that move data, and they move no more than they must. A rename
that un-splits a dim moves nothing yet: its consumer decides which gather it needs.
"""

import math
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from ..compat import Array
from ..dim import Dim, DimLike, Dims, DimsLike, as_list, find, select, show, sizes, unique
from ..errors import ShapeError
from ..layout import Axes, Placement, current
from ..sources import operation
from ..tensors import Tensor, check_tensor, fetch, local, moved
from ..transfer import move
from .creation import sized_dims
from .operands import align

__all__ = ["broadcast", "rename", "reshape", "transpose"]


def rename(x: Tensor, names: Mapping[Any, DimLike]) -> Tensor:
    """Gives dims new names, and with them the placement of the new names.

    Args:
        x: the tensor.
        names: for each dim, or its name, the new name, or a dim of the same size.

    Communication: none, if the old and the new name are split alike, or the new one is split and the old one is not.
    A reduce-scatter, if the value is a pending sum over the new name's axes. An all-gather, if the new name is not
    split; an all-to-all, if the axis moves to another dim.
    """
    check_tensor(x, "mx.rename")
    changed = {find(x.dims, old): new for old, new in names.items()}
    shape = unique([_renamed(dim, changed[dim]) if dim in changed else dim for dim in x.dims])
    array, placement = local(x)
    return placed(array, Placement(shape, placement.mesh, placement), x.role, x._pending)


def _renamed(dim: Dim, new: DimLike) -> Dim:
    if isinstance(new, Dim) and new.size != dim.size:
        raise ShapeError(
            f"a rename keeps the size: {dim} cannot become {new}.", fix="use mx.reshape or mx.slice to change sizes."
        )
    return new if isinstance(new, Dim) else Dim(new, dim.size)


def placed(array: Array, placement: Placement, role: str | None, pending: frozenset[str] = frozenset()) -> Tensor:
    """Returns a tensor that is placed as its dims say, or will be once its consumer is known."""
    shape = placement.dims
    target = current().placement(shape, role)
    if placement == target and not pending:
        return Tensor(array, shape, role)
    if _only_unsplits(placement, target) and not pending & target.axes:
        return Tensor(array, shape, role, None if placement == target else placement, pending)
    return Tensor(move(array, placement, target, pending), shape, role)


def _only_unsplits(placement: Placement, target: Placement) -> bool:
    left = {axis for now, then in zip(placement, target, strict=True) for axis in now[len(then) :]}
    kept = all(now[: len(then)] == then for now, then in zip(placement, target, strict=True))
    return kept and not left & target.axes


def unsplit(x: Tensor, dims: Dims, vary: frozenset[str] = frozenset()) -> Array:
    """Returns the local array, whole along some dims and placed as the layout says along the others."""
    return moved(x, current().placement(x.dims).whole(dims), vary)


def transpose(x: Tensor, dims: DimsLike) -> Tensor:
    """Stores the dims in another order. No operation needs this: dims meet by name.

    Communication: none.
    """
    shape = select(check_tensor(x, "mx.transpose").dims, dims)
    if len(shape) != len(x.dims):
        raise ShapeError(
            "mx.transpose names every dim once.",
            values=f"{show(x.dims)} to {show(shape)}",
            fix="name the missing dims.",
        )
    order = [x.dims.index(dim) for dim in shape]
    now = x._placement
    placement = None if now is None else Placement(shape, now.mesh, [now[i] for i in order])
    return Tensor(jnp.transpose(x._array, order), shape, x.role, placement, x._pending)


def broadcast(x: Tensor, dims: DimsLike) -> Tensor:
    """Repeats a tensor along new dims, and stores its dims in the order given.

    Communication: none; a pending sum is reduced first.
    """
    check_tensor(x, "mx.broadcast")
    shape = _old_or_sized(x, dims, "broadcast")
    lost = [dim for dim in x.dims if dim not in shape]
    if lost:
        raise ShapeError(
            f"mx.broadcast keeps every dim: {', '.join(map(str, lost))} is missing.",
            values=f"{show(x.dims)} to {show(shape)}",
            fix="name it too, or sum over it first.",
        )
    placement = current().placement(shape)
    array = align(fetch(x, placement.axes), x.dims, placement)
    return Tensor(jnp.broadcast_to(array, placement.local_shape), shape)


def reshape(x: Tensor, dims: DimsLike) -> Tensor:
    """Reads the elements, in their order, as a tensor of other dims: what numpy's reshape does.

    Communication: none for a group of dims that is not split, or only in its first dim, over the same axes before and
    after, if both sizes divide. Otherwise the dims of that group are gathered, and cut again.
    """
    check_tensor(x, "mx.reshape")
    shape = _old_or_sized(x, dims, "reshape")
    before, after = math.prod(sizes(x.dims)), math.prod(sizes(shape))
    if before != after:
        raise ShapeError(
            f"{before} elements cannot be read as {after}.",
            values=f"{show(x.dims)} to {show(shape)}",
            rule="a reshape keeps the number of elements.",
            fix="correct the sizes of the new dims.",
        )
    array, placement = local(x)
    target = current().placement(shape)
    source_middle, target_middle = _middle(placement, target)
    pending = x._pending
    if source_middle != placement:
        array = move(array, placement, source_middle, pending, target.axes)
        pending = frozenset()
    return placed(jnp.reshape(array, target_middle.local_shape), target_middle, None, pending)


def _old_or_sized(x: Tensor, dims: DimsLike, op: str) -> Dims:
    """Reads the dims of a result: names of dims of x, and dims, which alone may be new."""
    old = {dim.name: dim for dim in x.dims}
    return sized_dims([old.get(dim, dim) if isinstance(dim, str) else dim for dim in as_list(dims)], op)


def _middle(source: Placement, target: Placement) -> tuple[Placement, Placement]:
    """Returns placements of the old and the new dims between which the reshape is local."""
    left: list[Axes] = []
    right: list[Axes] = []
    for old, new in _groups(source.dims, target.dims):
        shared = source.of(old[0]) if len(old) == len(new) == 1 else _shared_axes(old, source, new, target)
        left += [shared if i == 0 else () for i in range(len(old))]
        right += [shared if i == 0 else () for i in range(len(new))]
    return Placement(source.dims, source.mesh, left), Placement(target.dims, target.mesh, right)


def _shared_axes(old: Dims, source: Placement, new: Dims, target: Placement) -> Axes:
    """Returns the axes that may go on splitting the first dim of a group through the reshape."""
    if not old or not new:
        return ()
    shared: Axes = ()
    for axis, same in zip(source.of(old[0]), target.of(new[0]), strict=False):
        count = source.mesh.count((*shared, axis))
        if axis != same or old[0].size % count or new[0].size % count:
            break
        shared = (*shared, axis)
    return shared


def _groups(before: Dims, after: Dims) -> list[tuple[Dims, Dims]]:
    """Cuts two shapes of one product into the smallest groups of equal product."""
    groups = []
    i = j = 0
    while i < len(before) or j < len(after):
        start = i, j
        old, new = 1, 1
        if i < len(before):
            old, i = before[i].size, i + 1
        if j < len(after):
            new, j = after[j].size, j + 1
        while old != new:
            if old < new:
                old, i = old * before[i].size, i + 1
            else:
                new, j = new * after[j].size, j + 1
        groups.append((before[start[0] : i], after[start[1] : j]))
    return groups


def _rename_method(self: Tensor, /, **names: DimLike) -> Tensor:
    """Gives dims new names: `x.rename(length="positions")`."""
    return rename(self, names)


Tensor.rename = operation(_rename_method, "rename")  # type: ignore[method-assign]
