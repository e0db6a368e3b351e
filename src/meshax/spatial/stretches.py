"""What each processor along a split dim reads of it, and how all of it is fetched.

For its block of the result a processor reads one stretch of the operand along each dim. Dims are fetched in turn: what
one dim fetched, the next one's neighbours get too, so corners need no messages of their own. The order is the one
that sends least.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..collectives import processor_index
from ..compat import Array
from ..dim import Dim
from ..layout import Axes, Placement
from ..ops.neighbours import sent_lengths, window
from ..transfer import fill_padding


@dataclass(frozen=True)
class Stretches:
    """For each processor along a dim where the stretch begins that it reads, and how long it is."""

    dim: Dim
    starts: tuple[int, ...]
    needs: tuple[int, ...]

    @cached_property
    def width(self) -> int:
        """The longest: what each processor has afterwards."""
        return max(self.needs)

    @property
    def is_split(self) -> bool:
        """Whether there is anyone to fetch from."""
        return len(self.starts) > 1

    @cached_property
    def sent(self) -> int:
        """How many places along the dim a processor sends, in all permutes together."""
        return sum(sent_lengths(self.dim.size, self.starts, self.needs))


def fetch_stretches(x: Array, placement: Placement, reads: Sequence[Stretches], fill: Any = 0) -> Array:
    """Returns the stretches that this processor reads along split dims; other dims are left as they are.

    Outside of a dim, and where its padding was, stands `fill`.
    """
    for read in cheapest_order(placement.local_shape, placement.dims, [read for read in reads if read.is_split]):
        block = placement.block(read.dim)
        if read.width == block and all(start == p * block for p, start in enumerate(read.starts)):
            x = fill_padding(x, placement, (read.dim,), fill)
        else:
            x = window(x, placement, read.dim, read.starts, read.width, fill, needs=read.needs)
    return x


def cheapest_order(shape: Sequence[int], dims: Sequence[Dim], reads: Sequence[Stretches]) -> Sequence[Stretches]:
    """Returns the order of fetching in which the fewest elements are sent."""
    return min(itertools.permutations(reads), key=lambda order: sent_elements(shape, dims, order))


def sent_elements(shape: Sequence[int], dims: Sequence[Dim], order: Sequence[Stretches]) -> int:
    """Returns how many elements one processor sends if it fetches in this order."""
    sizes, total = dict(zip(dims, shape, strict=True)), 0
    for read in order:
        others = math.prod(size for dim, size in sizes.items() if dim != read.dim)
        total, sizes[read.dim] = total + read.sent * others, read.width
    return total


def own(numbers: Sequence[int], axes: Axes) -> int | Array:
    """Returns this processor's of some numbers, one for each along the axes."""
    if len(set(numbers)) == 1:
        return numbers[0]
    return jnp.asarray(np.array(numbers, np.int32))[processor_index(axes)]
