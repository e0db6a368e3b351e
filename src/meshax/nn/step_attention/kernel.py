"""The kernel, in Pallas (Triton), and the arrays that it takes.

A step reads every key and every value that is kept once, and computes next to nothing: its time is that of reading. So
the places of each text and head of keys are dealt out to parts, enough of them to occupy the GPU. The program of a part
goes through its places block by block, while the next blocks are on their way, and keeps the softmax as its maximum,
its sum, and the sum of the values so far; what several parts have found is put together afterwards. The first part has
the token itself beside, and writes its key and value into their place: nobody waits until they are in memory.

Matrix units multiply, though most of their rows are empty: they take blocks from where the loads put them.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from ...collectives import to_copies
from ...compat import typed_outputs, varying_axes

_SMALLEST = 16  # rows and columns that matrix units multiply
_PROGRAMS = 264  # of heads of 256 that run at once: 132 processors have room for the blocks of two each


@dataclass(frozen=True)
class Tiling:
    """How the work is dealt out."""

    parts: int  # of the places of a text and head: a power of two
    block: int  # places that are read at once
    stages: int = 3  # blocks that are on their way at a time, and the one that is there
    warps: int = 4


def takes(read: int, d: int, dtype: Any) -> bool:
    """Whether the kernel can be made: for heads of a power of two, whole blocks of places, 16-bit numbers."""
    return d in (16, 32, 64, 128, 256) and read % _SMALLEST == 0 and dtype in (jnp.bfloat16, jnp.float16)


def tiling(texts: int, read: int, d: int) -> Tiling:
    """Returns what was measured to be fast on an H200.

    Args:
        texts: how many, times the heads of keys.
        read: how many places are read, at most.
        d: the size of a head.
    """
    together = _PROGRAMS * 256 // d
    several = together // texts or 2  # what does not run at once comes in turns: smaller ones end more evenly
    enough = max(1, min(several, read // 64))
    return Tiling(1 << (enough.bit_length() - 1), math.gcd(read, 32), warps=2 if d == 256 else 4)


def step_attention(
    asked: Any, keys: Any, values: Any, at: Any, *,
    read: int, window: int | None, scale: float, tiles: Tiling | None = None, interpret: bool = False,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """Returns for each query the mean of the values, and keys and values with the token in its place.

    Args:
        asked: the token's queries of each key, its keys and its values, [texts, queries + 2, heads of keys, d]: so a
            product yields them that makes all three.
        keys: of the tokens before, [texts, heads of keys, places, d]; position n is at place n mod places.
        values: likewise.
        at: the position of the token of each text, [texts].
        read: how many places, the first ones, hold anything.
        window: how many positions a token sees, itself included; None: all.
        scale: what the scores are multiplied by.
        tiles: how the work is dealt out; None: as `tiling` says.
        interpret: whether to run in Pallas's interpreter, on CPUs.
    """
    texts, heads, places, d = keys.shape
    queries = asked.shape[1] - 2
    tiles = tiles or tiling(texts * heads, read, d)
    sizes = _Sizes(tiles, queries, places, read, min(window or places, places), scale * math.log2(math.e))
    mean, parts = (texts, heads, queries, d), (texts, heads, tiles.parts, queries)
    found = [(mean, asked.dtype)] if tiles.parts == 1 else [((*parts, d), jnp.float32), *[(parts, jnp.float32)] * 2]
    moved = 2 * texts * heads * read * d * keys.dtype.itemsize
    keys, values, *results = _call(
        functools.partial(_attend, sizes),
        "step_attention",
        [asked, keys, values, at],
        [(keys.shape, keys.dtype), (values.shape, values.dtype), *found],
        grid=(texts, heads, tiles.parts),
        input_output_aliases={1: 0, 2: 1},
        compiler_params=triton.CompilerParams(num_warps=tiles.warps, num_stages=tiles.stages),
        cost_estimate=pl.CostEstimate(4 * texts * heads * queries * read * d, 0, moved),
        interpret=interpret,
    )
    if tiles.parts > 1:
        how: dict[str, Any] = {"grid": (texts, heads, queries), "interpret": interpret}
        results = _call(_put_together, "step_attention_parts", results, [(mean, asked.dtype)], **how)
    return results[0], keys, values


def _call(body: Any, name: str, operands: Sequence[Any], results: Sequence[tuple[Any, Any]], **options: Any) -> Any:
    """Calls a kernel on whole arrays; its results, of some shapes and dtypes, vary over the mesh as these do."""
    axes = frozenset[str]().union(*map(varying_axes, operands))
    operands = [to_copies(x, axes) for x in operands]
    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    with typed_outputs(operands[0]):
        return pl.pallas_call(
            body,
            in_specs=[anywhere] * len(operands),
            out_specs=[anywhere] * len(results),
            out_shape=[jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in results],
            name=name,
            **options,
        )(*operands)


@dataclass(frozen=True)
class _Sizes:
    """What a kernel is made for."""

    tiles: Tiling
    queries: int
    places: int
    read: int
    window: int
    scale: float  # of scores whose powers of 2 are taken

    @property
    def rows(self) -> int:
        """Of queries: a power of two, of which some may be nothing."""
        return max(_SMALLEST, 1 << (self.queries - 1).bit_length())


def _attend(
    sizes: _Sizes, asked: Any, keys: Any, values: Any, at: Any, keys_out: Any, values_out: Any, *out: Any
) -> None:
    """The program of a part."""
    text, head, part = map(pl.program_id, range(3))
    tiles, newest = sizes.tiles, jnp.maximum(at[text], 0)  # padding may be anything, and has to write into its own
    here = lax.rem(newest, sizes.places)
    there = jnp.arange(sizes.rows) < sizes.queries
    rows = pl.ds(text * 0, sizes.rows)  # more than there are: JAX trusts the mask where a beginning is computed
    q = triton.load(asked.at[text, rows, head], mask=there[:, None], other=_zero(asked))
    key, value = asked[text, sizes.queries, head], asked[text, sizes.queries + 1, head]

    @pl.when(part == 0)
    def _write() -> None:
        keys_out[text, head, here] = key
        values_out[text, head, here] = value

    def turn(number: Any, found: Any) -> Any:
        total, top, count = found
        first = (number * tiles.parts + part) * tiles.block
        back = here - first - jnp.arange(tiles.block)
        back = jnp.where(back < 0, back + sizes.places, back)  # how long ago the token at each place was written
        seen = (back > 0) & (back <= newest) & (back < sizes.window)
        where = text, head, pl.ds(first, tiles.block)
        block, mixed = (triton.load(x.at[where], mask=seen[:, None], other=_zero(x)) for x in (keys, values))
        scores = jnp.where(seen[None], triton.dot(q, block.T) * sizes.scale, -jnp.inf)
        highest = jnp.maximum(top, jnp.max(scores, axis=1))
        level = jnp.where(highest == -jnp.inf, 0.0, highest)  # nothing was seen yet
        weights, kept = jnp.exp2(scores - level[:, None]), jnp.exp2(top - level)
        total = total * kept[:, None] + triton.dot(weights.astype(mixed.dtype), mixed)
        return total, highest, count * kept + jnp.sum(weights, axis=1)

    own = jnp.sum(_wide(q) * _wide(key)[None], axis=1) * sizes.scale
    is_first = part == 0
    begin = (
        jnp.where(is_first, jnp.broadcast_to(_wide(value)[None], q.shape), 0.0),
        jnp.where(is_first, own, -jnp.inf),
        jnp.where(is_first, jnp.ones(sizes.rows, jnp.float32), 0.0),
    )
    blocks = pl.cdiv(jnp.minimum(newest, sizes.read), tiles.block)
    total, top, count = lax.fori_loop(0, pl.cdiv(blocks - part, tiles.parts), turn, begin)
    if tiles.parts == 1:
        _store(out[0].at[text, head, rows], total / count[:, None], there)
        return
    for ref, x in zip(out, (total, top, count), strict=True):
        _store(ref.at[text, head, part, rows], x, there)


def _put_together(totals: Any, tops: Any, counts: Any, out: Any) -> None:
    """The mean of the values of all parts for a query; each part counts from its own highest score."""
    text, head, query = map(pl.program_id, range(3))
    parts = pl.ds(0, totals.shape[2])
    highest = tops[text, head, parts, query]
    shares = jnp.exp2(highest - jnp.max(highest))
    count = jnp.sum(counts[text, head, parts, query] * shares)
    total = jnp.sum(totals[text, head, parts, query] * shares[:, None], axis=0)
    out[text, head, query] = (total / count).astype(out.dtype)


def _store(ref: Any, x: Any, there: Any) -> None:
    triton.store(ref, x.astype(ref.dtype), mask=there[:, None] if x.ndim > 1 else there)


def _wide(x: Any) -> Any:
    return x.astype(jnp.float32)


def _zero(ref: Any) -> Any:
    return jnp.zeros((), ref.dtype)
