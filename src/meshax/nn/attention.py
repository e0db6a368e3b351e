"""Attention: multi-head, multi-query and grouped, by names.

Queries are [batch, positions, (kv_heads), heads, d_kv]; keys and values have `memory` in place of `positions`, and
those of the head dims that they do not share. Everything else follows from names: with one head of keys for all heads
of queries the keys simply lack the dim. Which kernel computes it is decided in `attention_kernels.py`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax

from ..dim import Dim, Dims
from ..errors import ArgumentError
from ..layout import current
from ..ops import arange, transpose, unstack
from ..ops import slice as slice_
from ..sources import operation
from ..tensors import Tensor
from .attention_kernels import Visibility, attend
from .cache import Filling, Reading, Recalled, Remembered, Stepping
from .dropout import Dropout
from .linear import Linear, side_by_side
from .norms import RMSNorm
from .positions import RelativeBias, Rotation, rotary
from .step_attention import PARTS

QUERIES, MEMORY = "positions", "memory"


class Attention(eqx.Module):
    """Attention of each position to others, or to a memory.

    Communication: a pending sum of the result if the heads are split; if positions are split, keys and values go
    around in a ring (see `attention_kernels.py`).
    """

    q: Linear
    k: Linear | None  # None, and so are the values: the queries' map stands for all three
    v: Linear | None
    out: Linear
    relative: RelativeBias | None
    dropout: Dropout
    causal: bool = eqx.field(static=True)
    window: int | None = eqx.field(static=True)
    rotation: Rotation | None = eqx.field(static=True)
    q_norm: RMSNorm | None = None
    k_norm: RMSNorm | None = None
    scale: float | None = eqx.field(static=True, default=None)

    @classmethod
    @operation
    def init(
        cls,
        key: Any,
        d_model: Dim,
        heads: Dim,
        d_kv: Dim,
        stack: Dims = (),
        *,
        kv_heads: int | None = None,
        causal: bool = True,
        window: int | None = None,
        rotary: bool | Rotation = False,
        relative: bool = False,
        both_ways: bool = False,
        dropout: float = 0.0,
        biases: Collection[str] = (),
        norm_epsilon: float | None = None,
        dropout_shared: Sequence[str] = (),
        scale: float | None = None,
    ) -> "Attention":
        """Makes one.

        Args:
            key: chooses the parameters.
            d_model: the dim of what goes in and comes out.
            heads: the heads of queries.
            d_kv: the size of a head.
            stack: dims of layers made at once.
            kv_heads: the heads of keys and values, if fewer: 1 for multi-query, a divisor of the heads for grouped.
            causal: whether a position sees only itself and those before it.
            window: how many positions back it sees, itself included.
            rotary: whether queries and keys are turned by their positions, or how.
            relative: whether distances have a learned bias.
            both_ways: whether those to later positions have others, though it is causal: calls may have a prefix.
            dropout: of the attention weights.
            biases: which of the maps "q", "k", "v" and "out" have a bias.
            norm_epsilon: of an RMS norm over the queries and the keys of a head; None: they have none.
            dropout_shared: dims along which the same weights are dropped.
            scale: what the products of queries and keys are multiplied by; None: one over the root of the size of a
                head. The queries begin so that the products are as large with any.
        """
        queries, keys = head_dims(heads, kv_heads)
        names = jax.random.split(key, 5)
        norms = [None if norm_epsilon is None else RMSNorm.init((d_kv,), stack, norm_epsilon) for _ in range(2)]
        smaller = 1.0 if scale is None else d_kv.size**-0.5 / scale
        return cls(
            Linear.init(names[0], (d_model,), (*queries, d_kv), stack, smaller, bias="q" in biases),
            Linear.init(names[1], (d_model,), (*keys, d_kv), stack, bias="k" in biases),
            Linear.init(names[2], (d_model,), (*keys, d_kv), stack, bias="v" in biases),
            Linear.init(names[3], (*queries, d_kv), (d_model,), stack, bias="out" in biases),
            RelativeBias.init(names[4], queries, stack, both_ways=both_ways or not causal) if relative else None,
            Dropout(dropout, tuple(dropout_shared)),
            causal,
            window,
            Rotation() if rotary is True else rotary or None,
            norms[0],
            norms[1],
            scale,
        )

    @operation
    def __call__(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        positions: Tensor | None = None,
        segments: Tensor | None = None,
        memory_segments: Tensor | None = None,
        prefix: int = 0,
        key: Any = None,
        names: Mapping[str, str] | None = None,
    ) -> Tensor:
        """Attends.

        Args:
            x: what asks, [..., positions, d_model].
            memory: what is asked, [..., memory, d_model]; by default x itself.
            positions: where each query stands in its document; by default counted from 0.
            segments: the document each query belongs to: others are not seen.
            memory_segments: the same of the memory.
            prefix: how many positions, the first ones, all others see, though it is causal or has a window.
            key: for dropout.
            names: other names for dims of the result.
        """
        at = arange(x.dim(QUERIES)) if positions is None else positions
        own = memory is None
        source = x if memory is None else memory
        length = QUERIES if own else MEMORY
        there = at if own else arange(source.dim(MEMORY))
        q, k, v, _ = self._projected(x, source, at, there, max(x.dim(QUERIES).size, source.dim(length).size))
        beside = segments if own else memory_segments
        visible = Visibility(self.causal and own, self.window, segments, beside, prefix)
        bias = None if self.relative is None else (self.relative, at, there)
        mixed = attend(
            q, k, v, d_kv=self.q.after[-1], length=length, visible=visible, bias=bias, dropout=self.dropout, key=key,
            scale=self.scale,
        )  # fmt: skip
        return self.out(mixed, names)

    @operation
    def cached(self, x: Tensor, cache: Filling | Stepping | Reading, positions: Tensor) -> tuple[Tensor, Any]:
        """Attends to what a cache holds and to x itself, which the cache takes in.

        Args:
            x: what asks, [slots.., positions, d_model].
            cache: what is kept of the tokens before.
            positions: where each token of x stands.
        """
        q, k, v, asked = self._projected(x, x, positions, positions, cache.places)
        how: dict[str, Any] = {"d_kv": self.q.after[-1], "window": self.window, "bias": self.relative}
        how |= {"asked": asked} if isinstance(cache, Stepping) else {}
        mixed, kept = cache.attend(q, k, v, positions, scale=self.scale, **how)
        return self.out(mixed), kept

    @operation
    def remembered(self, memory: Tensor, room: Remembered) -> Remembered:
        """Returns the keys and values of a memory, so that they are computed once, in as much room as there is.

        Args:
            memory: what will be asked, [..., memory, d_model]; no query is turned by its position.
            room: where they go; a stack of layers has one of them all.
        """
        assert self.k is not None and self.v is not None
        k, v = self.k(memory), self.v(memory)
        return room.holding(k if self.k_norm is None else self.k_norm(k), v)

    @operation
    def recalling(self, x: Tensor, memory: Recalled) -> Tensor:
        """Attends to a memory whose keys and values are kept.

        Args:
            x: what asks, [slots.., positions, d_model].
            memory: what is asked.
        """
        q = self.q(x)
        q = q if self.q_norm is None else self.q_norm(q)
        return self.out(memory.attend(q, d_kv=self.q.after[-1], scale=self.scale))

    def _projected(
        self, x: Tensor, source: Tensor, at: Tensor, there: Tensor, length: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Returns queries, keys and values, turned by their positions in examples of some length.

        Last comes the product that all of them are parts of, if there is one and nothing else was done to it.
        """
        q, k, v, every = self._products(x, source)
        q = q if self.q_norm is None else self.q_norm(q)
        k = k if self.k_norm is None else self.k_norm(k)
        if self.rotation is not None:
            how = self.q.after[-1], self.rotation, length
            q, k = rotary(q, at, *how), rotary(k, there, *how)
        is_as_it_was = self.rotation is None and self.q_norm is None and self.k_norm is None
        return q, k, v, every if is_as_it_was else None

    def _products(self, x: Tensor, source: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        if self.k is not None and self.v is not None:
            return self.q(x), self.k(source), self.v(source), None
        every = self.q(x)
        heads = every.dim(PARTS).size - 2
        k, v = unstack(slice_(every, PARTS, heads, 2), PARTS)
        q = slice_(every, PARTS, 0, heads)
        own = [name for name in self.out.before if name not in self.q.after]  # the heads that share keys
        q = q.rename(**{PARTS: own[0]}) if own else unstack(q, PARTS)[0]
        return transpose(q, (*(d for d in q.dims if d.name not in self.out.before), *self.out.before)), k, v, every

    def joined(self) -> "Attention":
        """Returns the same attention to itself, with one product for queries, keys and values, if it can be one."""
        if self.k is None or self.v is None:
            return self
        maps = self.q, self.k, self.v
        own = tuple(d for d in self.q.weight.dims if d.name in self.q.after and d.name not in self.k.after)
        if len({one.bias is None for one in maps}) > 1 or current().placement(own).axes:
            return self
        return replace(self, q=side_by_side(maps, PARTS), k=None, v=None)


def head_dims(heads: Dim, kv_heads: int | None) -> tuple[Dims, Dims]:
    """Returns the head dims of queries, and of keys and values."""
    if kv_heads is None or kv_heads == heads.size:
        return (heads,), (heads,)
    if kv_heads == 1:
        return (heads,), ()
    if kv_heads < 1 or heads.size % kv_heads:
        raise ArgumentError(
            f"{kv_heads} heads of keys and values do not serve {heads.size} heads of queries.",
            rule="each serves equally many.",
            fix="choose a divisor of the number of heads.",
        )
    groups = Dim("kv_heads", kv_heads)
    return (groups, Dim(heads.name, heads.size // kv_heads)), (groups,)
