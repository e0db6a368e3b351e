"""Attention of one token of each text to what is kept of it, by one kernel on Hopper GPUs that also keeps the token.

Texts and heads of keys are each for themselves, so they may be split; the places of a text may not.
"""

import math
from typing import Any

import jax

from ...dim import Dim
from ...layout import current
from ...ops import broadcast, concat, transpose
from ...ops import sum as sum_
from ...ops.operands import compute
from ...tensors import Tensor
from ..attention_kernels import on_hopper

PARTS = "parts"  # what a token asks with, its key and its value, beside each other
_QUERIES = "positions"
_lasts = jax.make_user_context(False)  # part of JAX's cache keys


def lasting() -> Any:
    """Returns a context manager for programs that other versions of JAX are to run: Triton's form may change."""
    return _lasts(True)


def has_kernel(q: Tensor, keys: Tensor, read: int) -> bool:
    """Whether the kernel takes these: every processor has all places, and the keys of all its queries to itself."""
    if _lasts.value or not on_hopper():
        return False
    try:
        from .kernel import takes
    except ImportError:  # JAX has announced that Pallas will do without Triton
        return False
    places, alone = keys.dims[-3:-1], tuple(d for d in q.dims if d not in keys.dims)
    is_split = any(current().placement(dims).axes for dims in (places, alone))
    return not is_split and q.dtype == keys.dtype and takes(read, keys.dims[-1].size, q.dtype)


def beside_each_other(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Returns the queries, keys and values of a token as one tensor, [.., parts, (heads of keys), d_kv].

    Args:
        q: [.., positions:1, heads.., d_kv].
        k: [.., positions:1, (heads of keys), d_kv].
        v: likewise.
    """
    alone = [d.name for d in q.dims if d not in k.dims]
    several = [q.rename(**{alone[0]: PARTS}) if alone else _with_parts(q), _with_parts(k), _with_parts(v)]
    heads = [d.name for d in k.dims[[d.name for d in k.dims].index(_QUERIES) + 1 :]]
    first = [d.name for d in k.dims if d.name not in heads]
    return concat([transpose(x, (*first, PARTS, *heads)) for x in several], PARTS)


def _with_parts(x: Tensor) -> Tensor:
    return broadcast(x, (*x.dims[:-1], Dim(PARTS, 1), x.dims[-1]))


def attend_and_keep(
    q: Tensor, asked: Tensor, keys: Tensor, values: Tensor, at: Tensor, *, read: int, window: int | None, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns for each query the mean of the values, and the keys and values with the token in its place.

    Args:
        q: the queries of a token of each text, [slots.., positions:1, heads.., d_kv]: what the result is like.
        asked: the same and the token's keys and values, [slots.., positions:1, parts, (heads of keys), d_kv].
        keys: of the tokens before, [slots.., (heads of keys), pages, memory, d_kv].
        values: likewise.
        at: where the token stands, [slots..].
        read: how many places are read.
        window: how many positions a token sees, itself included; None: all.
        scale: what the scores are multiplied by.

    Communication: none.
    """
    from . import kernel

    alone = [d.name for d in q.dims if d not in keys.dims and d.name != _QUERIES]
    parts, (*own, _, _, d_kv) = asked.dim(PARTS), keys.dims
    asked = transpose(sum_(asked, _QUERIES), (*at.dims, PARTS, *own[len(at.dims) :], d_kv))

    def call(asked: Any, keys: Any, values: Any, at: Any) -> Any:
        texts, heads, d = math.prod(at.shape), math.prod(keys.shape[at.ndim : -3]), keys.shape[-1]
        flat = asked.reshape(texts, parts.size, heads, d)
        k, v = (x.reshape(texts, heads, -1, d) for x in (keys, values))
        mixed, *kept = kernel.step_attention(flat, k, v, at.reshape(-1), read=read, window=window, scale=scale)
        return mixed.reshape(*keys.shape[:-3], -1, d), *(x.reshape(keys.shape) for x in kept)

    mixed, *kept = compute(call, [asked, keys, values, at])
    means = Tensor(mixed, (*own, Dim(PARTS, parts.size - 2), d_kv))
    means = means.rename(**{PARTS: alone[0]}) if alone else sum_(means, PARTS)
    return broadcast(means, q.dims), Tensor(kept[0], keys.dims), Tensor(kept[1], values.dims)
