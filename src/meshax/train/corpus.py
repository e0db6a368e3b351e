"""From text to tokens: what a run reads before its first step, and reuses the next time.

To go on, or to evaluate, a run needs the tokens alone, whatever has become of the text.
"""

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from rich.console import Console

from ..data.bigram import Bigram
from ..data.compression import stat
from ..data.limits import Limit
from ..data.stream import Batches, evaluation
from ..data.text import WHOLE, Text, standard_library
from ..data.tokenizing import NoDocumentsError, tokenize
from ..data.tokens import TokenFile, Tokens
from ..data.vocabulary import Vocabulary
from ..errors import DataError, TrainingError
from ..tensors import Tensor
from .config import TrainConfig
from .evaluation import Evaluation
from .metrics import bits_per_byte
from .preparing import SAMPLED, cached, make_folder, say_left_out, train_vocabulary, vocabulary_before
from .text_options import DataOptions, TextOptions
from .text_record import (
    VOCABULARY,
    check_same_text,
    files_of,
    has_checkpoint,
    joined,
    named_vocabulary,
    remember,
    stored_tokens,
)


@dataclass(frozen=True)
class TextExamples:
    """The vocabulary, and the tokens to train and to evaluate on: several documents may share an example."""

    unit: ClassVar[str] = "token"

    vocabulary: Vocabulary
    train: Tokens
    held_out: Tokens
    weights: tuple[float, ...] = (1.0,)  # of a mixture, one for each of the files of `train`

    @classmethod
    def open(cls, config: TrainConfig, console: Console, read_only: bool = False) -> "TextExamples":
        """Finds and tokenizes the text of a run."""
        return prepare(config, console, read_only)

    @classmethod
    def other(cls, config: TrainConfig, options: TextOptions, console: Console) -> "TextExamples":
        """Returns other text to evaluate a run on, in the run's vocabulary."""
        vocabulary = Vocabulary.load(config.directory() / VOCABULARY)
        with console.status("looking for the text"):
            text = _find(options, options.text)
        with tempfile.TemporaryDirectory(prefix="meshax-") as temporary:
            folder = cached(options, vocabulary) if options.cache else Path(temporary)
            # Files that are mapped into memory stay there when their names are gone.
            tokens = tokenize(text, vocabulary, folder / "other", console)
        say_left_out(console, tokens)
        return cls(vocabulary, tokens, tokens)

    @staticmethod
    def shapes(batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Returns the shapes of a batch: beside what a model of tokens asks for, which document a token is of."""
        return {**batch, **dict.fromkeys(("segments", "positions"), batch["tokens"])}

    def stream(self, sizes: Mapping[str, int], seed: int, rows: Sequence[int] | None = None) -> Batches:
        """Returns the batches to train on."""
        length, batch = sizes["length"], sizes["batch"]
        return Batches(files_of(self.train), length, batch, seed=seed, weights=self.weights, rows=rows)

    def held_out_batches(
        self, sizes: Mapping[str, int], rows: Sequence[int] | None = None
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yields the held-out text once."""
        return evaluation(self.held_out, length=sizes["length"], batch=sizes["batch"], rows=rows)

    def judge(self, *_: Any) -> None:
        """Nothing is written for a language model to be judged by."""

    def picture(self, *_: Any) -> None:
        """There is nothing to be seen."""

    def metrics(self, loss: float, count: float) -> dict[str, float]:
        """Returns the bits that each byte of the text takes."""
        size = self.held_out.num_bytes * count / self.held_out.num_tokens
        return {"bits_per_byte": bits_per_byte(loss, round(size))}

    def amounts(self) -> tuple[int, int]:
        """Returns the numbers of tokens."""
        return self.train.num_tokens, self.held_out.num_tokens

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
    weights = config.data.weights or (1.0,)
    if read_only or has_checkpoint(run):
        if not read_only:
            check_same_text(config)
        if (stored := stored_tokens(run)) is not None:
            parts = joined(stored["train"]), joined(stored["held_out"])
            return TextExamples(Vocabulary.load(run / VOCABULARY), *parts, weights)
    vocabulary = (
        Vocabulary.load(run / VOCABULARY) if read_only else vocabulary_before(config, named_vocabulary(config.data))
    )
    with console.status("looking for the text"):
        text, other = _texts(config.data, console)
    if vocabulary is None:
        shares = [SAMPLED * weight / sum(weights) for weight in weights]
        pieces = (piece for one, share in zip(text, shares, strict=True) for piece in one.sample(round(share)))
        vocabulary = train_vocabulary(config, pieces, console)
    if not read_only:
        run.mkdir(parents=True, exist_ok=True)
        vocabulary.save(run / VOCABULARY)
    folder = cached(config.data, vocabulary) if config.data.cache else run / "tokens"
    make_folder(folder)
    train = _tokenize_train(text, vocabulary, folder, console)
    held_out = _tokenize_held_out(config, train, other, vocabulary, folder, console)
    for tokens in (*train, *held_out):
        say_left_out(console, tokens)
    examples = TextExamples(vocabulary, joined(train), joined(held_out), weights)
    if not read_only:
        remember(config, {"train": train, "held_out": held_out})
    if config.data.weights:
        _say_mixture(config.data, train, console)
    return examples


def _tokenize_train(texts: Sequence[Text], vocabulary: Vocabulary, folder: Path, console: Console) -> list[TokenFile]:
    """Tokenizes the text to train on; each source of a mixture has some."""
    train: list[TokenFile] = []
    for number, text in enumerate(texts):
        try:
            train.append(tokenize(text, vocabulary, folder / f"train{_number(number, texts)}", console))
        except NoDocumentsError as error:
            if text.part != (0, WHOLE) and any(replace(text, part=(0, WHOLE)).sample(1)):
                raise _too_short("no document is left to train on") from error
            raise
    return train


def _too_short(values: str) -> TrainingError:
    return TrainingError(
        "the text is too short to hold some of it out.",
        values=values,
        rule="about a twentieth of the documents is held out, chosen by their words.",
        fix="give more text, or pass data.validation=FILE.",
    )


def _tokenize_held_out(
    config: TrainConfig,
    train: Sequence[TokenFile],
    texts: Sequence[Text],
    vocabulary: Vocabulary,
    folder: Path,
    console: Console,
) -> list[TokenFile]:
    """Tokenizes the text to evaluate on; a small source of a mixture may have none, but not all of them."""
    held_out: list[TokenFile] = []
    for number, text in enumerate(texts):
        try:
            held_out.append(tokenize(text, vocabulary, folder / f"held_out{_number(number, texts)}", console))
        except NoDocumentsError as error:
            if config.data.validation:
                raise
            reason = error
    if held_out:
        return held_out
    raise _too_short(f"{sum(tokens.num_documents for tokens in train)} documents") from reason


def _texts(data: DataOptions, console: Console) -> tuple[list[Text], list[Text]]:
    """Returns the text to train on, of a mixture each source by itself, and the text to evaluate on."""
    if not data.text:
        corpus = standard_library()
        console.print(
            f"text: the source of Python's standard library, {corpus.train.num_bytes / 1e6:.1f} MB in "
            f"{len(corpus.train.files)} files, {len(corpus.held_out.files)} held out, "
            f"{corpus.num_left_out} left out because they cannot be decoded",
            highlight=False,
        )
        texts = [replace(text, limit=Limit(data.max_documents, data.max_bytes)) for text in corpus[:2]]
        return texts[:1], [_find(data, data.validation)] if data.validation else texts[1:]
    texts = [_find(data, [pattern]) for pattern in data.text] if data.weights else [_find(data, data.text)]
    _check_apart(texts, "a file is in two sources of a mixture.", "leave it out of one of the patterns in data.text=.")
    if data.validation:
        other = _find(data, data.validation)
        joined = replace(texts[0], files=tuple(file for text in texts for file in text.files))
        fix = "leave it out of data.text=, or of data.validation=."
        _check_apart([joined, other], "a file is both trained on and held out.", fix)
        return texts, [other]
    pairs = [_hold_out(text) for text in texts]
    if not any(other for _, other in pairs):
        raise TrainingError(
            "one document cannot be both trained on and held out.",
            values=str(texts[0].files[0]),
            fix="pass data.validation=FILE, or data.lines=True to make each line a document.",
        )
    return [text for text, _ in pairs], [other for _, other in pairs if other]


def _find(options: TextOptions, patterns: Sequence[str]) -> Text:
    return Text.find(
        patterns,
        per="line" if options.lines else "file",
        field=options.field,
        errors=options.errors,  # type: ignore[arg-type]  # which it checks
        encoding=options.encoding,
        limit=Limit(options.max_documents, options.max_bytes),
    )


def _hold_out(text: Text) -> tuple[Text, Text | None]:
    try:
        return text.hold_out()
    except DataError:
        return text, None


def _check_apart(texts: Sequence[Text], what: str, fix: str) -> None:
    """Raises if two texts share a file."""
    seen: set[tuple[int, int]] = set()
    for text in texts if len(texts) > 1 else ():
        files = {(status.st_dev, status.st_ino): str(file) for file in text.files for status in [stat(file)]}
        if both := sorted(files[one] for one in files.keys() & seen):
            raise TrainingError(what, values=both[0], fix=fix)
        seen |= files.keys()


def _number(number: int, texts: Sequence[Text]) -> str:
    return f"-{number + 1}" if len(texts) > 1 else ""


def _say_mixture(data: DataOptions, train: Sequence[TokenFile], console: Console) -> None:
    for name, weight, tokens in zip(data.text, data.weights, train, strict=True):
        words = f"{weight / sum(data.weights):.1%} of the examples from {name}: {tokens.num_tokens:,} tokens"
        console.print(words, highlight=False, markup=False, soft_wrap=True)
