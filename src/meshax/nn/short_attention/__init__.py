"""Attention over short sequences on Hopper GPUs, in Pallas (Mosaic GPU): one kernel forward, one backward.

Arrays are [batch, length, heads, d], as the products of a model yield them. A block has 64 positions, and a thread of
Pallas is a warpgroup: two of them compute, a third only moves blocks into shared memory.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from .backward import backward
from .forward import forward

_FASTER = ((256, 256),)  # positions and the size of a head


def takes(length: int, d: int, dtype: Any) -> bool:
    """Whether the kernels were measured to be faster than cuDNN's, for positions that see only those before them.

    They work on other multiples of 128 positions, on heads of 128, on float16 and without that restriction, too.
    """
    return (length, d) in _FASTER and dtype == jnp.bfloat16


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5, 6))
def short_attention(
    q: Any, k: Any, v: Any, segments: Any, scale: float, causal: bool, interpret: Any = None
) -> jax.Array:
    """Returns for each query the mean of the values, weighted by a softmax.

    Args:
        q: queries, [batch, length, heads, d]: whole pairs of blocks, heads of 128 or 256, 16-bit numbers.
        k: keys, likewise.
        v: values, likewise.
        segments: the document of each position, [batch, length], or None: others are not seen.
        scale: what the scores are multiplied by.
        causal: whether a position sees only itself and those before it.
        interpret: parameters of Pallas's interpreter, to run on CPUs.
    """
    return forward(q, k, v, segments, scale, causal, interpret)[0]


def _first(q: Any, k: Any, v: Any, segments: Any, scale: float, causal: bool, interpret: Any) -> Any:
    out, logs = forward(q, k, v, segments, scale, causal, interpret)
    return out, (q, k, v, segments, out, logs)


def _last(scale: float, causal: bool, interpret: Any, kept: Any, cotangent: Any) -> Any:
    return (*backward(*kept, cotangent, scale, causal, interpret), None)


short_attention.defvjp(_first, _last)
