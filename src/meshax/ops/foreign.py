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
from ..compat import Array
from ..dims import Dims
from ..layout import Placement, Setting, block_size
from ..transfer import is_real, uneven


def call_on_slices(
    fn: Callable[..., Array], arrays: Sequence[Array], operands: Sequence[tuple[Dims, Placement]], setting: Setting
) -> Array:
    """Calls a function so that nothing flows back through padding; what the padding of its result holds is open.

    Args:
        fn: the function.
        arrays: the slices it takes.
        operands: the dims of each slice, and how they are placed.
        setting: the mesh.

    Communication: none, if every processor holds an element of each dim; otherwise an all-reduce of one element of the
    uneven dim, for each operand that has it.
    """
    return fn(*(_repeat_first(x, *placed, setting) for x, placed in zip(arrays, operands, strict=True)))


def _repeat_first(x: Array, shape: Dims, placement: Placement, setting: Setting) -> Array:
    for position, dim, axes in uneven(setting, shape, placement):
        block, count = x.shape[position], setting.mesh.count(axes)
        if block != block_size(dim.size, count):
            continue  # one element, to be broadcast
        first = lax.stop_gradient(lax.slice_in_dim(x, 0, 1, axis=position))
        if block * (count - 1) >= dim.size:  # some processors hold nothing but padding
            first = collectives.replicate(first, axes)
        inside = is_real(setting, dim, axes).reshape([-1 if i == position else 1 for i in range(x.ndim)])
        x = jnp.where(inside, x, first)
    return x
