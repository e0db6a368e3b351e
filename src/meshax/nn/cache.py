"""Keys and values that are kept, so that the next token need not compute those of the tokens before it again.

A cache has slots, one for each text that is being written, and in each slot places for tokens, cut into pages: its dims
are [slots.., (kv_heads), pages, memory, d_kv]. The layout places them by name as it places everything: heads split over
an axis are read by all its processors at once, and so is a split `memory`, of which each processor holds a part of
every page. Pages are never split, so that a program may read the first few alone.

The token at position n stands at place n mod (number of places): where the layers see only a window, the newest take
the places of those that are out of sight. What place holds which position follows from the position of the newest
token of the slot, so places are never cleared.

What a text is written from has a cache of its own, which does not change: a memory that is asked beside, or a prefix,
whose tokens the text sees as if they stood before its own. All beams of a text have one.
"""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax

from ..compat import Array
from ..dim import Dim, Dims, without
from ..layout import current
from ..ops import arange, broadcast, einsum, exp, gather, maximum, reshape, softmax, transpose, where, zeros
from ..ops import max as max_
from ..ops import slice as slice_
from ..ops import sum as sum_
from ..ops.operands import compute
from ..sources import operation
from ..spatial import pad
from ..tensors import Tensor
from .attention_kernels import HIDDEN, Visibility, attend, match
from .dropout import Dropout
from .step_attention import attend_and_keep, beside_each_other, has_kernel

PAGES, MEMORY, PLACES, QUERIES = "pages", "memory", "places", "positions"
_KEPT = (PAGES, MEMORY, PLACES)  # dims of what is kept for the tokens of a text


class KeyValues(eqx.Module):
    """The keys and values of a layer, or of a stack of them: [(layers), slots.., (kv_heads), pages, memory, d_kv]."""

    keys: Tensor
    values: Tensor

    @classmethod
    def empty(
        cls, slots: Dims, heads: Dims, d_kv: Dim, places: int, page: int, dtype: Any, stack: Dims = ()
    ) -> "KeyValues":
        """Makes an empty cache.

        Args:
            slots: the dims of the texts; `batch`, and for beams one more.
            heads: the heads of keys and values.
            d_kv: the size of a head.
            places: how many tokens there is to be room for, at least.
            page: how many of them a page holds.
            dtype: of the numbers.
            stack: dims of layers made at once.

        Communication: none.
        """
        shape = (*stack, *slots, *heads, Dim(PAGES, -(-places // page)), Dim(MEMORY, page), d_kv)
        return cls(zeros(shape, dtype), zeros(shape, dtype))

    @property
    def places(self) -> int:
        """How many tokens there is room for."""
        return self.keys.dim(PAGES).size * self.keys.dim(MEMORY).size


class Filling(eqx.Module):
    """A cache that takes in the beginnings of texts, whole: [slots.., positions], each of a length of its own."""

    store: KeyValues
    lengths: Tensor
    before: "Recalled | None" = None  # what the texts see before themselves

    @property
    def places(self) -> int:
        """How many tokens there is room for, with those before."""
        return self.store.places + _places(self.before)

    @operation
    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        at: Tensor,
        *,
        d_kv: str,
        window: int | None,
        bias: Any,
        scale: float | None = None,
    ) -> tuple[Tensor, KeyValues]:
        """Attends as without a cache, and keeps the last keys and values that there are places for."""
        visible = Visibility(True, window, None, None)
        if self.before is None:
            biased = None if bias is None else (bias, at, at)
            how: dict[str, Any] = {"d_kv": d_kv, "length": QUERIES, "dropout": Dropout(0.0), "scale": scale}
            mixed = attend(q, k, v, visible=visible, bias=biased, **how)
        else:
            own, values = k.rename(positions=MEMORY), v.rename(positions=MEMORY)
            scores = match(own, _scaled(q, d_kv, scale), d_kv)
            scores = scores if bias is None else scores + bias(at, at.rename(positions=MEMORY))
            seen = visible.mask(arange(q.dim(QUERIES)), arange(own.dim(MEMORY)), None)
            asked = self.before.scores(q, at, d_kv=d_kv, bias=bias, scale=scale)
            mixed = _mixed(q, (where(seen, scores, HIDDEN), values), (asked, self.before.store.values))
        held = positions_held(self.store.keys, self.lengths - 1)
        keys, values = (
            transpose(gather(new, held, QUERIES), old.dims)
            for new, old in ((k, self.store.keys), (v, self.store.values))
        )
        return mixed, KeyValues(keys.astype(self.store.keys.dtype), values.astype(self.store.values.dtype))


class Stepping(eqx.Module):
    """A cache that takes in one token of each text, and is asked by it: [slots.., positions:1]."""

    store: KeyValues
    at: Tensor  # where the token of each slot stands in its text, [slots..]
    num_pages: int = eqx.field(static=True)  # how many pages are read: the others hold nothing yet
    before: "Recalled | None" = None  # what the texts see before themselves

    @property
    def places(self) -> int:
        """How many tokens there is room for, with those before."""
        return self.store.places + _places(self.before)

    @operation
    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        at: Tensor,
        *,
        d_kv: str,
        window: int | None,
        bias: Any,
        scale: float | None = None,
        asked: Tensor | None = None,
    ) -> tuple[Tensor, KeyValues]:
        """Writes the token's keys and values, and attends to all that are there.

        What is `asked`, if somebody has it, are queries, keys and values beside each other.

        Communication: none, unless `memory` is split: then all-reduces of a maximum and a sum for each head, and a
        pending sum of the result.
        """
        read = self.num_pages * self.store.keys.dim(MEMORY).size
        if bias is None and self.before is None and has_kernel(q, self.store.keys, read):
            asked = beside_each_other(q, k, v) if asked is None else asked
            by = q.dim(d_kv).size ** -0.5 if scale is None else scale
            kept = self.store.keys, self.store.values
            mixed, *both = attend_and_keep(q, asked, *kept, self.at, read=read, window=window, scale=by)
            return mixed, KeyValues(*both)
        keys, values = _write(self.store.keys, k, self.at), _write(self.store.values, v, self.at)
        (read_keys, read_values), there, seen = self._read(keys, values)
        over = [d.name for d in there.dims if d.name in _KEPT]
        in_rows = self.before is None and over == [PLACES]
        asks = sum_(q, QUERIES) if in_rows else q  # there is one query: its dim would keep the compiler from fusing
        scores = self._scores(read_keys, _scaled(asks, d_kv, scale), d_kv)
        if bias is not None:
            place = there if self.before is None else there + self.before.lengths
            scores = scores.astype(jnp.float32) + bias(at, place)
        if window is not None:
            seen = seen & (self.at - there < window)
        if self.before is not None:
            own = where(seen, scores.astype(jnp.float32), HIDDEN), read_values
            asked = self.before.scores(q, at, d_kv=d_kv, bias=bias, scale=scale)
            return _mixed(q, own, (asked, self.before.store.values)), KeyValues(keys, values)
        mixed = einsum(_shares(scores, seen, over).astype(values.dtype), read_values, over=over)
        return (broadcast if in_rows else transpose)(mixed, q.dims), KeyValues(keys, values)

    def _scores(self, keys: Tensor, q: Tensor, d_kv: str) -> Tensor:
        several = [d for d in without(q.dims, keys.dims) if d.size > 1]  # queries of a key
        if several and current().mesh.platform == "gpu":
            order = [d for d in (*q.dims, *keys.dims) if d.name != d_kv]
            shared = [d for d in order if d in q.dims and d in keys.dims]
            return einsum(q, keys, out=list(dict.fromkeys((*shared, *order))))  # a row of places for each query
        return match(keys, q, d_kv)  # this way round the keys stay as they are

    def _read(self, keys: Tensor, values: Tensor) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
        """Returns the keys and values of the pages that are read, the positions they are of, and where there are any.

        Where a processor has all places of its pages they are one dim, a row, to the compiler too: it takes faster
        kernels for rows, and one instead of four for their softmax.
        """
        pages, memory = keys.dim(PAGES), keys.dim(MEMORY)
        if current().placement(keys.dims).of(memory):
            keys, values, held = (
                _first(x, PAGES, self.num_pages) for x in (keys, values, positions_held(keys, self.at))
            )
            return (keys, values), held, held >= 0
        row = Dim(PLACES, pages.size * memory.size)
        dims = [row if d == pages else d for d in keys.dims if d != memory]
        num_read = self.num_pages * memory.size
        place = arange(Dim(PLACES, num_read))
        held = self.at - (self.at - place) % row.size
        rows = tuple(_first(as_it_is(reshape(x, dims)), PLACES, num_read) for x in (keys, values))
        return rows, held, self.at >= place  # which is where held is not negative, for less


class Remembered(eqx.Module):
    """The keys and values of sources: [(layers), slots, (kv_heads), memory, d_kv]; they do not change."""

    keys: Tensor
    values: Tensor

    @classmethod
    def empty(cls, slots: Dims, heads: Dims, d_kv: Dim, places: int, dtype: Any, stack: Dims = ()) -> "Remembered":
        """Makes room for sources of so many tokens; arguments are those of `KeyValues.empty`.

        Communication: none.
        """
        shape = (*stack, *slots, *heads, Dim(MEMORY, places), d_kv)
        return cls(zeros(shape, dtype), zeros(shape, dtype))

    @property
    def places(self) -> int:
        """How many tokens there is room for."""
        return self.keys.dim(MEMORY).size

    def holding(self, keys: Tensor, values: Tensor) -> "Remembered":
        """Returns keys and values of a memory of at most as many tokens in this room."""
        room = self.keys.dim(MEMORY).size - keys.dim(MEMORY).size
        filled = (transpose(pad(x, MEMORY, 0, room), self.keys.dims).astype(self.keys.dtype) for x in (keys, values))
        return Remembered(*filled)


class Reading(eqx.Module):
    """Room that takes in sources, whole: [slots, positions], each of a length of its own; a token sees all others."""

    store: Remembered
    lengths: Tensor
    after: int = eqx.field(static=True)  # how many places the texts have that come after

    @property
    def places(self) -> int:
        """How many tokens there is room for, with those after."""
        return self.store.places + self.after

    @operation
    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        at: Tensor,
        *,
        d_kv: str,
        window: int | None,
        bias: Any,
        scale: float | None = None,
    ) -> tuple[Tensor, Remembered]:
        """Attends to all tokens of a source, whatever the window, and keeps their keys and values."""
        counts = (arange(q.dim(QUERIES)) < self.lengths).astype(jnp.int32)
        visible = Visibility(False, None, counts, counts)
        how: dict[str, Any] = {"d_kv": d_kv, "length": QUERIES, "dropout": Dropout(0.0), "scale": scale}
        mixed = attend(q, k, v, visible=visible, bias=None if bias is None else (bias, at, at), **how)
        return mixed, self.store.holding(k.rename(positions=MEMORY), v.rename(positions=MEMORY))


class Recalled(eqx.Module):
    """Sources that are asked, of which so many tokens each count; slots of one source ask the same."""

    store: Remembered
    lengths: Tensor

    @operation
    def scores(self, q: Tensor, at: Tensor, *, d_kv: str, bias: Any, scale: float | None = None) -> Tensor:
        """Returns how well the tokens of a source match queries of the text after it, which stand at some positions."""
        scores = match(self.store.keys, _scaled(q, d_kv, scale), d_kv)
        place = arange(self.store.keys.dim(MEMORY))
        scores = scores if bias is None else scores + bias(at, place)
        return where(place < self.lengths, scores, HIDDEN)

    @operation
    def attend(self, q: Tensor, *, d_kv: str, scale: float | None = None) -> Tensor:
        """Attends to all tokens of the source.

        Communication: none, unless `memory` is split: then all-reduces of a maximum and a sum for each head, and a
        pending sum of the result.
        """
        scores = match(self.store.keys, _scaled(q, d_kv, scale), d_kv)
        seen = arange(self.store.keys.dim(MEMORY)) < self.lengths
        weights = _shares(scores, seen, (MEMORY,)).astype(self.store.values.dtype)
        return transpose(einsum(weights, self.store.values, over=MEMORY), q.dims)


def _mixed(q: Tensor, *parts: tuple[Tensor, Tensor]) -> Tensor:
    """Returns the mean of the values of two memories, by one softmax over the scores of both."""

    def over(values: Tensor) -> list[str]:
        return [d.name for d in values.dims if d.name in _KEPT]

    top = maximum(*(max_(scores, over(values)) for scores, values in parts))
    total = mixed = zeros(())
    for scores, values in parts:
        weights = exp(scores - top)
        total = total + sum_(weights, over(values))
        mixed = mixed + einsum(weights.astype(values.dtype), values, over=over(values)).astype(jnp.float32)
    return transpose((mixed / total).astype(q.dtype), q.dims)


def _places(before: Recalled | None) -> int:
    return 0 if before is None else before.store.places


def _scaled(q: Tensor, d_kv: str, scale: float | None) -> Tensor:
    return q * (q.dim(d_kv).size ** -0.5 if scale is None else scale)


def _shares(scores: Tensor, seen: Tensor, over: Sequence[str]) -> Tensor:
    """Returns the softmax over places of what is seen.

    Where a processor has all places they come last, as a row: the compiler then needs one kernel, not four.
    """
    places = tuple(scores.dim(name) for name in over)
    if len(places) > 1 or current().placement(scores.dims).of(places[0]):
        return softmax(where(seen, scores.astype(jnp.float32), HIDDEN), over=over)
    scores = transpose(scores, (*without(scores.dims, places), *places))
    seen = transpose(seen, tuple(d for d in scores.dims if d in seen.dims))
    absent = [i for i, d in enumerate(scores.dims) if d not in seen.dims]

    def of_rows(scores: Array, seen: Array) -> Array:
        scores, seen = lax.optimization_barrier((scores, jnp.expand_dims(seen, absent)))
        rows = jnp.where(seen, scores.astype(jnp.float32), HIDDEN)
        weights = jnp.exp(rows - jnp.max(rows, axis=-1, keepdims=True))
        return weights / jnp.sum(weights, axis=-1, keepdims=True)

    return Tensor(compute(of_rows, [scores, seen]), scores.dims)


def as_it_is(x: Tensor) -> Tensor:
    """Keeps a GPU's compiler from making a tensor anew for each reader, or reading it in a shape of slower kernels.

    That for CPUs would copy the tensor.
    """
    return Tensor(compute(lax.optimization_barrier, [x]), x.dims) if current().mesh.platform == "gpu" else x


def _first(x: Tensor, dim: str, count: int) -> Tensor:
    return x if x.dim(dim).size == count else slice_(x, dim, 0, count)


def positions_held(cache: Tensor, newest: Tensor) -> Tensor:
    """Returns the position of the token at each place, [slots.., pages, memory]; negative where there is none.

    Args:
        cache: keys or values.
        newest: the position of the last token of each slot; -1 if there is none.
    """
    pages, memory = cache.dim(PAGES), cache.dim(MEMORY)
    place = arange(pages) * memory.size + arange(memory)
    return newest - (newest - place) % (pages.size * memory.size)


def _write(cache: Tensor, new: Tensor, at: Tensor) -> Tensor:
    """Puts one token into each slot at its own place. The rest of the cache stays where it is: nothing is copied."""
    pages, memory = cache.dim(PAGES), cache.dim(MEMORY)
    token = transpose(sum_(new, QUERIES), without(cache.dims, (pages, memory))).astype(cache.dtype)
    place = at % (pages.size * memory.size)
    is_split, platform = bool(current().placement(cache.dims).of(memory)), current().mesh.platform

    def put(cache: Array, token: Array, page: Array, place: Array, there: Array) -> Array:
        flat = [x.reshape(-1, *x.shape[len(at.dims) :]) for x in (cache, token, page, place)]
        is_alone = flat[0].shape[0] == 1

        def put_one(cache: Array, token: Array, page: Array, place: Array) -> Array:
            if not is_split and (platform != "cpu" or not is_alone):
                zero = jnp.zeros_like(page)  # of one dtype with the others: a number of Python's has 64 bits with x64
                start = [zero] * (cache.ndim - 3) + [page, place, zero]
                return lax.dynamic_update_slice(cache, token[..., None, None, :], start)
            end = cache.shape[-2]
            inside = jnp.where(place < there[0], end, place - there[0])
            # Where another processor has the place, it is out of range and dropped. So is the second one: an update of
            # one place alone the compiler for CPUs makes twice, for who reads and for who keeps, of copies.
            return cache.at[..., page, jnp.stack([inside, jnp.full_like(inside, end)]), :].set(
                token[..., None, :], mode="drop"
            )

        if is_alone:  # a plain update in place; many are a scatter
            return put_one(*(x[0] for x in flat)).reshape(cache.shape)
        return jax.vmap(put_one)(*flat).reshape(cache.shape)

    operands = [cache, token, place // memory.size, place % memory.size, arange(memory)]
    return Tensor(compute(put, operands), cache.dims)
