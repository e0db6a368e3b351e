"""Cases to segment, from files and by rules, and what can be wrong with them."""

import numpy as np
import pytest

from meshax.data.blocks import slices_of
from meshax.data.synthetic_ct import draw_case, make_block
from meshax.data.volumes import FileCases, SyntheticCases
from meshax.errors import DataError
from messages import pinned

IMAGE = np.arange(5 * 4 * 3).reshape(5, 4, 3).astype(np.float32)
LABELS = (np.arange(5 * 4 * 3).reshape(5, 4, 3) % 3).astype(np.uint8)
BLOCK = ((1, 4), (0, 4), (2, 3))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def opened(image=IMAGE, labels=LABELS, **options):
    np.save("image.npy", image)
    np.save("labels.npy", labels)
    return FileCases.open(["image.npy"], ["labels.npy"], **{"num_classes": 3, **options})


def test_files_are_paired_by_their_order():
    for number in (2, 1, 3):
        np.save(f"image{number}.npy", IMAGE + number)
        np.save(f"labels{number}.npy", (LABELS + number) % 3)
    cases = FileCases.open(["image*.npy"], ["labels*.npy"], num_classes=3)
    assert len(cases) == 3 and cases.shape(1) == (5, 4, 3)
    image, labels = cases.some([2, 0]).read(0, BLOCK)
    np.testing.assert_array_equal(image[..., 0], (IMAGE + 3)[slices_of(BLOCK)])
    np.testing.assert_array_equal(labels, LABELS[slices_of(BLOCK)])
    assert (image.dtype, labels.dtype) == (np.float32, np.int32)
    assert cases.some([0]).fingerprint != cases.fingerprint


def test_channels():
    two = np.stack([IMAGE, -IMAGE], -1)
    image, _ = opened(two, num_channels=2).read(0, BLOCK)
    np.testing.assert_array_equal(image, two[slices_of(BLOCK)])


@pytest.mark.parametrize("num_classes", [2, 3, 5])
def test_synthetic_cases(num_classes):
    cases = SyntheticCases(0, range(4, 7), (24, 20, 26), num_classes)
    image, labels = cases.read(0, BLOCK)
    expected = make_block(draw_case(0, 4), (24, 20, 26), BLOCK)
    np.testing.assert_array_equal(image[..., 0], expected[0])
    whole = cases.read(0, ((0, 24), (0, 20), (0, 26)))[1]
    assert set(np.unique(whole)) == set(range(num_classes))
    np.testing.assert_array_equal(labels, whole[slices_of(BLOCK)])


MISTAKES = {
    "no files": (
        DataError,
        lambda: FileCases.open(["*.nii"], ["*.npy"]),
        """
        there are no images '*.nii'.
          fix: correct the name or the glob.
        """,
    ),
    "too few labels": (
        DataError,
        lambda: (opened(), FileCases.open(["*.npy"], ["labels.npy"])),
        """
        there are 2 images, and labels of 1.
          rule: sorted by name, the first image belongs to the first labels.
          fix: name as many of both.
        """,
    ),
    "other shapes": (
        DataError,
        lambda: opened(labels=LABELS[:, :, :2]),
        """
        the labels 'labels.npy' have another shape than their image 'image.npy'.
          values: (5, 4, 2), beside (5, 4, 3)
          rule: each voxel has a label; sorted by name, the first image belongs to the first labels.
          fix: name the files so that they are in the same order, or make the labels again.
        """,
    ),
    "other dims": (
        DataError,
        lambda: opened(num_dims=2, num_channels=2),
        """
        the image 'image.npy' has a shape that the model cannot read.
          values: image.npy: (5, 4, 3)
          rule: a volume has 2 dims, and one more of 2 channels.
          fix: convert it, or give the model's fields other values.
        """,
    ),
    "an image of words": (
        DataError,
        lambda: opened(IMAGE.astype(str)),
        """
        the image 'image.npy' does not hold real numbers.
          values: image.npy: <U32
          fix: store it as float32 or int16.
        """,
    ),
    "labels with fractions": (
        DataError,
        lambda: opened(labels=LABELS.astype(np.float32)),
        """
        the labels 'labels.npy' are not whole numbers.
          values: labels.npy: float32
          rule: a label is the number of a class.
          fix: store them as uint8.
        """,
    ),
    "a class too many": (
        DataError,
        lambda: opened(labels=LABELS * 2).read(0, BLOCK),
        """
        the labels 'labels.npy' name classes that the model does not have.
          values: labels.npy: 4
          rule: labels are 0 to 2.
          fix: number them anew, or give the model more classes.
        """,
    ),
    "not a number": (
        DataError,
        lambda: opened(np.where(IMAGE == 32, np.nan, IMAGE)).read(0, BLOCK),
        """
        the image 'image.npy' has voxels that are not numbers.
          values: image.npy: the first at (2, 2, 2)
          fix: replace them, for example by the value of air.
        """,
    ),
}
test_messages = pinned(MISTAKES)


def test_what_is_wrong_elsewhere_is_not_read():
    cases = opened(np.where(IMAGE == 32, np.nan, IMAGE), np.where(IMAGE == 0, 9, LABELS))
    cases.read(0, ((3, 5), (0, 4), (0, 3)))
    for block in (((2, 3), (2, 3), (2, 3)), ((0, 1), (0, 1), (0, 1))):
        with pytest.raises(DataError):
            cases.read(0, block)
