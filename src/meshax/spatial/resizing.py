"""Images of another size."""

import math
from collections.abc import Mapping
from fractions import Fraction

import jax.numpy as jnp

from ..collectives import LARGEST
from ..compat import Array
from ..dim import Dim, DimLike, find
from ..errors import ArgumentError
from ..layout import block_size, current
from ..ops.operands import compute, integers
from ..tensors import Tensor, check_tensor
from ..transfer import fill_padding, indices
from .padding import taken
from .stretches import Stretches, fetch_stretches, own

__all__ = ["resize"]


def resize(x: Tensor, sizes: Mapping[DimLike, int], method: str = "nearest") -> Tensor:
    """Gives dims other sizes, as `jax.image.resize` does.

    Args:
        x: the tensor.
        sizes: the new size of each dim.
        method: "nearest": the element at the place in question; "linear": between the two around it, and where a dim
            shrinks, a mean weighed by distance (antialiasing).

    >>> from meshax import tensor
    >>> resize(tensor([1.0, 3.0], "length"), {"length": 4}, method="linear").numpy()
    array([1. , 1.5, 2.5, 3. ], dtype=float32)

    Communication: none, if no such dim is split, or if it is nearest by a whole factor and blocks divide; otherwise
    permutes of what lies across a boundary: linear to twice the size, one element on each side.
    """
    check_tensor(x, "mx.resize")
    if method not in ("nearest", "linear"):
        raise ArgumentError(
            f"mx.resize has no method {method!r}.",
            rule='a method is "nearest" or "linear".',
            fix="choose one of these.",
        )
    if not isinstance(sizes, Mapping):
        raise ArgumentError(
            "mx.resize takes the new size of each dim.", values=repr(sizes), fix='write mx.resize(x, {"height": 64}).'
        )
    changes = [(find(x.dims, dim), integers("resize", size=size)[0]) for dim, size in sizes.items()]
    for dim, size in sorted(changes, key=lambda change: Fraction(change[1], change[0].size)):  # shrinking first
        if size < 1:
            raise ArgumentError(f"dim {dim} cannot get the size {size}.", fix="choose a size of at least 1.")
        if size != dim.size:
            x = (_nearest if method == "nearest" else _linear)(x, dim, Dim(dim.name, size))
    return x


def _nearest(x: Tensor, dim: Dim, new: Dim) -> Tensor:
    factor, rest = divmod(new.size, dim.size)
    placement = current().placement(x.dims)
    if not rest and block_size(new.size, placement.count(dim)) == factor * placement.block(dim):
        position, shape = x.dims.index(dim), tuple(new if d == dim else d for d in x.dims)
        return Tensor(compute(lambda array: jnp.repeat(array, factor, position), [x]), shape)
    common = math.gcd(dim.size, new.size)
    old_step, new_step = dim.size // common, new.size // common
    if 2 * old_step * new_step > LARGEST:
        raise ArgumentError(
            f"the elements of dim {dim} that are nearest to {new.size} others cannot be counted in 32 bits.",
            fix="choose sizes with a common divisor, or resize in two steps.",
        )

    def source(places: Array) -> Array:
        """The floor of (place + 1/2) * size / new size: both repeat after a step."""
        turns, rest = places // new_step, places % new_step
        return turns * old_step + (2 * rest + 1) * old_step // (2 * new_step)

    return taken(x, dim, new, source)


def _linear(x: Tensor, dim: Dim, new: Dim) -> Tensor:
    """Weighs the elements around each place by their distance; what is far has the weight zero."""
    x = x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(jnp.float32)
    setting, position = current(), x.dims.index(dim)
    placement, shape = setting.placement(x.dims), tuple(new if d == dim else d for d in x.dims)
    result, count = setting.placement(shape), placement.count(dim)
    reads = _reads(dim, new, count)
    scale = dim.size / new.size
    reach = max(scale, 1.0)
    exact = jnp.finfo(jnp.promote_types(x.dtype, jnp.float32)).dtype  # of the weights: real, if x is complex

    def interpolate(array: Array) -> Array:
        array = fetch_stretches(array, placement, [reads])
        first = own(reads.starts, placement.of(dim)) if reads.is_split else 0
        sources = first + jnp.arange(array.shape[position], dtype=jnp.int32)
        centres = (indices(result, new).astype(exact) + 0.5) * scale - 0.5
        weights = jnp.maximum(1 - jnp.abs(centres[None] - sources[:, None]) / reach, 0)
        weights = jnp.where(((sources >= 0) & (sources < dim.size))[:, None], weights, 0)
        weights = (weights / jnp.maximum(jnp.sum(weights, 0), 1e-3)).astype(array.dtype)
        array = jnp.moveaxis(jnp.tensordot(array, weights, (position, 0)), -1, position)
        return fill_padding(array, result, (new,))

    return Tensor(compute(interpolate, [x]), shape)


def _reads(dim: Dim, new: Dim, count: int) -> Stretches:
    """Returns what each of `count` processors reads, computed without rounding."""
    block, scale = block_size(new.size, count), Fraction(dim.size, new.size)
    reach = scale if scale > 1 else Fraction(1)
    starts, needs = [], []
    for p in range(count):
        first, last = p * block, min((p + 1) * block, new.size) - 1
        low, high = ((place + Fraction(1, 2)) * scale - Fraction(1, 2) for place in (first, last))
        start, end = max(math.floor(low - reach) + 1, 0), min(math.ceil(high + reach), dim.size)
        starts.append(start)
        needs.append(max(end - start, 0) if first <= last else 0)
    return Stretches(dim, tuple(starts), tuple(needs))
