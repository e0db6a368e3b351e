"""Text of which some tokens are hidden, for models that fill them in.

Of each example 15 in 100 tokens are to be predicted, chosen anew whenever it comes up. Of these, 80 in 100 are hidden
(the token of padding stands there, which no text has), 10 in 100 are replaced by any token, and the others stay: so a
model cannot rely on what it reads. What is chosen follows from the seed, the number of the batch and the tokens alone,
not from the processes that read.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from zlib import crc32

import numpy as np
from rich.console import Console

from ..data.stream import Batches
from ..data.vocabulary import END, PAD
from .config import TrainConfig
from .corpus import TextExamples
from .text_options import TextOptions

_CHOSEN, _HIDDEN, _REPLACED = 0.15, 0.8, 0.1
Batch = dict[str, np.ndarray]


class MaskedText(TextExamples):
    """Text of which some tokens are hidden."""

    @classmethod
    def open(cls, config: TrainConfig, console: Console, read_only: bool = False) -> "MaskedText":
        """Finds and tokenizes the text of a run."""
        return cls._of(TextExamples.open(config, console, read_only))

    @classmethod
    def other(cls, config: TrainConfig, options: TextOptions, console: Console) -> "MaskedText":
        """Returns other text to evaluate a run on, in the run's vocabulary."""
        return cls._of(TextExamples.other(config, options, console))

    @classmethod
    def _of(cls, text: TextExamples) -> "MaskedText":
        return cls(text.vocabulary, text.train, text.held_out, text.weights)

    def stream(self, sizes: Mapping[str, int], seed: int, rows: Sequence[int] | None = None) -> Any:
        """Returns the batches to train on."""
        return MaskedBatches(super().stream(sizes, seed, rows), seed, self.vocabulary.size)

    def held_out_batches(self, sizes: Mapping[str, int], rows: Sequence[int] | None = None) -> Iterator[Batch]:
        """Yields the held-out text once, always with the same tokens hidden."""
        for batch in super().held_out_batches(sizes, rows):
            yield masked(batch, (0,), self.vocabulary.size)

    def metrics(self, loss: float, count: float) -> dict[str, float]:
        """Returns nothing: what is predicted is not the text."""
        return {}

    def baseline(self) -> Any:
        """There is no simple model to compare with."""
        return None


class MaskedBatches:
    """Batches of which some tokens are hidden; they can be continued anywhere."""

    def __init__(self, batches: Batches, seed: int, vocab: int):
        self._batches, self._seed, self._vocab, self._count = batches, seed, vocab, 0

    def __next__(self) -> Batch:
        """Returns the next batch."""
        self._count += 1
        return masked(next(self._batches), (self._seed, self._count), self._vocab)

    @property
    def position(self) -> int:
        """How many batches were read, also before the stream was continued."""
        return self._count

    def state(self) -> dict[str, Any]:
        """Returns what `restore` needs to continue here, for JSON."""
        return {"text": self._batches.state(), "batches": self._count}

    def restore(self, state: dict[str, Any]) -> None:
        """Continues where a stream with this state was."""
        self._batches.restore(state["text"])
        self._count = int(state["batches"])


def masked(batch: Batch, seed: Sequence[int], vocab: int) -> Batch:
    """Returns a batch of text with some tokens hidden, and these as targets.

    Args:
        batch: `tokens`, `segments` and what else belongs to them; segment 0 is padding.
        seed: numbers that choose what is hidden, beside the tokens themselves.
        vocab: how many tokens there are.
    """
    tokens = batch["tokens"]
    read, chosen = tokens.copy(), np.zeros(tokens.shape, np.bool_)
    for row, text in enumerate(tokens):
        draw = np.random.default_rng([*seed, crc32(text.tobytes())])
        chosen[row] = (draw.random(text.shape) < _CHOSEN) & (batch["segments"][row] > 0)
        how, other = draw.random(text.shape), draw.integers(END + 1, vocab, text.shape)
        changed = np.where(how < _HIDDEN, PAD, np.where(how < _HIDDEN + _REPLACED, other, text))
        read[row] = np.where(chosen[row], changed, text)
    return batch | {"tokens": read, "targets": tokens, "weights": chosen.astype(batch["weights"].dtype)}
