"""What a run learns from: examples of the kind that its model asks for (`ModelConfig.batch_kind`).

A run knows no kind by name. To add one, write a class that offers what `Examples` says, and list it in `KINDS`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
from rich.console import Console

from ..errors import TrainingError
from ..layout import Layout
from ..mesh import Mesh
from ..models.contract import ModelConfig
from ..processes import LocalRows
from ..tensors import Tensor
from .config import TrainConfig
from .corpus import TextExamples
from .evaluation import Evaluation
from .image_examples import ImageExamples
from .masked_text import MaskedText
from .pair_examples import PairExamples
from .text_options import TextOptions
from .translations import Judgement
from .volume_examples import VolumeExamples

Batch = dict[str, Any]  # arrays, or what is read like one, by blocks


class Stream(Protocol):
    """Batches without end, which can be continued anywhere."""

    @property
    def position(self) -> int:
        """How many batches were read, in all starts of a run together."""

    def __next__(self) -> Batch:
        """Returns the next batch."""

    def state(self) -> dict[str, Any]:
        """Returns what `restore` needs to continue here, for JSON."""

    def restore(self, state: dict[str, Any]) -> None:
        """Continues where a stream with this state was."""


class Examples(Protocol):
    """Examples to train on, and others that are held out."""

    unit: ClassVar[str]  # what the weights of a batch count, one of it

    @classmethod
    def open(cls, config: TrainConfig, console: Console, read_only: bool = False) -> "Examples":
        """Finds and prepares the examples of a run; to look only, nothing of the run is changed."""

    @classmethod
    def other(cls, config: TrainConfig, options: TextOptions, console: Console) -> "Examples":
        """Prepares other examples to evaluate a run on: its own stay as they are."""

    @staticmethod
    def shapes(batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Returns the shapes of a batch as these examples come: what the model asks for, and what they have beside."""

    def stream(self, sizes: Mapping[str, int], seed: int, rows: Sequence[int] | None = None) -> Stream:
        """Returns the batches to train on, of each those rows that are asked for: by default all."""

    def held_out_batches(self, sizes: Mapping[str, int], rows: Sequence[int] | None = None) -> Iterator[Batch]:
        """Yields the held-out examples once, of each batch those rows that are asked for: by default all."""

    def judge(
        self, model: Any, mesh: Mesh, layout: Layout, count: int, on_done: Callable[[int], None]
    ) -> Judgement | None:
        """Lets the model write for some held-out examples, and judges that, if these examples are judged so.

        Args:
            model: the model.
            mesh: the processors.
            layout: which dims are split over which mesh axes.
            count: of how many examples; 0: none.
            on_done: is called with the number of examples that are done, now and then.
        """

    def picture(
        self, model: Any, local: LocalRows, sizes: Mapping[str, int], mesh: Mesh, layout: Layout
    ) -> np.ndarray | None:
        """Returns a picture of what the model makes of held-out examples, if these can be seen.

        Args:
            model: the model.
            local: the rows of a batch that this process reads.
            sizes: of the dims of a batch, by name.
            mesh: the processors.
            layout: which dims are split over which mesh axes.
        """

    def metrics(self, loss: float, count: float) -> dict[str, float]:
        """Returns figures that these examples add to the model's own, of a summed loss and the sum of the weights."""

    def amounts(self) -> tuple[int, int]:
        """Returns how many units there are to train on, and how many are held out."""

    def identity(self) -> dict[str, Any]:
        """Returns what is saved with a checkpoint, to know the examples by."""

    def facts(self) -> dict[str, float]:
        """Returns what the result of a run says of them."""

    def baseline(self) -> tuple[str, Evaluation] | None:
        """Returns the name of a simple model to compare with, and how well it does."""


KINDS: dict[str, type[Examples]] = {
    "tokens": TextExamples,
    "masked tokens": MaskedText,
    "pairs": PairExamples,
    "volumes": VolumeExamples,
    "images": ImageExamples,
}


def examples_for(model: ModelConfig) -> type[Examples]:
    """Returns where the examples of a model come from."""
    if model.batch_kind not in KINDS:
        raise TrainingError(
            f"there are no examples of the kind {model.batch_kind!r}, which this model learns from.",
            rule="a run reads the kind of examples that its model asks for.",
            fix=f"choose a model of {' or '.join(KINDS)}, or add the kind to meshax.train.examples.",
        )
    return KINDS[model.batch_kind]


def batch_shapes(model: ModelConfig, sizes: Mapping[str, int]) -> dict[str, Tensor]:
    """Returns the shapes of a batch as a run reads it, for the sizes of its dims by name."""
    return examples_for(model).shapes(model.batch(sizes))
