"""Windows of a split dim: each processor gets a stretch of the whole dim, which need not be its own block.

Slice, pad, shift, flip, concat and windows all read, for the block of the result that a processor stores, one stretch
of the operand. `window` fetches it: what the processor has stays, the rest comes from its neighbours, in permutes in
which no processor sends or receives twice.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from .. import collectives
from ..compat import Array
from ..dim import Dim
from ..layout import Placement, block_size
from ..transfer import along, pad


@dataclass(frozen=True)
class _Piece:
    """What one processor sends another: a stretch of the sender's block, and its place in the receiver's window."""

    sender: int
    receiver: int
    source: int
    target: int
    length: int


def window(
    x: Array,
    placement: Placement,
    dim: Dim,
    starts: Sequence[int],
    width: int,
    fill: Any = 0,
    wrap: bool = False,
    needs: Sequence[int] = (),
) -> Array:
    """Returns `whole[start : start + width]` along a dim on each processor, `fill` where that lies outside of the dim.

    Each processor along the axes has its own of the starts, which may be negative. One that `needs` less than the width
    gets `fill` behind it. With `wrap` the dim's other end stands outside of it; a window is then the size of a block.
    """
    position, axes, block = placement.dims.index(dim), placement.of(dim), placement.block(dim)
    if len(starts) == 1:
        return jnp.roll(x, -starts[0], position) if wrap else stretch(x, position, starts[0], width, fill)
    lookup = partial(_lookup, count=len(starts), here=collectives.processor_index(axes))
    parts: list[tuple[Array, dict[_Piece, int]]] = []  # of each round, and for each piece which place of it comes first
    for round_ in _rounds(_pieces(dim.size, block, starts, needs or [width] * len(starts), wrap)):
        length = max(piece.length for piece in round_)
        # the part begins before the piece if it would else run over the block's end
        read = {p.sender: min(p.source, block - length) for p in round_}
        part = _taken(x, position, lookup(read), length)
        if round_[0].sender != round_[0].receiver:
            part = collectives.permute(part, axes, [(p.sender, p.receiver) for p in round_], placement.mesh.axes)
        parts.append((part, {p: p.source - read[p.sender] - p.target for p in round_}))
    shape, regions = list(x.shape), []
    for first, last in itertools.pairwise(_cuts([p for _, pieces in parts for p in pieces], width)):
        shape[position] = last - first
        regions.append(_region(parts, first, jnp.full(shape, fill, x.dtype), position, lookup))
    return jnp.concatenate(regions, position)


def _cuts(pieces: Sequence[_Piece], width: int) -> list[int]:
    """Returns where what stays is cut off, if that is the same place everywhere: then only borders are rearranged."""
    staying = [p for p in pieces if p.sender == p.receiver]
    first, last = (staying[0].target, max(p.target + p.length for p in staying)) if staying else (0, 0)
    ends = [(p.target, p.target + p.length) for p in pieces if p.sender != p.receiver]
    if any(p.target != first for p in staying) or any(end > first and begin < last for begin, end in ends):
        return [0, width]
    return sorted({0, first, last, width})


def _region(
    parts: Sequence[tuple[Array, dict[_Piece, int]]], first: int, region: Array, position: int, lookup: Any
) -> Array:
    """Puts all pieces of a region of the window, which begins at `first`, into their places."""
    width = region.shape[position]
    place = along(jnp.arange(width), position, region.ndim)
    for part, pieces in parts:
        inside = {p: begin + first for p, begin in pieces.items() if first <= p.target < first + width}
        begins = set(inside.values())  # if they are few, each is a place that is known: both sides, of two processors
        for group in [[p for p in inside if inside[p] == b] for b in begins] if len(begins) < 3 else [list(inside)]:
            placed = _taken(part, position, lookup({p.receiver: inside[p] for p in group}), width, margin=width)
            target = lookup({p.receiver: p.target - first for p in group})
            count = lookup({p.receiver: p.length for p in group}, absent=0)
            is_all = isinstance(count, int) and count == width
            region = placed if is_all else jnp.where((place >= target) & (place < target + count), placed, region)
    return region


def _taken(x: Array, position: int, start: int | Array, width: int, margin: int = 0) -> Array:
    """Returns a stretch that reaches out of the array by at most a margin, where there are zeros."""
    if isinstance(start, int):
        return stretch(x, position, start, width)
    return lax.dynamic_slice_in_dim(pad(x, position, margin, margin), start + margin, width, position)


def stretch_in_block(placement: Placement, dim: Dim, first: int, last: int) -> Array:
    """Whether each place in this processor's block of a dim lies in the stretch [first, last).

    It is counted from the block's own first place: places in the whole dim may not fit into 32 bits.
    """
    count, block = placement.count(dim), placement.block(dim)
    here = collectives.processor_index(placement.of(dim))
    low, high = (
        _lookup({p: min(max(end - p * block, 0), block) for p in range(count)}, count=count, here=here)
        for end in (first, last)
    )
    place = jnp.arange(block, dtype=jnp.int32)
    return (place >= low) & (place < high)


def stretch(x: Array, position: int, start: int, width: int, fill: Any = 0) -> Array:
    """Returns `x[start : start + width]` along an array dimension, `fill` where that lies outside of it."""
    size = x.shape[position]
    first = min(max(start, 0), size)
    inside = lax.slice_in_dim(x, first, max(min(start + width, size), first), axis=position)
    return pad(inside, position, min(max(-start, 0), width), min(max(start + width - size, 0), width), fill)


def _pieces(size: int, block: int, starts: Sequence[int], needs: Sequence[int], wrap: bool = False) -> list[_Piece]:
    pieces = []
    for receiver, (start, need) in enumerate(zip(starts, needs, strict=True)):
        low, high = max(start, 0), min(start + need, size)
        if wrap:  # nobody needs what would come to lie in padding
            low, high = start, start + min(need, size - receiver * block)
        while low < high:
            sender, source = divmod(low % size, block)
            length = min(high - low, block - source, size - low % size)
            pieces.append(_Piece(sender, receiver, source, low - start, length))
            low += length
    return pieces


def _rounds(pieces: Sequence[_Piece]) -> list[list[_Piece]]:
    """Sorts pieces into rounds: first what stays, then permutes in which nobody sends or receives twice."""
    staying = [piece for piece in pieces if piece.sender == piece.receiver]
    rounds: list[list[_Piece]] = []
    for piece in sorted((p for p in pieces if p.sender != p.receiver), key=lambda p: (p.receiver - p.sender, p.sender)):
        for round_ in rounds:
            if all(piece.sender != other.sender and piece.receiver != other.receiver for other in round_):
                round_.append(piece)
                break
        else:
            rounds.append([piece])
    return [staying, *rounds] if staying else rounds


def _lookup(table: dict[int, int], absent: int | None = None, *, count: int, here: Array) -> int | Array:
    """Returns this processor's entry of a table: a number if all have the same, `absent` if it has none."""
    absent = next(iter(table.values())) if absent is None else absent
    values = [table.get(processor, absent) for processor in range(count)]
    return values[0] if len(set(values)) == 1 else jnp.asarray(np.array(values, np.int32))[here]


def sent_lengths(size: int, starts: Sequence[int], needs: Sequence[int]) -> list[int]:
    """Returns how many elements along a dim of some size each permute of `window` sends."""
    rounds = _rounds(_pieces(size, block_size(size, len(starts)), starts, needs))
    return [max(piece.length for piece in some) for some in rounds if some[0].sender != some[0].receiver]
