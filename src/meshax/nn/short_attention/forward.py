"""The forward pass: one program has two blocks of queries, one for each warpgroup, and keys and values pass by."""

import functools
import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as gpu

from .blocks import BLOCK, LAYOUT, Sizes, room, run, same_documents, wait_if, when, without_later

_HIDDEN = -1e30
_SLOTS = 2  # blocks of keys and of values that are loaded ahead


@functools.partial(jax.jit, static_argnames=("scale", "causal", "interpret"))
def forward(q: Any, k: Any, v: Any, segments: Any, scale: float, causal: bool, interpret: Any) -> Any:
    """Returns the mean of the values, and of each query's scores the logarithm (base 2) of the sum of exponentials."""
    batch, length, heads, d = q.shape
    packed = [] if segments is None else [segments.astype(jnp.float32)]
    sizes = Sizes(length, d, q.dtype, scale, causal, bool(packed), interpret)

    def body(*refs: Any) -> None:
        _Forward(sizes, refs[:-11], *refs[-11:]).run()

    scratch = [
        *(room(2, BLOCK, d, dtype=q.dtype) for _ in range(3)),
        gpu.SMEM((2, BLOCK), jnp.float32),
        gpu.SMEM((length if packed else BLOCK,), jnp.float32),
        gpu.Barrier(num_barriers=2),
        gpu.Barrier(),
        [gpu.Barrier(num_barriers=_SLOTS) for _ in range(2)],
        [gpu.Barrier(num_arrivals=2, num_barriers=_SLOTS) for _ in range(2)],
    ]
    out = [jax.ShapeDtypeStruct(q.shape, q.dtype), jax.ShapeDtypeStruct((batch, heads, length), jnp.float32)]
    grid = dict(heads=heads, pair=sizes.pairs, batch=batch)
    return run(sizes, body, "short_attention_forward", (q, k, v, *packed), out, scratch, **grid)


@dataclass
class _Forward:
    """The kernel, with its memory."""

    sizes: Sizes
    inputs: tuple[Any, ...]  # queries, keys and values, and perhaps the documents
    out: Any
    logs: Any
    q_room: Any  # two blocks, later of results
    k_room: Any
    v_room: Any
    logs_room: Any
    documents_room: Any
    q_in: Any
    documents_in: Any
    kv_in: Any
    kv_out: Any  # both warpgroups are done with it

    def run(self) -> None:
        self.example, self.head, self.pair = (lax.axis_index(name) for name in ("batch", "heads", "pair"))
        self.me = lax.axis_index("warpgroup")
        when(2 - self.me)(self.compute)
        when(self.me - 1)(self.move)

    def at(self, block: Any) -> Any:
        return self.example, pl.ds(block * BLOCK, BLOCK), self.head

    def compute(self) -> None:
        sizes, me = self.sizes, self.me
        sizes.computes()
        row = 2 * self.pair + me
        mine = self.q_room.at[me]
        gpu.copy_gmem_to_smem(self.inputs[0].at[self.at(row)], mine, self.q_in.at[me])
        if sizes.packed:
            gpu.barrier_wait(self.documents_in)
        gpu.barrier_wait(self.q_in.at[me])
        vector = LAYOUT.reduce(1)
        start = [gpu.layout_cast(jnp.full((BLOCK,), x, jnp.float32), vector) for x in (_HIDDEN, 0.0)]
        step = functools.partial(self.step, row)
        columns = row + 1 if sizes.causal else sizes.blocks
        total, highest, sums = lax.fori_loop(0, columns, step, (sizes.zeros(), *start))
        if sizes.causal:
            when(1 - me)(functools.partial(self.skip, columns))
        mine[...] = (total / lax.broadcast_in_dim(sums, total.shape, [0])).astype(sizes.dtype)
        self.logs_room.at[me][...] = highest + jnp.log(sums) * math.log2(math.e)
        gpu.commit_smem()
        gpu.copy_smem_to_gmem(mine, self.out.at[self.at(row)])
        rows = pl.ds(row * BLOCK, BLOCK)
        gpu.copy_smem_to_gmem(self.logs_room.at[me], self.logs.at[self.example, self.head, rows])
        gpu.wait_smem_to_gmem(0)

    def step(self, row: Any, column: Any, carry: Any) -> Any:
        """Takes in a block of keys and values: the softmax is kept as its maximum, its sum and the sum of values."""
        total, highest, sums = carry
        sizes, slot = self.sizes, lax.rem(column, _SLOTS)
        gpu.barrier_wait(self.kv_in[0].at[slot])
        scores = sizes.product(self.q_room.at[self.me], self.k_room.at[slot]) * sizes.to_base_2
        gpu.barrier_arrive(self.kv_out[0].at[slot])
        if sizes.packed:
            scores = jnp.where(same_documents(self.documents_room, row, column), scores, _HIDDEN)
        if sizes.causal:
            scores = without_later(scores, _HIDDEN, row, column, queries=0)
        now = jnp.maximum(highest, scores.max(axis=1))
        weights = jnp.exp2(scores - lax.broadcast_in_dim(now, scores.shape, [0]))
        if sizes.packed:  # nothing of a row may have been seen yet
            weights = jnp.where(scores == _HIDDEN, 0.0, weights)
        kept = jnp.exp2(highest - now)
        sums = sums * kept + weights.sum(axis=1)
        total = total * lax.broadcast_in_dim(kept, total.shape, [0])
        gpu.barrier_wait(self.kv_in[1].at[slot])
        total = sizes.added(total, weights.astype(sizes.dtype), self.v_room.at[slot])
        gpu.barrier_arrive(self.kv_out[1].at[slot])
        return total, now, sums

    def skip(self, column: Any) -> None:
        """Lets a block pass that only the other warpgroup needs."""
        slot = lax.rem(column, _SLOTS)
        for filled, free in zip(self.kv_in, self.kv_out, strict=True):
            gpu.barrier_wait(filled.at[slot])
            gpu.barrier_arrive(free.at[slot])

    def move(self) -> None:
        sizes = self.sizes
        sizes.moves()
        if sizes.packed:
            gpu.copy_gmem_to_smem(self.inputs[3].at[self.example], self.documents_room, self.documents_in)
        rooms = list(zip(self.inputs[1:3], (self.k_room, self.v_room), self.kv_in, self.kv_out, strict=True))

        def load(column: Any, _: Any) -> None:
            slot = lax.rem(column, _SLOTS)
            for ref, into, filled, free in rooms:
                wait_if(column - _SLOTS + 1, free.at[slot])
                gpu.copy_gmem_to_smem(ref.at[self.at(column)], into.at[slot], filled.at[slot])

        lax.fori_loop(0, 2 * self.pair + 2 if sizes.causal else sizes.blocks, load, None)
        for slot in range(_SLOTS):
            for free in self.kv_out:
                gpu.barrier_wait(free.at[slot])
