"""Linear maps in rings: a block is multiplied while the next one travels.

Where the layout names an axis for rings, a map of what would be gathered over it multiplies one block after the other
as they come around, and a map whose result would be reduce-scattered sends partial sums around. What is sent is what
the gather or reduce-scatter would send; of maps that share what they are given, the blocks go around once, for those
too whose results are not split: they would have shared the gather. In the backward pass the one becomes the other.
"""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from .. import collectives
from ..compat import Array, varying_axes
from ..dim import Dim, Dims, select, union, without
from ..layout import Placement, current
from ..ops import einsum
from ..ops.operands import compute, copied, varying_together
from ..rings import Ring, added_up
from ..tensors import Tensor, local
from ..transfer import fill_padding, pad_to


def product(x: Tensor, weight: Tensor, over: Sequence[str], names: Mapping[str, str]) -> Tensor:
    """Multiplies by a parameter and sums over dims, in rings where the layout asks for them; renames the result.

    Communication: a pending sum if a summed dim is split. In a ring, permutes in place of a gather of x or of a
    reduce-scatter of the result.
    """
    if current().layout.rings and collectives.can_stay_pending(x.dtype) and not x._pending and x._origin is None:
        dim = _gathered_dim(x, weight, over)
        if dim is not None:
            return _of_blocks(x, weight, over, dim).rename(**names)
        dims = _scattered_dim(x, weight, over, names)
        if dims is not None:
            return _to_blocks(x, weight, over, *dims)
    return einsum(x, weight, over=over).rename(**names)


def _gathered_dim(x: Tensor, weight: Tensor, over: Sequence[str]) -> Dim | None:
    """Returns the one dim of x that would be gathered, if a ring may do it.

    The product has to vary over its axes: it is split over them, or each processor has a copy of the parameter, and
    gradients are sums over copies. All such maps would share one gather, so they share the blocks. A product that does
    not vary takes an x that all have alike, which is a gather of its own without rings too.
    """
    placement, wanted = local(x)[1], current().placement(x.dims)
    changed = [dim for dim, now, then in zip(x.dims, placement, wanted, strict=True) if now != then]
    if len(changed) != 1 or wanted.of(changed[0]) or not _is_long(changed[0], placement):
        return None
    (dim,) = changed
    is_plain = dim.name not in over and dim not in weight.dims
    vary = varying_together([x, weight]) | (local(weight)[1].axes & copied.value)  # as `compute` does
    return dim if is_plain and vary.issuperset(placement.of(dim)) else None


def _scattered_dim(
    x: Tensor, weight: Tensor, over: Sequence[str], names: Mapping[str, str]
) -> tuple[Dim, Placement] | None:
    """Returns the one dim along which the result would be reduce-scattered, and where, if a ring may do it."""
    result, setting = _result(x, weight, over), current()
    renamed = tuple(Dim(names.get(dim.name, dim.name), dim.size) for dim in result)
    plain, target = setting.placement(result), setting.placement(renamed)
    changed = [place for place, (now, then) in enumerate(zip(plain, target, strict=True)) if now != then]
    if len(changed) != 1 or plain[changed[0]] or not _is_long(renamed[changed[0]], target):
        return None
    dim, axes = result[changed[0]], set(target[changed[0]])
    every = union(x.dims, weight.dims)
    pending = setting.placement(every, operands=(x.dims, weight.dims)).over(select(every, over))
    return (dim, target) if axes <= set(pending) and dim in x.dims and dim not in weight.dims else None


def _is_long(dim: Dim, placement: Placement) -> bool:
    """Whether a dim is split over axes of rings alone, and there is something on each of the processors."""
    axes = set(placement.of(dim))
    return bool(axes) and axes <= set(current().layout.rings) and dim.size >= placement.count(dim) > 1


def _of_blocks(x: Tensor, weight: Tensor, over: Sequence[str], dim: Dim) -> Tensor:
    """Multiplies each block of x along a dim as it comes around."""
    array, placement = local(x)
    ring = Ring(placement.mesh, placement.of(dim), x.dims.index(dim))
    parts: list[Tensor] = []

    def multiply(*arrays: Array) -> Array:
        *blocks, matrix = arrays
        with ring.scope():
            parts[:] = [einsum(Tensor(a, dims), Tensor(matrix, weight.dims), over=over) for a in blocks]
            into = Ring(ring.mesh, ring.axes, parts[0].dims.index(small))
            whole = _joined([part._array for part in parts], into)
        return lax.slice_in_dim(whole, 0, dim.size, axis=into.position)

    small, dims = _smaller(x.dims, dim, placement.block(dim))
    make = lambda array: _around(fill_padding(array, placement, (dim,)), ring)  # noqa: E731
    blocks = collectives.once(array, ("ring", ring, placement.dims), make)  # for all maps of x
    whole = compute(multiply, [*(Tensor(block, dims) for block in blocks), weight])
    return Tensor(whole, _result(x, weight, over), pending=parts[0]._pending)


def _to_blocks(x: Tensor, weight: Tensor, over: Sequence[str], dim: Dim, target: Placement) -> Tensor:
    """Sends around what each processor adds to each block of the result along a dim."""
    place = _result(x, weight, over).index(dim)
    ring = Ring(target.mesh, target[place], x.dims.index(dim))
    block = -(-dim.size // ring.size)
    _, dims = _smaller(x.dims, dim, block)
    pending: set[str] = set()

    def multiply(array: Array, matrix: Array) -> Array:
        array = pad_to(collectives.to_copies(array, frozenset(ring.axes)), ring.position, block * ring.size)
        pairs = zip(_distances(ring), _blocks_of(array, ring), strict=True)
        blocks = {distance % ring.size: part for distance, part in pairs}

        def partial(distance: int) -> Array:
            part = einsum(Tensor(blocks[distance], dims), Tensor(matrix, weight.dims), over=over)
            pending.update(part._pending)
            return part._array

        return fill_padding(added_up(partial, ring), target, (target.dims[place],))

    whole = compute(multiply, [x, weight])
    return Tensor(whole, target.dims, pending=frozenset(pending) - set(ring.axes))


def _smaller(dims: Dims, dim: Dim, block: int) -> tuple[Dim, Dims]:
    """Returns the dim of one block, and dims that have it in the place of the whole one."""
    small = Dim(dim.name, block)
    return small, tuple(small if d == dim else d for d in dims)


def _result(x: Tensor, weight: Tensor, over: Sequence[str]) -> Dims:
    every = union(x.dims, weight.dims)
    return without(every, select(every, over))


def _distances(ring: Ring) -> list[int]:
    """Returns how far each block comes, this processor's own first, in the order in which they come."""
    return sorted((0, *(step * hops for step, count in ring.ways for hops in range(1, count + 1))), key=abs)


def _join(blocks: Sequence[Array], ring: Ring) -> Array:
    """Puts the blocks, in the order in which they come, where they belong."""
    shape = list(blocks[0].shape)
    shape[ring.position] *= ring.size
    whole = collectives.to_copies(jnp.zeros(shape, blocks[0].dtype), varying_axes(blocks[0]))
    for distance, block in zip(_distances(ring), blocks, strict=True):
        start = ring.start(distance, block.shape[ring.position])
        whole = lax.dynamic_update_slice_in_dim(whole, block, start, ring.position)
    return whole


def _cut(whole: Array, ring: Ring) -> list[Array]:
    """Cuts the blocks out again."""
    block, at = whole.shape[ring.position] // ring.size, ring.position
    return [lax.dynamic_slice_in_dim(whole, ring.start(d, block), block, at) for d in _distances(ring)]


# The plain derivatives would copy the whole for each block. Forward there are views alone, which a policy knows.
_joined, _blocks_of = (jax.custom_vjp(fn, nondiff_argnums=(1,)) for fn in (_join, _cut))
_joined.defvjp(lambda blocks, ring: (_join(blocks, ring), None), lambda ring, _, ct: (_blocks_of(ct, ring),))
_blocks_of.defvjp(lambda whole, ring: (_cut(whole, ring), None), lambda ring, _, cts: (_joined(cts, ring),))


def _around(block: Array, ring: Ring) -> list[Array]:
    """Returns the blocks, this processor's first, as they come."""
    blocks = {0: block}
    for distance in _distances(ring)[1:]:
        step = 1 if distance > 0 else -1
        blocks[distance] = ring.send(blocks[distance - step], step)
    return list(blocks.values())
