"""Images to learn to tell apart: in files, or without any, shapes made by rules."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from rich.console import Console

from ..data.labelled_images import FileImages, ImageBatches, Images, ShapeImages, in_order
from ..data.shapes import SHAPES
from ..errors import TrainingError
from ..tensors import Tensor
from .config import TrainConfig
from .evaluation import Evaluation
from .volume_options import VolumeFiles

_MADE = 8_000  # images to train on, where nothing says how many
_HELD_OUT = range(1_000_000, 1_000_480)  # numbers of images of shapes that no run learns from


@dataclass(frozen=True)
class ImageExamples:
    """The images to train and to evaluate on, and how they are read."""

    unit: ClassVar[str] = "image"

    train: Images
    held_out: Images
    shape: tuple[int, int]  # of an example
    changes: tuple[str, ...]

    @classmethod
    def open(cls, config: TrainConfig, console: Console, read_only: bool = False) -> "ImageExamples":
        """Opens the images of a run; nothing is prepared."""
        data = config.data
        shape, num_channels, num_classes = _wanted(config)
        if data.images:
            images = FileImages.open(data.images, data.labels, num_channels, num_classes)
            if data.validation_images:
                names = data.validation_images, data.validation_labels
                return cls._with(config, images, FileImages.open(*names, num_channels, num_classes))
            held_out = range(0, len(images), 10)
            if len(images) < 2:
                raise TrainingError(
                    "there are too few images to hold one out.",
                    values=f"{len(images)} of them",
                    rule="every tenth image is held out, and at least one.",
                    fix="give more images, or pass data.validation_images=FILE and data.validation_labels=FILE.",
                )
            others = [number for number in range(len(images)) if number not in held_out]
            return cls._with(config, images.some(others), images.some(held_out))
        if num_classes != len(SHAPES):
            raise TrainingError(
                "images of shapes do not fit this model.",
                values=f"classes {num_classes}",
                rule=f"they have {len(SHAPES)} classes: {', '.join(SHAPES)}.",
                fix=f"give data.images= and data.labels=, or model.classes={len(SHAPES)}.",
            )
        numbers = range(data.cases or _MADE), _HELD_OUT
        return cls._with(config, *(ShapeImages(0, some, shape, num_channels) for some in numbers))

    @classmethod
    def other(cls, config: TrainConfig, options: VolumeFiles, console: Console) -> "ImageExamples":
        """Opens other images to evaluate a run on."""
        _, num_channels, num_classes = _wanted(config)
        images = FileImages.open(options.images, options.labels, num_channels, num_classes)
        return cls._with(config, images, images)

    @classmethod
    def _with(cls, config: TrainConfig, train: Images, held_out: Images) -> "ImageExamples":
        changes = () if config.data.augment == ("none",) else config.data.augment
        return cls(train, held_out, _wanted(config)[0], changes)

    @staticmethod
    def shapes(batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Returns the shapes of a batch: what a model that tells images apart asks for."""
        return batch

    def stream(self, sizes: Mapping[str, int], seed: int, rows: Sequence[int] | None = None) -> ImageBatches:
        """Returns the batches to train on."""
        return ImageBatches(self.train, self.shape, sizes["batch"], changes=self.changes, seed=seed, rows=rows)

    def held_out_batches(
        self, sizes: Mapping[str, int], rows: Sequence[int] | None = None
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yields the held-out images once, in order."""
        return in_order(self.held_out, self.shape, sizes["batch"], rows)

    def picture(self, *_: Any) -> None:
        """There is nothing to be seen that the accuracy does not say."""

    def judge(self, *_: Any) -> None:
        """Nothing is written for such a model to be judged by."""

    def metrics(self, loss: float, count: float) -> dict[str, float]:
        """Returns nothing: the model knows its accuracy."""
        return {}

    def amounts(self) -> tuple[int, int]:
        """Returns the numbers of images."""
        return len(self.train), len(self.held_out)

    def identity(self) -> dict[str, Any]:
        """Returns what the images are known by."""
        return {"images": self.train.fingerprint}

    def facts(self) -> dict[str, float]:
        """Returns how many images there are."""
        return {"train_images": len(self.train), "held_out_images": len(self.held_out)}

    def baseline(self) -> tuple[str, Evaluation] | None:
        """Returns nothing."""
        return None


def _wanted(config: TrainConfig) -> tuple[tuple[int, int], int, int]:
    """Returns what the model of a run asks for: the shape of an example, its channels, and the number of classes."""
    model = config.model()
    _, x, y, channel = model.batch(config.sizes())["image"].dims
    return (x.size, y.size), channel.size, model.sizes()["classes"]
