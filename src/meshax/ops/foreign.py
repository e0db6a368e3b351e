"""Calling functions that are not ours on slices that hold padding.

Whatever such a function does with padding (divide by it, take its logarithm), none of it may reach a gradient: neither
that of an operand which lacks the uneven dim, nor that of an array which the function closes over. Masking the result
is not enough, as zero times infinity is NaN. So padding repeats an element of the dim, where a derivative is as finite
as it is elsewhere.
"""

from collections.abc import Callable, Sequence

import jax.numpy as jnp
from jax import lax

from .. import collectives
from ..checking.derivatives import watching
from ..compat import Array
from ..layout import Placement
from ..transfer import along, is_real


def call_on_slices(fn: Callable[..., Array], arrays: Sequence[Array], placements: Sequence[Placement]) -> Array:
    """Calls a function so that nothing flows back through padding; what the padding of its result holds is open.

    Communication: none, if every processor holds an element of each dim; otherwise an all-reduce of one element of the
    uneven dim, for each operand that has it.
    """
    with watching(frozenset(), but=frozenset().union(*(placement.axes for placement in placements))):
        return fn(*map(_repeat_first, arrays, placements))


def _repeat_first(x: Array, placement: Placement) -> Array:
    for dim in placement.uneven:
        position, block = placement.dims.index(dim), placement.block(dim)
        if x.shape[position] != block:
            continue  # one element, to be broadcast
        first = lax.stop_gradient(lax.slice_in_dim(x, 0, 1, axis=position))
        if block * (placement.count(dim) - 1) >= dim.size:  # some processors hold nothing but padding
            first = collectives.replicate(first, placement.of(dim))
        x = jnp.where(along(is_real(placement, dim), position, x.ndim), x, first)
    return x
