"""Volumes like those of a CT scanner, made by rules: a body with organs, a liver with lesions, and exact labels.

A case is a set of shapes in a unit cube, drawn from a seed and a number. So it is there at any resolution: a voxel has
the label of the shape at its centre, and what is smaller than a voxel fades from the image. Any block of a volume can
be made alone. Shapes are ellipsoids in space that is bent by a few smooth waves. The rest is what scanners add: edges
that are not sharp, noise that is stronger in the body, rings, and a centre that is too dark.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .blocks import Block, sizes_of, slices_of, white_noise, whole

CLASSES = ("background", "body", "organs", "liver", "lesion")
BODY, ORGANS, LIVER, LESION = range(1, 5)

_AIR, _FAT, _MUSCLE = -1000.0, -90.0, 45.0  # Hounsfield units, as all intensities here
_BEND = 0.025  # how far a wave moves a point, at most, in each direction
_WAVES = 4
_BLUR = 0.004  # of an edge, beside the width of a voxel
_NOISE = 14.0
_SLAB = 2**21  # voxels that are made at once, at most: memory does not grow with the volume
# Where organs are, how large, and how bright: from the left to the right, front to back, feet to head.
_ORGANS = (
    ((0.50, 0.74, 0.50), (0.055, 0.060, 0.90), 320.0),  # the spine, always there
    ((0.74, 0.62, 0.62), (0.090, 0.080, 0.130), 115.0),
    ((0.66, 0.38, 0.58), (0.110, 0.090, 0.120), 15.0),
    ((0.36, 0.66, 0.28), (0.060, 0.055, 0.110), 160.0),
    ((0.64, 0.66, 0.30), (0.060, 0.055, 0.110), 160.0),
    ((0.52, 0.42, 0.18), (0.140, 0.080, 0.080), -20.0),
)


@dataclass(frozen=True)
class Shape:
    """An ellipsoid, all of which has one label."""

    centre: np.ndarray
    radii: np.ndarray
    intensity: float
    label: int
    within: int = 0  # it is only where this label is; 0: anywhere


@dataclass(frozen=True)
class Case:
    """What a volume shows, at any resolution."""

    shapes: tuple[Shape, ...]  # a later one covers an earlier one
    waves: np.ndarray  # [wave, dim, (cycles, phase)], of the bent space
    moves: np.ndarray  # [wave, dim], how far each wave moves a point
    rings: np.ndarray  # [ring, (radius, width, intensity)]
    darkening: float  # of the centre
    level: float  # the height of the slice that is the case in two dims
    key: int  # of the noise


@lru_cache(maxsize=64)
def draw_case(seed: int, number: int) -> Case:
    """Returns a case: the same for the same seed and number."""
    rng = np.random.default_rng([seed, number])

    def near(values: tuple[float, ...], by: float) -> np.ndarray:
        return np.array(values) * rng.uniform(1 - by, 1 + by, len(values))

    centre = rng.uniform(0.48, 0.52, 3)
    radii = near((0.44, 0.34, 0.95), 0.06)
    shapes = [
        Shape(centre, radii, _FAT, BODY),
        Shape(centre, radii * rng.uniform(0.84, 0.93), _MUSCLE + rng.uniform(-8, 8), BODY),
    ]
    spine, *others = _ORGANS
    chosen = sorted(rng.permutation(len(others))[: rng.integers(2, 6)])
    for place, size, bright in (spine, *(others[one] for one in chosen)):
        shapes.append(Shape(near(place, 0.06), near(size, 0.2), bright + rng.uniform(-15, 15), ORGANS))
    liver, bright = near((0.32, 0.44, 0.60), 0.05), rng.uniform(85, 115)
    lobe = near((0.19, 0.17, 0.21), 0.12)
    shapes.append(Shape(liver, lobe, bright, LIVER))
    shapes.append(Shape(liver + near((0.14, -0.08, 0.03), 0.2), near((0.15, 0.09, 0.11), 0.15), bright, LIVER))
    for _ in range(rng.integers(0, 9)):
        direction = rng.normal(size=3)
        place = liver + lobe * direction / np.linalg.norm(direction) * rng.uniform(0, 0.85)
        radius = math.exp(rng.uniform(math.log(0.010), math.log(0.065)))
        shapes.append(Shape(place, radius * near((1, 1, 1), 0.25), bright - rng.uniform(30, 70), LESION, LIVER))
    waves = np.stack([rng.uniform(0.4, 2.2, (_WAVES, 3)), rng.uniform(0, 2 * math.pi, (_WAVES, 3))], -1)
    rings = np.stack([rng.uniform(0.02, 0.45, 3), rng.uniform(0.004, 0.012, 3), rng.uniform(-14, 14, 3)], -1)
    moves = rng.uniform(-_BEND, _BEND, (_WAVES, 3))
    level = liver[2] + rng.uniform(-0.05, 0.05)
    return Case(tuple(shapes), waves, moves, rings, rng.uniform(0, 20), level, int(rng.integers(2**63)))


def make_block(case: Case, shape: tuple[int, ...], block: Block | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Makes the image, in Hounsfield units, and the labels of a block of a volume.

    Args:
        case: what it shows.
        shape: of the whole volume: its resolution; two dims give a slice through the liver.
        block: which part of it; by default all.

    Returns:
        float32 and int32 arrays of the shape of the block.
    """
    block = whole(shape) if block is None else block
    image, labels = np.empty(sizes_of(block), np.float32), np.empty(sizes_of(block), np.int32)
    (first, last), *others = block
    step = max(1, _SLAB // max(1, math.prod(sizes_of(tuple(others)))))
    for begin in range(first, last, step):
        slab = (begin, min(begin + step, last)), *others
        own = slice(begin - first, slab[0][1] - first)
        image[own], labels[own] = _slab(case, shape, slab)
    return image, labels


def _slab(case: Case, shape: tuple[int, ...], block: Block) -> tuple[np.ndarray, np.ndarray]:
    axes = [((np.arange(size) + 0.5) / size).astype(np.float32) for size in shape]
    width = _BLUR + float(np.mean([1 / size for size in shape]))
    if len(shape) == 2:
        axes, block = [*axes, np.array([case.level], np.float32)], (*block, (0, 1))
    # Waves are computed along whole axes and cut afterwards: so every block has the very same numbers.
    points, texture = _bent(case, axes, block)
    image = np.full(sizes_of(block), _AIR, np.float32)
    labels = np.zeros(sizes_of(block), np.int32)
    for one in case.shapes:
        _add(one, points, axes, block, width, image, labels)
    inside = labels > 0
    image += np.where(inside, 6 * texture, np.float32(0))
    image += _scanner(case, axes, block, inside)
    noise = white_noise(case.key, [len(axis) for axis in axes], block)
    image += noise * np.where(inside, np.float32(_NOISE), np.float32(_NOISE / 2))
    return image.reshape(image.shape[: len(shape)]), labels.reshape(labels.shape[: len(shape)])


def _bent(case: Case, axes: list[np.ndarray], block: Block) -> tuple[list[np.ndarray], np.ndarray]:
    """Returns the coordinates of every voxel in the space that is bent, and one of the waves."""
    grid = [_along(axis[begin:end], dim) for dim, (axis, (begin, end)) in enumerate(zip(axes, block, strict=True))]
    points = [np.broadcast_to(axis, sizes_of(block)).copy() for axis in grid]
    wave = np.zeros((), np.float32)
    for parts, moves in zip(case.waves, case.moves.astype(np.float32), strict=True):
        curves = [
            np.cos(2 * math.pi * cycles * axis + phase).astype(np.float32)[begin:end]
            for (cycles, phase), axis, (begin, end) in zip(parts, axes, block, strict=True)
        ]
        wave = _along(curves[0], 0) * _along(curves[1], 1) * _along(curves[2], 2)
        for point, move in zip(points, moves, strict=True):
            point += move * wave
    return points, wave


def _along(values: np.ndarray, dim: int) -> np.ndarray:
    return values.reshape([-1 if dim == other else 1 for other in range(3)])


def _add(
    one: Shape,
    points: list[np.ndarray],
    axes: list[np.ndarray],
    block: Block,
    width: float,
    image: np.ndarray,
    labels: np.ndarray,
) -> None:
    """Draws a shape over what is there, in the box that it cannot leave."""
    reach = one.radii + _BEND * _WAVES + width
    low, high = one.centre - reach, one.centre + reach
    box = []
    for axis, (begin, end), least, most in zip(axes, block, low, high, strict=True):
        box.append((int(np.searchsorted(axis[begin:end], least)), int(np.searchsorted(axis[begin:end], most, "right"))))
    if any(begin >= end for begin, end in box):
        return
    own = slices_of(tuple(box))
    parts = zip(points, one.centre.astype(np.float32), one.radii.astype(np.float32), strict=True)
    squares = [((point[own] - centre) / radius) ** 2 for point, centre, radius in parts]
    distance = np.sqrt(squares[0] + squares[1] + squares[2])
    share = np.clip((1 - distance) * np.float32(one.radii.min() / width) + np.float32(0.5), 0, 1)
    is_inside = distance < 1
    if one.within:
        is_there = (labels[own] == one.within) | (labels[own] == one.label)
        share, is_inside = share * is_there, is_inside & is_there
    image[own] += share * (np.float32(one.intensity) - image[own])
    labels[own] = np.where(is_inside, np.int32(one.label), labels[own])


def _scanner(case: Case, axes: list[np.ndarray], block: Block, inside: np.ndarray) -> np.ndarray:
    """Returns what the scanner adds: rings around its axis, and less in the centre of the body."""
    x, y = (_along(axes[dim][begin:end] - np.float32(0.5), dim) for dim, (begin, end) in enumerate(block[:2]))
    radius = np.sqrt(x * x + y * y)
    added = np.float32(-case.darkening) * np.clip(1 - radius * np.float32(3), 0, 1)
    for ring, width, intensity in case.rings.astype(np.float32):
        added = added + intensity * np.clip(1 - np.abs(radius - ring) / width, 0, 1)
    return np.where(inside, added, np.float32(0))
