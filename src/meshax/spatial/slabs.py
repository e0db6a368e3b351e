"""Slabs: stretches of a dim that a processor computes as if they were examples.

A TPU stores tiles of 8 x 128 elements. Where it computes how a convolution's kernel changes, or a pool's operand, the 8
are examples and the 128 channels: of one large volume, seven eighths or more of each tile are padding. Cut into
slabs along one dim it is eight examples, and full. All of this is local: what is sent, and what comes out, stays.
"""

import math
from collections.abc import Callable, Sequence

import jax.numpy as jnp
from jax import lax

from ..compat import Array
from ..layout import current
from .sliding import Local

EXAMPLES = 8  # rows of a tile
LEAST = 8  # times what slabs share is their length, or else they cost more than they save


def count_slabs(num_examples: int, length: int, shared: int = 0) -> int:
    """Returns how many slabs a dim is cut into, of which each shares so many places with the next; 1: it is not cut."""
    count = EXAMPLES // math.gcd(EXAMPLES, num_examples)
    is_long = length >= count * LEAST * max(shared, 1) and length % count == 0
    return count if num_examples < EXAMPLES and is_long and current().mesh.platform == "tpu" else 1


def cut(x: Array, position: int, count: int, shared: int = 0) -> Array:
    """Makes examples of slabs: of [batch, .., count * n + shared, ..] becomes [batch * count, .., n + shared, ..]."""
    x = jnp.moveaxis(x, position, 1)
    length = x.shape[1] - shared
    n = length // count
    slabs = x[:, :length].reshape(-1, n, *x.shape[2:])
    if shared:  # the first places of the next slab
        ahead = jnp.pad(x[:, n:], [(0, 0), (0, n - shared), *[(0, 0)] * (x.ndim - 2)]).reshape(slabs.shape)
        slabs = lax.concatenate([slabs, ahead[:, :shared]], 1)
    return jnp.moveaxis(slabs, 1, position)


def join(x: Array, position: int, count: int) -> Array:
    """Makes one dim of slabs again."""
    x = jnp.moveaxis(x, position, 1)
    return jnp.moveaxis(x.reshape(-1, count * x.shape[1], *x.shape[2:]), 1, position)


def by_slabs(convolve: Callable[..., Array], x: Array, steps: Sequence[Local], taps: Sequence[int]) -> Array:
    """Convolves a local [batch, windows, channels], cut along the longest dim that can be cut.

    Windows that slide by one place share what they reach beyond; those of a transpose share nothing, if none overlap.
    """
    paddings, best = [step.padding for step in steps], (0, 1, 0, 0)
    for i, (step, tap) in enumerate(zip(steps, taps, strict=True)):
        reach, size, length, shared = (tap - 1) * step.tap_dilation + 1, x.shape[i + 1], 0, 0
        if step.operand_dilation > 1 and step.padding == (reach - 1, step.operand_dilation - 1):
            length = size if reach <= step.operand_dilation else 0
        elif step.operand_dilation == step.stride == 1:
            length, shared = size + sum(step.padding) - reach + 1, reach - 1
        best = max(best, (length, count_slabs(x.shape[0], length, shared), i, shared), key=lambda cut: (cut[1], cut[0]))
    _, count, i, shared = best
    if count == 1:
        return convolve(x, padding=paddings)
    if steps[i].operand_dilation == 1:
        margins = [(0, 0, 0), *((*paddings[j], 0) if j == i else (0, 0, 0) for j in range(len(steps))), (0, 0, 0)]
        x, paddings[i] = lax.pad(x, jnp.zeros((), x.dtype), margins), (0, 0)
    return join(convolve(cut(x, i + 1, count, shared), padding=paddings), i + 1, count)
