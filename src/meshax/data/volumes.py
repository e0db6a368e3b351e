"""Cases to segment: images with the class of each voxel, in files or made by rules, of which any block can be read.

What is wrong with a file is said when it is opened, as far as its header tells; what only its values tell (a label that
there is not, a voxel that is not a number), when a block with it is read: volumes may be larger than a memory.
"""

import glob
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np

from ..errors import DataError
from .blocks import Block
from .synthetic_ct import CLASSES, draw_case, make_block
from .volume_files import VolumeFile, open_volume

Read = tuple[np.ndarray, np.ndarray]  # an image, [dims.., channel], and its labels, [dims..]


class Cases(Protocol):
    """Images with labels, by number."""

    @property
    def fingerprint(self) -> str:
        """What they are known by."""

    def __len__(self) -> int:
        """How many there are."""

    def shape(self, number: int) -> tuple[int, ...]:
        """Returns the shape of a case, without channels."""

    def read(self, number: int, block: Block) -> Read:
        """Returns a block of the image and of the labels of a case: float32 and int32."""


# Which class of a model each class of the synthetic volumes is: a model may tell fewer of them apart.
SYNTHETIC = {2: (0, 0, 0, 1, 1), 3: (0, 0, 0, 1, 2), len(CLASSES): tuple(range(len(CLASSES)))}
CLASS_NAMES = {2: ("background", "liver"), 3: ("background", "liver", "lesion"), len(CLASSES): CLASSES}


@dataclass(frozen=True)
class SyntheticCases:
    """Synthetic CT, at the resolution that is asked for; of two classes the liver, of three its lesions beside."""

    seed: int
    numbers: range
    resolution: tuple[int, ...]
    num_classes: int = len(CLASSES)

    @property
    def fingerprint(self) -> str:
        """Returns what they are made from."""
        return f"synthetic-{self.seed}-{self.numbers.start}-{self.numbers.stop}-{self.num_classes}"

    def __len__(self) -> int:
        return len(self.numbers)

    def shape(self, number: int) -> tuple[int, ...]:
        """Returns the resolution."""
        return self.resolution

    def read(self, number: int, block: Block) -> Read:
        """Makes a block of a case."""
        image, labels = make_block(draw_case(self.seed, self.numbers[number]), self.resolution, block)
        return image[..., None], np.array(SYNTHETIC[self.num_classes], np.int32)[labels]


@dataclass(frozen=True)
class FileCases:
    """Images and labels in files, in pairs."""

    images: tuple[VolumeFile, ...]
    labels: tuple[VolumeFile, ...]
    num_dims: int  # of a volume, without channels
    num_channels: int
    num_classes: int

    @classmethod
    def open(
        cls,
        images: Sequence[str],
        labels: Sequence[str],
        num_dims: int = 3,
        num_channels: int = 1,
        num_classes: int = len(CLASSES),
    ) -> "FileCases":
        """Opens files by name or by glob; sorted by name, the first image belongs to the first labels.

        Args:
            images: names or globs of images; a dim more than `num_dims` is that of the channels.
            labels: as many names or globs of labels.
            num_dims: of a volume.
            num_channels: of an image.
            num_classes: labels are below.
        """
        pictures, truths = (_paths(names, what) for names, what in ((images, "images"), (labels, "labels")))
        if len(pictures) != len(truths):
            raise DataError(
                f"there are {len(pictures)} images, and labels of {len(truths)}.",
                rule="sorted by name, the first image belongs to the first labels.",
                fix="name as many of both.",
            )
        opened = tuple(map(open_volume, pictures)), tuple(map(open_volume, truths))
        cases = cls(*opened, num_dims, num_channels, num_classes)
        for image, truth in zip(*opened, strict=True):
            cases._check(image, truth)
        return cases

    def _check(self, image: VolumeFile, truth: VolumeFile) -> None:
        """Raises if a header says that something is wrong."""
        channels = image.shape[self.num_dims :]
        if len(image.shape) not in (self.num_dims, self.num_dims + 1) or channels not in (
            ((), (1,)) if self.num_channels == 1 else ((self.num_channels,),)
        ):
            raise DataError(
                f"the image {image.path.name!r} has a shape that the model cannot read.",
                values=f"{image.path}: {image.shape}",
                rule=f"a volume has {self.num_dims} dims, and one more of {self.num_channels} channels"
                + (", or none." if self.num_channels == 1 else "."),
                fix="convert it, or give the model's fields other values.",
            )
        if image.shape[: self.num_dims] != truth.shape:
            raise DataError(
                f"the labels {truth.path.name!r} have another shape than their image {image.path.name!r}.",
                values=f"{truth.shape}, beside {image.shape[: self.num_dims]}",
                rule="each voxel has a label; sorted by name, the first image belongs to the first labels.",
                fix="name the files so that they are in the same order, or make the labels again.",
            )
        if image.dtype.kind not in "fiu":
            raise DataError(
                f"the image {image.path.name!r} does not hold real numbers.",
                values=f"{image.path}: {image.dtype}",
                fix="store it as float32 or int16.",
            )
        if truth.dtype.kind not in "iub":
            raise DataError(
                f"the labels {truth.path.name!r} are not whole numbers.",
                values=f"{truth.path}: {truth.dtype}",
                rule="a label is the number of a class.",
                fix="store them as uint8.",
            )

    @cached_property
    def fingerprint(self) -> str:
        """Returns what the files are known by: their names, shapes and sizes."""
        files = [(f.path.name, f.shape, str(f.dtype), f.path.stat().st_size) for f in (*self.images, *self.labels)]
        return hashlib.sha256(json.dumps(files).encode()).hexdigest()[:16]

    def __len__(self) -> int:
        return len(self.images)

    def shape(self, number: int) -> tuple[int, ...]:
        """Returns the shape of a case."""
        return self.labels[number].shape

    def some(self, numbers: Sequence[int]) -> "FileCases":
        """Returns some of the cases."""
        images, labels = (tuple(files[number] for number in numbers) for files in (self.images, self.labels))
        return FileCases(images, labels, self.num_dims, self.num_channels, self.num_classes)

    def read(self, number: int, block: Block) -> Read:
        """Reads a block of a case, and raises if what it holds is wrong."""
        file, truth = self.images[number], self.labels[number]
        image = read_image(file, block, self.num_channels)
        labels = truth.read(block)
        if labels.size and not 0 <= labels.min() <= labels.max() < self.num_classes:
            wrong = sorted({int(value) for value in np.unique(labels) if not 0 <= value < self.num_classes})
            raise DataError(
                f"the labels {truth.path.name!r} name classes that the model does not have.",
                values=f"{truth.path}: {', '.join(map(str, wrong[:5]))}",
                rule=f"labels are 0 to {self.num_classes - 1}.",
                fix="number them anew, or give the model more classes.",
            )
        return image, labels.astype(np.int32)


def read_image(file: VolumeFile, block: Block, num_channels: int) -> np.ndarray:
    """Reads a block of an image, [dims.., channel], as float32; raises if a voxel is not a number."""
    has_channels = len(file.shape) > len(block)
    image = file.read((*block, (0, num_channels)) if has_channels else block)
    image = np.ascontiguousarray(image if has_channels else image[..., None], np.float32)
    if not np.isfinite(image).all():
        place = np.argwhere(~np.isfinite(image))[0][: len(block)] + [begin for begin, _ in block]
        raise DataError(
            f"the image {file.path.name!r} has voxels that are not numbers.",
            values=f"{file.path}: the first at {tuple(int(index) for index in place)}",
            fix="replace them, for example by the value of air.",
        )
    return image


def _paths(names: Sequence[str], what: str) -> list[Path]:
    paths = []
    for name in names:
        some = sorted(glob.glob(str(Path(name).expanduser()), recursive=True))
        if not some:
            raise DataError(f"there are no {what} {name!r}.", fix="correct the name or the glob.")
        paths += [Path(path) for path in some]
    return paths
