"""Images of shapes: seeded, the same at any resolution, and each its own."""

import numpy as np
import pytest

from meshax.data.shapes import SHAPES, make_image


def test_an_image_is_known_by_its_seed_and_number():
    (one, label), (again, same) = (make_image(3, 5, (17, 24)) for _ in range(2))
    np.testing.assert_array_equal(one, again)
    assert label == same and one.shape == (17, 24, 3) and one.dtype == np.float32
    assert (make_image(3, 6, (17, 24))[0] != one).all() and (make_image(4, 5, (17, 24))[0] != one).all()


def test_every_shape_is_shown_about_as_often():
    labels = [make_image(0, number, (4, 4))[1] for number in range(600)]
    counts = np.bincount(labels, minlength=len(SHAPES))
    assert len(counts) == len(SHAPES) and counts.min() > 60


@pytest.mark.parametrize("number", range(8))
def test_it_is_the_same_at_any_resolution(number):
    """Noise apart: means over 16 x 16 parts."""
    images = (make_image(0, number, (size, size), 1)[0] for size in (64, 128))
    coarse, fine = (image.reshape(16, len(image) // 16, 16, -1).mean((1, 3)) for image in images)
    assert np.corrcoef(coarse.ravel(), fine.ravel())[0, 1] > 0.9


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_has_an_inside_and_an_outside(name):
    u, v = np.meshgrid(np.linspace(-1.5, 1.5, 301), np.linspace(-1.5, 1.5, 301), indexing="ij")
    share = (SHAPES[name](u, v) > 0).mean()
    assert 0.1 < share < 0.4
    assert not (SHAPES[name](u, v) > 0)[[0, -1]].any()
