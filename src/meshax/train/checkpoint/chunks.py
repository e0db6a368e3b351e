"""How a block of an array is cut: into equal chunks, each small enough to be read, written or sent by itself."""

import itertools
import math
from collections.abc import Sequence

Bounds = tuple[tuple[int, int], ...]  # the begin and the end of a block, for each dim

MAX_CHUNK_BYTES = 32 << 20  # a reader of any part of a chunk reads all of it


def chunk_shape(block: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Cuts a block into equal parts of at most 32 MiB along one dim, the first that divides well.

    >>> chunk_shape((50257, 4096), 4)
    (1733, 4096)
    """
    num_parts = -(-math.prod(block) * itemsize // MAX_CHUNK_BYTES)
    for position, size in enumerate(block):
        for parts in range(max(num_parts, 1), min(4 * num_parts, size) + 1):
            if size % parts == 0:
                return (*block[:position], size // parts, *block[position + 1 :])
    return tuple(max(size, 1) for size in block)


def chunks_of(block: Sequence[int], itemsize: int) -> list[Bounds]:
    """Returns where in a block its chunks are; also an empty block has one.

    >>> chunks_of((2, 8 << 20), 4)
    [((0, 1), (0, 8388608)), ((1, 2), (0, 8388608))]
    """
    chunk = chunk_shape(block, itemsize)
    begins = itertools.product(*(range(0, max(size, 1), step) for size, step in zip(block, chunk, strict=True)))
    return [tuple((begin, begin + step) for begin, step in zip(place, chunk, strict=True)) for place in begins]
