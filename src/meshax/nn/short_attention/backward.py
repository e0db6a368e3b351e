"""The backward pass: one program has one head of one example, and its scores are computed once.

For each block of keys it visits the blocks of queries that see it: one warpgroup brings back the weights and adds up
the gradient of the values, the other has the gradient of the scores and adds up that of the keys. The gradients of the
scores go through memory, as they do not fit on the chip, and are read again for the gradient of the queries. Scores are
kept turned, [keys, queries]: so a product's result is an operand of the next one without leaving the registers.
"""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as gpu

from .blocks import BLOCK, LAYOUT, Sizes, along, halved, load, room, run, same_documents, wait_if, when, without_later

_LOGS, _MEANS, _DOCUMENTS = range(3)  # what is kept of each query
_KEYS, _VALUES = range(2)
_LEFT = 4 * BLOCK  # the gradients of two by two blocks of scores lie side by side


@functools.partial(jax.jit, static_argnames=("scale", "causal", "interpret"))
def backward(
    q: Any, k: Any, v: Any, segments: Any, out: Any, logs: Any, do: Any, scale: float, causal: bool, interpret: Any
) -> Any:
    """Returns the gradients of queries, keys and values, from the results of the forward pass and their gradient."""
    batch, length, heads, d = q.shape
    packed = [] if segments is None else [segments.astype(jnp.float32)]
    sizes = Sizes(length, d, q.dtype, scale, causal, bool(packed), interpret)
    means = jnp.einsum("bqhd,bqhd->bhq", out, do, preferred_element_type=jnp.float32)

    def body(*refs: Any) -> None:
        _Backward(sizes, refs[: -len(results) - len(scratch)], *refs[-len(results) - len(scratch) :]).run()

    one = functools.partial(gpu.Barrier, num_barriers=2)
    both = functools.partial(gpu.Barrier, num_arrivals=2, num_barriers=2)
    scratch = [
        *(room(2, BLOCK, d, dtype=q.dtype) for _ in range(3)),
        room(BLOCK, BLOCK, dtype=jnp.float32),
        room(BLOCK, BLOCK, dtype=q.dtype),
        gpu.SMEM((2 + len(packed), length), jnp.float32),
        [] if d == _LEFT else [room(2, BLOCK, _LEFT, dtype=q.dtype)],
        gpu.Barrier(num_arrivals=2 + len(packed)),
        *(one(), one(), one(), both(), one(), both()),
        *(gpu.Barrier(), gpu.Barrier(), gpu.Barrier()),
        *(one(), both(), one(), both()),
    ]
    results = [jax.ShapeDtypeStruct(q.shape, q.dtype)] * 3
    results.append(jax.ShapeDtypeStruct((batch, heads, _square(sizes, 0, sizes.pairs), BLOCK, _LEFT), q.dtype))
    operands = (q, k, v, do, logs, means, *packed)
    grid = dict(heads=heads, batch=batch)
    return run(sizes, body, "short_attention_backward", operands, results, scratch, **grid)[:3]


def _square(sizes: Sizes, column: Any, row: Any) -> Any:
    """Returns where the gradients of two by two blocks of scores are kept."""
    return halved(row * (row + 1)) + column if sizes.causal else row * sizes.pairs + column


@dataclass
class _Backward:
    """The kernel, with its memory."""

    sizes: Sizes
    inputs: tuple[Any, ...]  # queries, keys, values, gradients of the results; of queries: logs, means, documents
    dq: Any
    dk: Any
    dv: Any
    ds: Any
    kv_room: Any  # a block of keys and one of values
    q_room: Any  # two of queries, later of keys
    do_room: Any  # two of gradients, later of those of queries
    weights_room: Any
    ds_room: Any
    of_queries: Any
    more: Any  # room for the gradients of scores, unless keys and values have enough
    of_queries_in: Any
    kv_in: Any
    kv_out: Any
    q_in: Any
    q_out: Any
    do_in: Any
    do_out: Any
    weights_in: Any
    weights_out: Any
    all_ds: Any
    squares_in: Any
    squares_out: Any
    keys_in: Any
    keys_out: Any

    def run(self) -> None:
        self.example, self.head, self.me = (lax.axis_index(name) for name in ("batch", "heads", "warpgroup"))
        self.squares = self.more[0] if self.more else self.kv_room
        self.square = functools.partial(_square, self.sizes)
        when(2 - self.me)(self.compute)
        when(self.me - 1)(self.move)

    def at(self, block: Any) -> Any:
        return self.example, pl.ds(block * BLOCK, BLOCK), self.head

    def of_block(self, what: int, row: Any) -> Any:
        return along(self.of_queries.at[what, pl.ds(row * BLOCK, BLOCK)], 1)

    def compute(self) -> None:
        self.sizes.computes()
        gpu.barrier_wait(self.of_queries_in)
        when(_VALUES - self.me)(self.weigh)
        when(self.me - _KEYS)(self.differentiate)
        self.rows()

    def weigh(self) -> None:
        """Brings back the weights, and adds up the gradients of values."""
        self.columns(self.weigh_one, self.dv, 1.0)
        gpu.barrier_wait(self.weights_out)

    def differentiate(self) -> None:
        """Finds the gradients of scores, and adds up those of keys."""
        self.columns(self.differentiate_one, self.dk, self.sizes.scale)
        gpu.wait_smem_to_gmem(0)
        gpu.barrier_arrive(self.all_ds)

    def columns(self, visit: Any, gradient: Any, scale: float) -> None:
        """Visits for each block of keys the blocks of queries that see it; each visit adds to a gradient."""
        sizes = self.sizes

        def column(j: Any, turn: Any) -> Any:
            gpu.barrier_wait(self.kv_in.at[self.me])
            first = sizes.first_row(j)
            total = lax.fori_loop(first, sizes.blocks, lambda i, x: visit(turn + i - first, j, i, x), sizes.zeros())
            self.store(total * scale, self.kv_room.at[self.me], gradient, j)
            gpu.wait_smem_to_gmem(0, wait_read_only=True)
            gpu.barrier_arrive(self.kv_out.at[self.me])
            return turn + sizes.blocks - first

        lax.fori_loop(0, sizes.blocks, column, 0)

    def store(self, value: Any, through: Any, ref: Any, block: Any) -> None:
        through[...] = value.astype(self.sizes.dtype)
        gpu.commit_smem()
        gpu.copy_smem_to_gmem(through, ref.at[self.at(block)])

    def weigh_one(self, turn: Any, j: Any, i: Any, total: Any) -> Any:
        sizes, slot = self.sizes, lax.rem(turn, 2)
        gpu.barrier_wait(self.q_in.at[slot])
        scores = sizes.product(self.kv_room.at[self.me], self.q_room.at[slot])
        gpu.barrier_arrive(self.q_out.at[slot])
        weights = jnp.exp2(scores * sizes.to_base_2 - self.of_block(_LOGS, i))
        if sizes.packed:
            weights = jnp.where(same_documents(self.of_queries.at[_DOCUMENTS], j, i), weights, 0.0)
        if sizes.causal:
            weights = without_later(weights, 0.0, j, i, queries=1)
        wait_if(turn, self.weights_out)
        self.weights_room[...] = weights
        gpu.commit_smem()
        gpu.barrier_arrive(self.weights_in)
        gpu.barrier_wait(self.do_in.at[slot])
        total = sizes.added(total, weights.astype(sizes.dtype), self.do_room.at[slot])
        gpu.barrier_arrive(self.do_out.at[slot])
        return total

    def differentiate_one(self, turn: Any, j: Any, i: Any, total: Any) -> Any:
        sizes, slot = self.sizes, lax.rem(turn, 2)
        gpu.barrier_wait(self.do_in.at[slot])
        of_weights = sizes.product(self.kv_room.at[self.me], self.do_room.at[slot])
        gpu.barrier_arrive(self.do_out.at[slot])
        from_mean = of_weights - self.of_block(_MEANS, i)
        gpu.barrier_wait(self.weights_in)
        weights = load(self.weights_room, LAYOUT)
        gpu.barrier_arrive(self.weights_out)
        ds = (weights * from_mean).astype(sizes.dtype)
        gpu.wait_smem_to_gmem(0, wait_read_only=True)
        self.ds_room[...] = ds
        gpu.commit_smem()
        part = pl.ds((2 * lax.rem(j, 2) + lax.rem(i, 2)) * BLOCK, BLOCK)
        gpu.copy_smem_to_gmem(
            self.ds_room, self.ds.at[self.example, self.head, self.square(halved(j), halved(i)), :, part]
        )
        gpu.barrier_wait(self.q_in.at[slot])
        total = sizes.added(total, ds, self.q_room.at[slot])
        gpu.barrier_arrive(self.q_out.at[slot])
        return total

    def rows(self) -> None:
        """Adds up the gradients of queries: of each pair of blocks one."""
        sizes = self.sizes

        def pair(m: Any, _: Any) -> None:
            row = 2 * m + self.me
            seen = row + 1 if sizes.causal else sizes.blocks
            total = lax.fori_loop(0, seen, functools.partial(self.add_one, m), sizes.zeros())
            if sizes.causal:
                when(1 - self.me)(functools.partial(self.skip, m))
            gpu.wait_smem_to_gmem(0, wait_read_only=True)
            self.store(total * sizes.scale, self.do_room.at[self.me], self.dq, row)

        lax.fori_loop(0, sizes.pairs, pair, None)
        gpu.wait_smem_to_gmem(0)

    def add_one(self, m: Any, column: Any, total: Any) -> Any:
        half, place = lax.rem(column, 2), lax.rem(self.square(halved(column), m), 2)
        wait_if(1 - half, self.squares_in.at[place])
        gpu.barrier_wait(self.keys_in.at[half])
        ds = self.squares.at[place, :, pl.ds((2 * half + self.me) * BLOCK, BLOCK)]
        total = self.sizes.added(total, ds, self.q_room.at[half], turned=True)
        gpu.barrier_arrive(self.keys_out.at[half])

        @when(half)
        def _done() -> None:
            gpu.barrier_arrive(self.squares_out.at[place])

        return total

    def skip(self, m: Any) -> None:
        """Lets the second block of keys of a pair pass, which only the other warpgroup needs."""
        gpu.barrier_wait(self.keys_in.at[1])
        gpu.barrier_arrive(self.keys_out.at[1])
        gpu.barrier_arrive(self.squares_out.at[lax.rem(self.square(m, m), 2)])

    def move(self) -> None:
        """Loads what the others need, in their order."""
        self.sizes.moves()
        for n, ref in enumerate(self.inputs[4:]):
            here = ref.at[self.example] if n == _DOCUMENTS else ref.at[self.example, self.head]
            gpu.copy_gmem_to_smem(here, self.of_queries.at[n], self.of_queries_in)
        lax.fori_loop(0, self.sizes.blocks, self.move_column, 0)
        for barrier in (self.q_out, self.do_out, self.kv_out):
            for slot in range(2):
                gpu.barrier_wait(barrier.at[slot])
        gpu.barrier_wait(self.all_ds)
        lax.fori_loop(0, self.sizes.pairs, self.move_pair, None)
        for slot in range(2):
            gpu.barrier_wait(self.keys_out.at[slot])
        for place in range(min(2, _square(self.sizes, 0, self.sizes.pairs))):
            gpu.barrier_wait(self.squares_out.at[place])

    def move_column(self, j: Any, turn: Any) -> Any:
        q, k, v, do = self.inputs[:4]
        first = self.sizes.first_row(j)

        def row(i: Any, _: Any) -> None:
            now = turn + i - first
            slot = lax.rem(now, 2)
            for ref, into, filled, free in (
                (q, self.q_room, self.q_in, self.q_out),
                (do, self.do_room, self.do_in, self.do_out),
            ):
                wait_if(now - 1, free.at[slot])
                gpu.copy_gmem_to_smem(ref.at[self.at(i)], into.at[slot], filled.at[slot])

            @when(1 + first - i)
            def _keys_and_values() -> None:
                for n, ref in ((_KEYS, k), (_VALUES, v)):
                    wait_if(j, self.kv_out.at[n])
                    gpu.copy_gmem_to_smem(ref.at[self.at(j)], self.kv_room.at[n], self.kv_in.at[n])

        lax.fori_loop(first, self.sizes.blocks, row, None)
        return turn + self.sizes.blocks - first

    def move_pair(self, m: Any, _: Any) -> None:
        def two(n: Any, _: Any) -> None:
            now = self.square(n, m)
            place = lax.rem(now, 2)
            wait_if(now - 1, self.squares_out.at[place])
            gpu.copy_gmem_to_smem(
                self.ds.at[self.example, self.head, now], self.squares.at[place], self.squares_in.at[place]
            )
            for half in range(2):
                wait_if(now, self.keys_out.at[half])
                gpu.copy_gmem_to_smem(
                    self.inputs[1].at[self.at(2 * n + half)], self.q_room.at[half], self.keys_in.at[half]
                )

        lax.fori_loop(0, m + 1 if self.sizes.causal else self.sizes.pairs, two, None)
