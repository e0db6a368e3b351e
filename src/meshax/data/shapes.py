"""Images of one shape each, made by rules: something to tell apart without a download.

An image is drawn from a seed and a number: a bright shape of any place, size, turn and colour, on a darker colour that
changes across the image, with noise. It is the same shape at any resolution.
"""

import math
from collections.abc import Callable

import numpy as np

_Points = tuple[np.ndarray, np.ndarray]


def _disc(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    return 1 - np.hypot(u, v)


def _ring(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    return 0.28 - np.abs(np.hypot(u, v) - 0.72)


def _square(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    return 0.8 - np.maximum(np.abs(u), np.abs(v))


def _triangle(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    return 0.5 - np.maximum(-v, np.abs(u) * math.sin(math.pi / 3) + v / 2)


def _cross(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    u, v = np.abs(u), np.abs(v)
    return np.minimum(1 - np.maximum(u, v), 0.28 - np.minimum(u, v))


def _bar(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    return np.minimum(1 - np.abs(u), 0.3 - np.abs(v))


# By name how far a point is within the shape, in units of its radius; outside less than 0.
SHAPES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "disc": _disc,
    "ring": _ring,
    "square": _square,
    "triangle": _triangle,
    "cross": _cross,
    "bar": _bar,
}


def make_image(seed: int, number: int, shape: tuple[int, int], num_channels: int = 3) -> tuple[np.ndarray, int]:
    """Makes an image, [x, y, channel], of numbers around -1 to 1, and returns which of `SHAPES` it shows.

    Args:
        seed: of all images.
        number: of this one.
        shape: its resolution.
        num_channels: its colours.
    """
    rng = np.random.default_rng([seed, number])
    label = int(rng.integers(len(SHAPES)))
    place, radius, turn = rng.uniform(-0.3, 0.3, 2), rng.uniform(0.45, 0.7), rng.uniform(0, 2 * math.pi)
    behind, slope = rng.uniform(-1, 0, num_channels), rng.uniform(-0.15, 0.15, (2, num_channels))
    colour, noise = behind + rng.uniform(0.6, 1.2, num_channels), rng.uniform(0.02, 0.1)
    x, y = np.meshgrid(*((np.arange(size) + 0.5) / size * 2 - 1 for size in shape), indexing="ij")
    cos, sin = math.cos(turn) / radius, math.sin(turn) / radius
    u, v = (x - place[0]) * cos - (y - place[1]) * sin, (x - place[0]) * sin + (y - place[1]) * cos
    inside = list(SHAPES.values())[label](u, v) * radius
    share = np.clip(inside * min(shape) / 2 + 0.5, 0, 1)[..., None]  # an edge is a pixel wide
    image = behind + x[..., None] * slope[0] + y[..., None] * slope[1]
    image = image + share * (colour - image) + noise * rng.standard_normal((*shape, num_channels))
    return image.astype(np.float32), label
