"""Synthetic volumes: seeded, the same case at any resolution, any block alone."""

from dataclasses import replace

import numpy as np
import pytest

from meshax.data import synthetic_ct
from meshax.data.synthetic_ct import CLASSES, LESION, LIVER, draw_case, make_block


def fractions(labels):
    return np.bincount(labels.ravel(), minlength=len(CLASSES)) / labels.size


def centroid(labels, label):
    places = np.argwhere(labels == label)
    return (places.mean(0) + 0.5) / labels.shape


def test_a_case_is_known_by_its_seed_and_number():
    one, again = (make_block(draw_case(3, 5), (17, 15, 19)) for _ in range(2))
    np.testing.assert_array_equal(one[0], again[0])
    np.testing.assert_array_equal(one[1], again[1])
    for other in (draw_case(3, 6), draw_case(4, 5)):
        assert (make_block(other, (17, 15, 19))[1] != one[1]).mean() > 0.005
    assert one[0].dtype == np.float32 and one[1].dtype == np.int32


@pytest.mark.parametrize("number", range(3))
def test_a_case_is_the_same_at_any_resolution(number):
    case = draw_case(0, number)
    coarse, fine = (make_block(case, shape) for shape in ((36, 40, 33), (72, 75, 80)))
    np.testing.assert_allclose(fractions(coarse[1]), fractions(fine[1]), atol=0.004)
    for label in range(1, LIVER + 1):
        np.testing.assert_allclose(centroid(coarse[1], label), centroid(fine[1], label), atol=0.008)
    usual = [np.median(image[labels == LIVER]) for image, labels in (coarse, fine)]
    assert abs(usual[0] - usual[1]) < 6


def test_small_lesions_vanish_when_the_volume_is_shrunk():
    def share_of_lesions_seen(size):
        seen = total = 0
        for number in range(6):
            case = draw_case(1, number)
            for lesion in (shape for shape in case.shapes if shape.label == LESION and shape.radii.max() < 0.02):
                alone = replace(case, shapes=(replace(lesion, within=0),))
                seen += bool((make_block(alone, (size,) * 3)[1] == LESION).any())
                total += 1
        return seen / total

    assert share_of_lesions_seen(16) < 0.5 < 0.95 < share_of_lesions_seen(96)


@pytest.mark.parametrize(
    ("shape", "block"),
    [
        ((33, 40, 29), ((0, 17), (20, 40), (9, 29))),
        ((33, 40, 29), ((16, 17), (0, 40), (0, 29))),
        ((33, 40, 29), ((32, 33), (39, 40), (0, 1))),
        ((45, 50), ((20, 45), (7, 31))),
    ],
)
def test_a_block_is_a_part_of_the_whole(shape, block, monkeypatch):
    case = draw_case(2, 9)
    image, labels = make_block(case, shape)
    monkeypatch.setattr(synthetic_ct, "_SLAB", 700)  # slabs of another thickness change nothing
    part = make_block(case, shape, block)
    own = tuple(slice(*bounds) for bounds in block)
    np.testing.assert_array_equal(part[0], image[own])
    np.testing.assert_array_equal(part[1], labels[own])


def test_every_class_is_there_and_looks_its_part():
    volumes = [make_block(draw_case(0, number), (48, 48, 48)) for number in range(8)]
    image = np.stack([image for image, _ in volumes])
    labels = np.stack([labels for _, labels in volumes])
    assert (fractions(labels) > (0.3, 0.2, 0.008, 0.015, 0.0002)).all()
    assert image[labels == 0].mean() < -950
    assert 60 < image[labels == LIVER].mean() < 110
    assert image[labels == LESION].mean() < image[labels == LIVER].mean() - 15
    # A lesion is in the liver: nothing else is beside it.
    edge = np.zeros_like(labels, bool)
    for dim in (1, 2, 3):
        for step in (-1, 1):
            edge |= (np.roll(labels, step, dim) == LESION) & (labels != LESION)
    assert (labels[edge] == LIVER).mean() > 0.8
