"""Blocks of volumes: what a processor holds of an image or of its labels, and noise that is the same in every block.

A block is a pair of bounds for each dim of the whole volume. What is drawn at random at a voxel follows from a key and
from where the voxel is in the whole volume, so it does not matter who makes it, nor together with what.
"""

import math
from collections.abc import Sequence

import numpy as np

Block = tuple[tuple[int, int], ...]  # the first index and that after the last, by dim


def whole(shape: Sequence[int]) -> Block:
    """Returns the block that is all of a volume.

    >>> whole((3, 5))
    ((0, 3), (0, 5))
    """
    return tuple((0, size) for size in shape)


def sizes_of(block: Block) -> tuple[int, ...]:
    """Returns the shape of a block.

    >>> sizes_of(((2, 5), (0, 4)))
    (3, 4)
    """
    return tuple(end - begin for begin, end in block)


def slices_of(block: Block) -> tuple[slice, ...]:
    """Returns a block as an index of the whole volume."""
    return tuple(slice(begin, end) for begin, end in block)


def white_noise(key: int, shape: Sequence[int], block: Block) -> np.ndarray:
    """Returns noise of mean 0 and deviation 1, nearly normal, of a block of a volume.

    Args:
        key: another key gives other noise.
        shape: of the whole volume.
        block: which part of it.
    """
    index = np.zeros((), np.uint64)
    for dim, (size, (begin, end)) in enumerate(zip(shape, block, strict=True)):
        places = np.arange(begin, end, dtype=np.uint64)
        index = index * np.uint64(size) + places.reshape([-1] + [1] * (len(shape) - dim - 1))
    mixed = _mixed(index + _mixed(np.array([key % 2**64], np.uint64)))
    # The sum of four uniform numbers: exact in integers, and no function whose last bit depends on the machine.
    sums = mixed.reshape(-1).view(np.uint16).reshape(*mixed.shape, 4).sum(-1, dtype=np.int32)
    return (sums - 2 * 65535).astype(np.float32) * np.float32(math.sqrt(3) / 65536)


def _mixed(bits: np.ndarray) -> np.ndarray:
    """Returns other bits, each of which depends on all: the finalizer of splitmix64."""
    bits = bits + np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
