"""Noise that is the same whoever makes it."""

import numpy as np

from meshax.data.blocks import slices_of, white_noise, whole

SHAPE = (24, 21, 35)


def test_noise_of_a_block_is_a_part_of_the_whole():
    full = white_noise(7, SHAPE, whole(SHAPE))
    for block in (((0, 1), (0, 1), (0, 1)), ((5, 24), (3, 4), (30, 35)), ((23, 24), (20, 21), (34, 35))):
        np.testing.assert_array_equal(white_noise(7, SHAPE, block), full[slices_of(block)])


def test_noise_is_nearly_normal_and_unlike_its_neighbours():
    noise = white_noise(0, SHAPE, whole(SHAPE))
    assert noise.dtype == np.float32
    assert abs(noise.mean()) < 0.02 and abs(noise.std() - 1) < 0.02
    assert abs((noise**4).mean() - 2.7) < 0.1  # 3 of a normal one, 2.7 of the sum of four
    for dim in range(3):
        beside = np.roll(noise, 1, dim)
        assert abs((noise * beside).mean()) < 0.03
    assert abs((noise * white_noise(1, SHAPE, whole(SHAPE))).mean()) < 0.03


def test_an_empty_block():
    assert white_noise(0, SHAPE, ((0, 24), (5, 5), (0, 35))).shape == (24, 0, 35)
