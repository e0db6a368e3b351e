"""From text to tokens: what a run reads before its first step, and reuses the next time."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from rich.console import Console

from ..data.bigram import Bigram
from ..data.reading import Per
from ..data.stream import Batches, evaluation
from ..data.text import Text, standard_library
from ..data.tokenizing import tokenize
from ..data.tokens import MANIFEST, TokenFile
from ..data.vocabulary import Vocabulary
from ..errors import DataError, TrainingError
from ..tensors import Tensor
from .config import TrainConfig
from .evaluation import Evaluation
from .metrics import bits_per_byte

VOCABULARY = "vocabulary.json"


@dataclass(frozen=True)
class TextExamples:
    """The vocabulary, and the tokens to train and to evaluate on: several documents may share an example."""

    unit: ClassVar[str] = "token"

    vocabulary: Vocabulary
    train: TokenFile
    held_out: TokenFile

    @classmethod
    def open(cls, config: TrainConfig, console: Console, read_only: bool = False) -> "TextExamples":
        """Finds and tokenizes the text of a run."""
        return prepare(config, console, read_only)

    @staticmethod
    def shapes(batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Returns the shapes of a batch: beside what a model of tokens asks for, which document a token is of."""
        return {**batch, **dict.fromkeys(("segments", "positions"), batch["tokens"])}

    def stream(self, sizes: Mapping[str, int], seed: int) -> Batches:
        """Returns the batches to train on."""
        return Batches(self.train, length=sizes["length"], batch=sizes["batch"], seed=seed)

    def held_out_batches(self, sizes: Mapping[str, int]) -> Iterator[dict[str, np.ndarray]]:
        """Yields the held-out text once."""
        return evaluation(self.held_out, length=sizes["length"], batch=sizes["batch"])

    def metrics(self, loss: float, count: float) -> dict[str, float]:
        """Returns the bits that each byte of the text takes."""
        size = self.held_out.num_bytes * count / self.held_out.num_tokens
        return {"bits_per_byte": bits_per_byte(loss, round(size))}

    def identity(self) -> dict[str, Any]:
        """Returns the vocabulary's."""
        return {"vocabulary": self.vocabulary.fingerprint}

    def facts(self) -> dict[str, float]:
        """Returns the size of the vocabulary."""
        return {"vocabulary_size": self.vocabulary.size}

    def baseline(self) -> tuple[str, Evaluation]:
        """Returns how well a bigram model does."""
        bigram = Bigram.fit(self.train).evaluate(self.held_out)
        metrics = {"perplexity": bigram.perplexity}, {"bits_per_byte": bigram.bits_per_byte}
        return "bigram", Evaluation(math.log(bigram.perplexity), self.held_out.num_tokens, *metrics)


def prepare(config: TrainConfig, console: Console, read_only: bool = False) -> TextExamples:
    """Finds the text, trains or loads the vocabulary, and tokenizes what has not been tokenized yet.

    Args:
        config: says which text.
        console: where to show progress.
        read_only: whether there must be a vocabulary already.
    """
    run = config.directory()
    if read_only and not config.data.cache and (run / "tokens" / "held_out" / MANIFEST).exists():
        # what the run was trained and evaluated on, whatever has become of the text
        train, held_out = (TokenFile(run / "tokens" / name) for name in ("train", "held_out"))
        return TextExamples(Vocabulary.load(run / VOCABULARY), train, held_out)
    folder = Path(config.data.cache).expanduser() if config.data.cache else run / "tokens"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TrainingError(
            "the folder for tokens cannot be made.",
            values=f"{folder}: {error.strerror or error}",
            fix="choose another data.cache=, or out=.",
        ) from error
    text, other = _texts(config, console)
    vocabulary = Vocabulary.load(run / VOCABULARY) if read_only else _vocabulary(config, run, text, console)
    train = tokenize(text, vocabulary, folder / "train", console)
    try:
        held_out = tokenize(other, vocabulary, folder / "held_out", console)
    except DataError as error:
        if config.data.held_out or not str(error).startswith("a text has no documents"):
            raise
        raise TrainingError(
            "the text is too short to hold some of it out.",
            values=f"{train.num_documents} documents",
            rule="about a twentieth of the documents is held out, chosen by their words.",
            fix="give more text, or pass data.held_out=FILE.",
        ) from error
    return TextExamples(vocabulary, train, held_out)


def _texts(config: TrainConfig, console: Console) -> tuple[Text, Text]:
    if not config.data.text:
        corpus = standard_library()
        console.print(
            f"text: the source of Python's standard library, {corpus.train.num_bytes / 1e6:.1f} MB in "
            f"{len(corpus.train.files)} files, {len(corpus.held_out.files)} held out, "
            f"{corpus.num_left_out} left out because they cannot be decoded",
            highlight=False,
        )
        return corpus.train, corpus.held_out
    per: Per = "line" if config.data.lines else "file"
    text = Text.find(config.data.text, per=per)
    if config.data.held_out:
        other = Text.find(config.data.held_out, per=per)
        both = sorted(set(map(str, text.files)) & set(map(str, other.files)))
        if both:
            raise TrainingError(
                "a file is both trained on and held out.",
                values=both[0],
                fix="leave it out of data.text=, or of data.held_out=.",
            )
        return text, other
    try:
        return text.hold_out()
    except DataError as error:
        raise TrainingError(
            "one document cannot be both trained on and held out.",
            values=str(text.files[0]),
            fix="pass data.held_out=FILE, or data.lines=True to make each line a document.",
        ) from error


def _vocabulary(config: TrainConfig, run: Path, text: Text, console: Console) -> Vocabulary:
    """Loads the run's vocabulary, or the one that is named, or trains one; it must fit the model.

    What a start left that never came to a checkpoint is no run: its vocabulary may be that of another text.
    """
    own, size = run / VOCABULARY, config.model().sizes()["vocab"]
    has_run = any((run / "checkpoints").glob("*-step-*"))
    named = Vocabulary.load(config.data.vocabulary) if config.data.vocabulary else None
    if own.exists() and has_run:
        vocabulary = Vocabulary.load(own)
        if named is not None and named.fingerprint != vocabulary.fingerprint:
            raise TrainingError(
                f"the run in {str(run)!r} has another vocabulary.",
                values=f"{config.data.vocabulary}, beside {own}",
                fix="choose another out=, or leave the option out.",
            )
    elif named is not None:
        vocabulary = named
    else:
        with console.status("training a vocabulary"):
            vocabulary = Vocabulary.train(text, size)
        if vocabulary.size < size:
            console.print(
                f"vocabulary: {vocabulary.size} subwords, as many as the text gives; the model has room for {size}",
                highlight=False,
            )
    if vocabulary.size > size:
        raise TrainingError(
            f"the vocabulary has {vocabulary.size} subwords, the model {size}.",
            rule="every subword needs a row of the embedding.",
            fix=f"pass vocab={vocabulary.size}, or another vocabulary.",
        )
    run.mkdir(parents=True, exist_ok=True)
    vocabulary.save(own)
    return vocabulary
