"""Options of volumes: what is wrong with them is said at once."""

import dataclasses

import pytest

from meshax.data.augmentation import CHANGES
from meshax.errors import ArgumentError
from meshax.train import volume_options
from meshax.train.text_options import DataOptions, TextOptions
from messages import pinned


def test_the_changes_are_those_that_there_are():
    assert volume_options.CHANGES == CHANGES  # written twice: the help needs no numpy


@pytest.mark.parametrize("augment", [(), ("none",), ("flips", "crops"), CHANGES])
def test_what_may_be_changed(augment):
    DataOptions(augment=augment).check()


def test_other_volumes_to_evaluate_on():
    assert {"images", "labels"} <= {field.name for field in dataclasses.fields(TextOptions)}


MISTAKES = {
    "no labels": (
        ArgumentError,
        lambda: DataOptions(images=("a.npy",)).check(),
        """
        there is data.images, and no data.labels.
          fix: give data.labels= too.
        """,
    ),
    "no images to evaluate on": (
        ArgumentError,
        lambda: DataOptions(validation_labels=("a.npy",)).check(),
        """
        there is data.validation_labels, and no data.validation_images.
          fix: give data.validation_images= too.
        """,
    ),
    "a change that there is not": (
        ArgumentError,
        lambda: DataOptions(augment=("flip",)).check(),
        """
        data.augment has 'flip'.
          fix: did you mean "flips"?
        """,
    ),
    "a window upside down": (
        ArgumentError,
        lambda: DataOptions(window=(240.0, -160.0)).check(),
        """
        data.window is 240 -160.
          fix: give two intensities, the lower one first.
        """,
    ),
    "no cases": (
        ArgumentError,
        lambda: DataOptions(cases=-1).check(),
        """
        data.cases is -1.
          fix: give a number, 1 or more.
        """,
    ),
    "images for a language model": (
        ArgumentError,
        lambda: DataOptions(images=("a.npy",), labels=("b.npy",)).check_kind("tokens"),
        """
        data.images is 'a.npy', and the model learns from text.
          fix: leave it out, or choose a model of volumes.
        """,
    ),
    "text for a model of volumes": (
        ArgumentError,
        lambda: DataOptions(text=("a.txt",)).check_kind("volumes"),
        """
        data.text is 'a.txt', and the model learns from volumes.
          fix: leave it out; volumes are data.images= and data.labels=.
        """,
    ),
}
test_messages = pinned(MISTAKES)
