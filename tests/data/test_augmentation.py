"""Random changes: the same for a block as for the whole, each kind by itself."""

import itertools

import numpy as np
import pytest

from meshax.data.augmentation import CHANGES, draw, unchanged
from meshax.data.blocks import slices_of, whole

VOLUME, SHAPE = (9, 8, 7), (6, 8, 5)


def many(changes, count=200):
    return [draw((3, number), changes, VOLUME, SHAPE) for number in range(count)]


def test_nothing_is_changed_unless_it_is_asked_for():
    plain = unchanged((1, 0, 1))  # the middle
    for one in many(()):
        assert (one.is_reversed, one.offset) == (plain.is_reversed, plain.offset)
        assert (one.scale, one.shift, one.noise) == (1.0, 0.0, 0.0)


def test_flips_and_rotations():
    assert {one.is_reversed for one in many(["flips"])} == set(itertools.product((False, True), repeat=3))
    turned = {one.is_reversed for one in many(["rotations"])}
    assert turned == {(False,) * 3, (True, True, False), (True, False, True), (False, True, True)}  # two dims, or none


def test_crops_come_from_anywhere():
    assert {one.offset for one in many(["crops"])} == set(itertools.product(range(4), range(1), range(3)))


def test_one_kind_does_not_change_what_another_draws():
    for all_, alone in zip(many(CHANGES, 20), many(["noise"], 20)):
        assert (all_.noise, all_.key) == (alone.noise, alone.key)
        assert 0.9 <= all_.scale <= 1.1 and -0.1 <= all_.shift <= 0.1


@pytest.mark.parametrize("number", range(4))
def test_a_block_is_a_part_of_the_whole(number):
    volume = np.arange(np.prod(VOLUME), dtype=np.float32).reshape(*VOLUME, 1) / 100
    one = draw((5, number), CHANGES, VOLUME, SHAPE)

    def made(block):
        part = volume[slices_of(one.source(block, SHAPE))]
        return one.changed(one.turned(part), block, SHAPE)

    full = made(whole(SHAPE))
    for block in (((2, 5), (0, 8), (3, 5)), ((0, 1), (7, 8), (0, 5))):
        np.testing.assert_array_equal(made(block), full[slices_of(block)])
