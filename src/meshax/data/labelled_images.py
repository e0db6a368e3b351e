"""Images with one class each, made by rules or in files, and batches of them.

Which image an example shows, and what is changed in it, follows from the seed and from the number of the example in the
stream; so batch n is a function of n.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..errors import DataError
from .augmentation import Augmentation, draw, unchanged
from .blocks import slices_of, whole
from .shapes import SHAPES, make_image
from .stream import position_in

Batch = dict[str, np.ndarray]


class Images(Protocol):
    """Images of one size with a class each, by number."""

    @property
    def fingerprint(self) -> str:
        """What they are known by."""

    @property
    def size(self) -> tuple[int, int]:
        """Their sides."""

    def __len__(self) -> int:
        """How many there are."""

    def read(self, number: int) -> tuple[np.ndarray, int]:
        """Returns an image, [x, y, channel], of numbers around -1 to 1, and its class."""


@dataclass(frozen=True)
class ShapeImages:
    """Images of shapes, at the resolution that is asked for."""

    seed: int
    numbers: range
    size: tuple[int, int]
    num_channels: int = 3

    @property
    def fingerprint(self) -> str:
        """Returns what they are made from."""
        return f"shapes-{self.seed}-{self.numbers.start}-{self.numbers.stop}-{len(SHAPES)}"

    def __len__(self) -> int:
        return len(self.numbers)

    def read(self, number: int) -> tuple[np.ndarray, int]:
        """Makes an image."""
        return make_image(self.seed, self.numbers[number], self.size, self.num_channels)


@dataclass(frozen=True)
class FileImages:
    """Images in one array, [image, x, y, channel] or [image, x, y], and their classes in another; both .npy."""

    images: Path
    labels: Path
    num_channels: int
    num_classes: int
    numbers: tuple[int, ...] | None = None  # which of them; none: all

    @classmethod
    def open(cls, images: Sequence[str], labels: Sequence[str], num_channels: int, num_classes: int) -> "FileImages":
        """Opens the files, maps them into memory, and raises if they do not fit each other or the model."""
        if len(images) != 1 or len(labels) != 1:
            raise DataError(
                f"there are {len(images)} files of images and {len(labels)} of labels.",
                rule="images are one .npy file, [image, x, y, channel] or [image, x, y]; labels are another, [image].",
                fix="join them into one array each.",
            )
        opened = cls(Path(images[0]).expanduser(), Path(labels[0]).expanduser(), num_channels, num_classes)
        opened._check()
        return opened

    def _check(self) -> None:
        images, labels = self._arrays
        channels = images.shape[3:] or (1,)
        if images.ndim not in (3, 4) or channels != (self.num_channels,) or labels.shape != images.shape[:1]:
            raise DataError(
                f"the images {self.images.name!r} and the labels {self.labels.name!r} do not fit.",
                values=f"{images.shape} and {labels.shape}",
                rule=f"the model reads [image, x, y, {self.num_channels}], and a label for each image.",
                fix="convert them, or give the model other channels.",
            )
        if images.dtype.kind not in "fu" or labels.dtype.kind not in "iu":
            raise DataError(
                f"the images {self.images.name!r} are {images.dtype}, their labels {labels.dtype}.",
                rule="images are bytes, or floats around -1 to 1; a label is the number of a class.",
                fix="store images as uint8 and labels as int32.",
            )
        if labels.size and not 0 <= labels.min() <= labels.max() < self.num_classes:
            raise DataError(
                f"the labels {self.labels.name!r} name classes that the model does not have.",
                values=f"{labels.min()} to {labels.max()}",
                rule=f"labels are 0 to {self.num_classes - 1}.",
                fix="number them anew, or give the model more classes.",
            )

    @cached_property
    def _arrays(self) -> tuple[np.ndarray, np.ndarray]:
        try:
            images, labels = (np.load(path, mmap_mode="r", allow_pickle=False) for path in (self.images, self.labels))
        except (OSError, ValueError) as error:
            raise DataError(
                "images or their labels cannot be read.",
                values=f"{self.images}, {self.labels}: {error}",
                fix="give two .npy files, as numpy.save writes them.",
            ) from error
        return images, labels

    @property
    def size(self) -> tuple[int, int]:
        """Returns the sides of the images."""
        return self._arrays[0].shape[1:3]  # type: ignore[return-value]

    @cached_property
    def fingerprint(self) -> str:
        """Returns what the files are known by: their names, shapes and sizes."""
        arrays = zip((self.images, self.labels), self._arrays, strict=True)
        facts = [(path.name, array.shape, str(array.dtype), path.stat().st_size) for path, array in arrays]
        return hashlib.sha256(json.dumps([facts, self.numbers]).encode()).hexdigest()[:16]

    def __len__(self) -> int:
        return len(self._arrays[1]) if self.numbers is None else len(self.numbers)

    def some(self, numbers: Sequence[int]) -> "FileImages":
        """Returns some of the images."""
        return FileImages(self.images, self.labels, self.num_channels, self.num_classes, tuple(numbers))

    def read(self, number: int) -> tuple[np.ndarray, int]:
        """Reads an image: of bytes, 0 becomes -1 and 255 becomes 1."""
        number = number if self.numbers is None else self.numbers[number]
        images, labels = self._arrays
        image = np.asarray(images[number])
        image = image.astype(np.float32) / 127.5 - 1 if image.dtype.kind == "u" else image.astype(np.float32)
        if not np.isfinite(image).all():
            raise DataError(
                f"an image of {self.images.name!r} has places that are not numbers.",
                values=f"image {number}",
                fix="replace them.",
            )
        return image.reshape(*image.shape[:2], self.num_channels), int(labels[number])


def _read(images: Images, number: int, change: Augmentation, shape: tuple[int, int]) -> tuple[np.ndarray, int]:
    """Returns a part of an image, changed; where the image is smaller, the rest is 0."""
    image, label = images.read(number)
    asked = change.source(whole(shape), shape)
    part = image[slices_of(tuple((min(b, n), min(e, n)) for (b, e), n in zip(asked, image.shape, strict=False)))]
    padded = np.zeros((*shape, image.shape[-1]), np.float32)
    padded[tuple(map(slice, part.shape[:2]))] = part
    return change.changed(change.turned(padded), whole(shape), shape), label


class ImageBatches(Iterator[Batch]):
    """An endless stream of batches: each pass goes over all images, in an order of its own.

    Args:
        images: what to learn from.
        shape: of an example: a larger image is cropped, a smaller one padded.
        batch: how many examples are in a batch, over all processes.
        changes: what is changed at random, of `augmentation.CHANGES`.
        seed: of the order and the changes.
        rows: which of each batch to read, in order; by default all.
    """

    def __init__(
        self,
        images: Images,
        shape: tuple[int, int],
        batch: int,
        *,
        changes: Sequence[str] = (),
        seed: int = 0,
        rows: Sequence[int] | None = None,
    ):
        self._images, self._shape, self._batch, self._seed = images, shape, batch, seed
        self._changes, self._rows = tuple(changes), range(batch) if rows is None else rows
        self._identity = {
            "images": images.fingerprint, "shape": list(shape), "batch": batch, "seed": seed, "changes": list(changes)
        }  # fmt: skip
        self._step = 0
        self._order: tuple[int, np.ndarray] = (-1, np.empty(0, int))  # of the last pass that was asked for

    def __next__(self) -> Batch:
        first = self._step * self._batch
        self._step += 1
        return _stacked([self._example(first + row) for row in self._rows])

    def _example(self, number: int) -> tuple[np.ndarray, int]:
        epoch, place = divmod(number, len(self._images))
        if self._order[0] != epoch:
            self._order = epoch, np.random.default_rng([self._seed, epoch]).permutation(len(self._images))
        change = draw((self._seed, 1, number), self._changes, self._images.size, self._shape)
        return _read(self._images, int(self._order[1][place]), change, self._shape)

    @property
    def position(self) -> int:
        """How many batches were read, in all starts of a run together."""
        return self._step

    def state(self) -> dict[str, Any]:
        """Returns what `restore` needs to continue here, for JSON: the same in every process."""
        return {**self._identity, "position": self._step}

    def restore(self, state: dict[str, Any]) -> None:
        """Continues where a stream with this state was. The number of processes may be another."""
        same = "images, shape, batch, seed and changes"
        self._step = int(position_in(state, self._identity, same, "stream of images"))


def in_order(images: Images, shape: tuple[int, int], batch: int, rows: Sequence[int] | None = None) -> Iterator[Batch]:
    """Yields all images once, in order, unchanged and cut from the middle; what fills the last batch weighs nothing."""
    rows = range(batch) if rows is None else rows
    room = [max(n - m, 0) // 2 for n, m in zip(images.size, shape, strict=True)]
    for first in range(0, len(images), batch):
        numbers = [first + row for row in rows]
        examples = [_read(images, min(number, len(images) - 1), unchanged(room), shape) for number in numbers]
        yield _stacked(examples) | {"weights": np.array([number < len(images) for number in numbers], np.float32)}


def _stacked(examples: Sequence[tuple[np.ndarray, int]]) -> Batch:
    images, labels = zip(*examples, strict=True)
    weights = np.ones(len(labels), np.float32)
    return {"image": np.stack(images), "labels": np.array(labels, np.int32), "weights": weights}
