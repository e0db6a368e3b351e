"""Images with a class each: made or read, and in batches that are the same in any number of processes."""

import numpy as np
import pytest

from meshax.data.augmentation import CHANGES
from meshax.data.labelled_images import FileImages, ImageBatches, ShapeImages, in_order
from meshax.errors import DataError
from messages import pinned

SHAPE = (12, 10)
IMAGES = ShapeImages(0, range(7), (14, 10))


def stream(rows=None, changes=CHANGES, batch=4, seed=0, images=IMAGES):
    return ImageBatches(images, SHAPE, batch, changes=changes, seed=seed, rows=rows)


def test_a_batch():
    batch = next(stream())
    assert {name: (array.shape, array.dtype) for name, array in batch.items()} == {
        "image": ((4, 12, 10, 3), np.float32),
        "labels": ((4,), np.int32),
        "weights": ((4,), np.float32),
    }


def test_rows_are_parts_of_the_whole():
    whole, part = next(stream()), next(stream(rows=(3, 1)))
    for name, array in whole.items():
        np.testing.assert_array_equal(part[name], array[[3, 1]])


def test_each_pass_shows_every_image_once():
    plain = stream(batch=7, changes=())
    passes = [sorted(next(plain)["image"].sum((1, 2, 3))) for _ in range(2)]
    assert passes[0] == passes[1] and len(set(passes[0])) == 7


def test_a_stream_goes_on_where_it_stopped():
    one, other = stream(), stream()
    for _ in range(3):
        next(one)
    other.restore(one.state())
    np.testing.assert_array_equal(next(one)["image"], next(other)["image"])


def test_all_are_evaluated_once():
    batches = list(in_order(IMAGES, SHAPE, 4))
    assert [batch["weights"].tolist() for batch in batches] == [[1, 1, 1, 1], [1, 1, 1, 0]]
    labels = np.concatenate([batch["labels"] for batch in batches])[:7]
    assert labels.tolist() == [IMAGES.read(number)[1] for number in range(7)]
    np.testing.assert_array_equal(batches[1]["image"][2], IMAGES.read(6)[0][1:13])  # from the middle
    np.testing.assert_array_equal(list(in_order(IMAGES, SHAPE, 4, rows=(2,)))[1]["image"][0], batches[1]["image"][2])


def write(folder, images, labels):
    np.save(folder / "images.npy", images)
    np.save(folder / "labels.npy", labels)
    return (str(folder / "images.npy"),), (str(folder / "labels.npy"),)


def test_files(tmp_path):
    bytes_ = np.arange(3 * 5 * 4, dtype=np.uint8).reshape(3, 5, 4)
    images = FileImages.open(*write(tmp_path, bytes_, np.int64([2, 0, 1])), num_channels=1, num_classes=3)
    assert (len(images), images.size) == (3, (5, 4))
    image, label = images.some([2, 1]).read(0)
    np.testing.assert_allclose(image[..., 0], bytes_[2] / 127.5 - 1, 1e-6)
    assert label == 1
    padded = next(iter(in_order(images, (6, 6), 1)))["image"]
    np.testing.assert_array_equal(padded[0, :5, :4], images.read(0)[0])
    assert (padded[0, 5:] == 0).all() and (padded[0, :, 4:] == 0).all()
    assert images.fingerprint != images.some([0, 1]).fingerprint


MISTAKES = {
    "other channels": (
        (np.zeros((3, 5, 4, 2), np.uint8), np.int32([0, 1, 2])),
        r"do not fit.*\(3, 5, 4, 2\) and \(3,\).*the model reads \[image, x, y, 1\]",
    ),
    "too few labels": ((np.zeros((3, 5, 4), np.uint8), np.int32([0, 1])), "do not fit"),
    "no bytes": (
        (np.zeros((3, 5, 4), np.int32), np.int32([0, 1, 2])),
        "are int32, their labels",
    ),
    "a class that there is not": ((np.zeros((3, 5, 4), np.uint8), np.int32([0, 1, 3])), "labels are 0 to 2"),
}


@pytest.mark.parametrize(("arrays", "text"), MISTAKES.values(), ids=MISTAKES)
def test_wrong_files(tmp_path, arrays, text):
    with pytest.raises(DataError, match=f"(?s){text}"):
        FileImages.open(*write(tmp_path, *arrays), num_channels=1, num_classes=3)


def test_places_that_are_no_numbers(tmp_path):
    files = write(tmp_path, np.full((2, 5, 4), np.nan, np.float32), np.int32([0, 1]))
    with pytest.raises(DataError, match="places that are not numbers"):
        FileImages.open(*files, num_channels=1, num_classes=3).read(0)


def test_what_is_no_array(tmp_path):
    (tmp_path / "a.npy").write_text("no")
    with pytest.raises(DataError, match="cannot be read"):
        FileImages.open((str(tmp_path / "a.npy"),), (str(tmp_path / "b.npy"),), 1, 3)


test_messages = pinned(
    {
        "several files": (
            DataError,
            lambda: FileImages.open(("a.npy", "b.npy"), ("c.npy",), 1, 3),
            """
            there are 2 files of images and 1 of labels.
              rule: images are one .npy file, [image, x, y, channel] or [image, x, y]; labels are another, [image].
              fix: join them into one array each.
            """,
        ),
        "another stream's state": (
            DataError,
            lambda: stream(seed=1).restore(stream().state()),
            """
            this state is of another stream of images.
              values: seed was 0, is 1
              rule: a stream continues with the same images, shape, batch, seed and changes.
              fix: make the stream as it was, or begin a new one.
            """,
        ),
    }
)
