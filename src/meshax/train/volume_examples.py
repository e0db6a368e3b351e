"""Volumes to learn to segment from: in files, or without any, synthetic CT at the resolution of the model."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

from rich.console import Console

from ..data.volume_stream import LazyArray, VolumeBatches, tiles
from ..data.volumes import CLASS_NAMES, SYNTHETIC, Cases, FileCases, SyntheticCases
from ..errors import TrainingError
from ..layout import Layout
from ..mesh import Mesh
from ..processes import LocalRows
from ..tensors import Tensor
from .config import TrainConfig
from .evaluation import Evaluation
from .slices import draw_slices, slices_of_batch
from .volume_options import VolumeFiles

_HELD_OUT = range(1_000_000, 1_000_012)  # numbers of synthetic cases that no run learns from
_MADE = 400  # synthetic cases to train on, where nothing says how many
_SEEN = 4  # examples in a picture


@dataclass(frozen=True)
class VolumeExamples:
    """The cases to train and to evaluate on, and how they are read."""

    unit: ClassVar[str] = "voxel"

    train: Cases
    held_out: Cases
    shape: tuple[int, ...]  # of an example
    num_channels: int
    class_names: tuple[str, ...]
    window: tuple[float, float]
    changes: tuple[str, ...]

    @classmethod
    def open(cls, config: TrainConfig, console: Console, read_only: bool = False) -> "VolumeExamples":
        """Opens the volumes of a run; nothing is prepared."""
        data = config.data
        shape, num_channels, num_classes = _wanted(config)
        if data.images:
            cases = FileCases.open(data.images, data.labels, len(shape), num_channels, num_classes)
            if data.validation_images:
                sizes = len(shape), num_channels, num_classes
                train, held_out = cases, FileCases.open(data.validation_images, data.validation_labels, *sizes)
            else:
                train, held_out = _held_out_of(cases)
            return cls._with(config, train, held_out)
        if num_channels != 1 or num_classes not in SYNTHETIC:
            raise TrainingError(
                "synthetic volumes do not fit this model.",
                values=f"channels {num_channels}, classes {num_classes}",
                rule=f"they have 1 channel, and {', '.join(map(str, SYNTHETIC))} classes.",
                fix="give data.images= and data.labels=, or choose other fields of the model.",
            )
        numbers = range(data.cases or _MADE), _HELD_OUT
        return cls._with(config, *(SyntheticCases(0, some, shape, num_classes) for some in numbers))

    @classmethod
    def other(cls, config: TrainConfig, options: VolumeFiles, console: Console) -> "VolumeExamples":
        """Opens other volumes to evaluate a run on."""
        shape, num_channels, num_classes = _wanted(config)
        cases = FileCases.open(options.images, options.labels, len(shape), num_channels, num_classes)
        return cls._with(config, cases, cases)

    @classmethod
    def _with(cls, config: TrainConfig, train: Cases, held_out: Cases) -> "VolumeExamples":
        shape, num_channels, num_classes = _wanted(config)
        model: Any = config.model()
        names = model.named_classes() if isinstance(train, FileCases) else CLASS_NAMES[num_classes]
        low, high = config.data.window
        changes = () if config.data.augment == ("none",) else config.data.augment
        return cls(train, held_out, shape, num_channels, names, (low, high), changes)

    @staticmethod
    def shapes(batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Returns the shapes of a batch: what a model that segments asks for."""
        return batch

    def stream(self, sizes: Mapping[str, int], seed: int, rows: Sequence[int] | None = None) -> VolumeBatches:
        """Returns the batches to train on."""
        how = {"window": self.window, "changes": self.changes, "seed": seed}
        return VolumeBatches(self.train, self.shape, self.num_channels, sizes["batch"], **how, rows=rows)  # type: ignore[arg-type]

    def held_out_batches(
        self, sizes: Mapping[str, int], rows: Sequence[int] | None = None
    ) -> Iterator[dict[str, LazyArray]]:
        """Yields the held-out volumes once, in order: of large ones parts side by side."""
        return tiles(self.held_out, self.shape, self.num_channels, sizes["batch"], window=self.window, rows=rows)

    def picture(self, model: Any, local: LocalRows, sizes: Mapping[str, int], mesh: Mesh, layout: Layout) -> Any:
        """Returns a picture of slices of held-out volumes, in colours: the image, the truth, the model's."""
        batch = local.put(next(self.held_out_batches(sizes, local.rows)))  # type: ignore[arg-type]
        return draw_slices(slices_of_batch(model, batch, mesh, layout, _SEEN), self.class_names)

    def judge(self, *_: Any) -> None:
        """Nothing is written for a model that segments to be judged by."""

    def metrics(self, loss: float, count: float) -> dict[str, float]:
        """Returns nothing: the model knows its overlaps."""
        return {}

    def amounts(self) -> tuple[int, int]:
        """Returns the numbers of voxels."""
        train, held_out = (
            sum(prod(cases.shape(number)) for number in range(len(cases))) for cases in (self.train, self.held_out)
        )
        return train, held_out

    def identity(self) -> dict[str, Any]:
        """Returns what the cases are known by."""
        return {"cases": self.train.fingerprint}

    def facts(self) -> dict[str, float]:
        """Returns how many cases there are."""
        return {"cases": len(self.train), "held_out_cases": len(self.held_out)}

    def baseline(self) -> tuple[str, Evaluation] | None:
        """Returns nothing."""
        return None


def _wanted(config: TrainConfig) -> tuple[tuple[int, ...], int, int]:
    """Returns what the model of a run asks for: the shape of an example, its channels, and the number of classes."""
    model = config.model()
    *dims, channel = model.batch(config.sizes())["image"].dims
    return tuple(dim.size for dim in dims[1:]), channel.size, model.sizes()["classes"]


def _held_out_of(cases: FileCases) -> tuple[FileCases, FileCases]:
    """Returns the cases to train on and those held out: every tenth, and at least one."""
    if len(cases) < 2:
        raise TrainingError(
            "there are too few volumes to hold one out.",
            values=f"{len(cases)} of them",
            rule="every tenth volume is held out, and at least one.",
            fix="give more volumes, or pass data.validation_images=FILES and data.validation_labels=FILES.",
        )
    held_out = range(0, len(cases), 10)
    return cases.some([n for n in range(len(cases)) if n not in held_out]), cases.some(held_out)
