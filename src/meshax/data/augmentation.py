"""Random changes to an image and its labels, the same whoever makes which block.

All that is drawn follows from a key of the example; what differs by voxel (noise), from its place in the whole too. A
block that is to be reversed is read from the other end.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .blocks import Block, white_noise

CHANGES = ("flips", "rotations", "intensity", "noise", "crops")  # volume_options of training has the same


@dataclass(frozen=True)
class Augmentation:
    """What happens to an example: nothing, unless something is drawn."""

    is_reversed: tuple[bool, ...]  # by dim
    offset: tuple[int, ...]  # where in the volume the example begins
    scale: float = 1.0  # of intensities
    shift: float = 0.0
    noise: float = 0.0  # its deviation
    key: int = 0  # of the noise

    def source(self, block: Block, shape: Sequence[int]) -> Block:
        """Returns what to read of a volume for a block of an example; it may reach beyond the volume.

        Args:
            block: in the example.
            shape: of the whole example.
        """
        return tuple(
            (offset + size - end, offset + size - begin) if is_reversed else (offset + begin, offset + end)
            for (begin, end), size, is_reversed, offset in zip(block, shape, self.is_reversed, self.offset, strict=True)
        )

    def turned(self, array: np.ndarray) -> np.ndarray:
        """Returns a block that was read, reversed along the dims that are."""
        return array[tuple(slice(None, None, -1 if is_reversed else 1) for is_reversed in self.is_reversed)]

    def changed(self, image: np.ndarray, block: Block, shape: Sequence[int]) -> np.ndarray:
        """Returns a block of the image, [dims.., channel], with other intensities and noise."""
        image = image * np.float32(self.scale) + np.float32(self.shift)
        if self.noise:
            for channel in range(image.shape[-1]):
                image[..., channel] += np.float32(self.noise) * white_noise(self.key + channel, shape, block)
        return image


def unchanged(offset: Sequence[int]) -> Augmentation:
    """Returns no change to what begins there."""
    return Augmentation((False,) * len(offset), tuple(offset))


def draw(key: Sequence[int], changes: Sequence[str], volume: Sequence[int], shape: Sequence[int]) -> Augmentation:
    """Draws what happens to an example.

    Args:
        key: of the example.
        changes: which kinds, of `CHANGES`: flips along any dim; rotations by 180 degrees around any axis; intensities
            up to a tenth stronger, weaker, brighter or darker; noise; crops from anywhere, otherwise from the middle.
        volume: the shape of the volume.
        shape: of the example: where the volume is smaller, the rest is padding.
    """
    rng = np.random.default_rng(list(key))
    # All is drawn, whether it is asked for or not: so one kind does not change what another draws.
    flips, pair, turns = rng.random(len(shape)) < 0.5, rng.permutation(len(shape))[:2], rng.random() < 0.5
    places = rng.random(len(shape))
    scale, shift, noise = rng.uniform(0.9, 1.1), rng.uniform(-0.1, 0.1), rng.uniform(0, 0.08)
    is_reversed = flips & ("flips" in changes)
    if "rotations" in changes and turns:
        is_reversed[pair] ^= True
    room = np.maximum(np.array(volume) - np.array(shape), 0)
    offset = (places * (room + 1)).astype(int) if "crops" in changes else room // 2
    has_intensity = "intensity" in changes
    return Augmentation(
        tuple(bool(one) for one in is_reversed),
        tuple(int(one) for one in offset),
        float(scale) if has_intensity else 1.0,
        float(shift) if has_intensity else 0.0,
        float(noise) if "noise" in changes else 0.0,
        int(rng.integers(2**62)),
    )
