"""Pairs of texts to learn to translate from: vocabularies, tokens of both sides, packed rows.

Without any files a run learns the small translation that is made by rules (`data.numerals`), and keeps it in its
directory: `pairs/train.en`, `pairs/train.fr`, and those held out.
"""

import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from rich.console import Console

from ..data.bigram import Bigram
from ..data.limits import Limit
from ..data.numerals import sentence_pairs
from ..data.pair_packing import PackedPairs
from ..data.pairs import SIDES, Pairs
from ..data.stream import PairBatches, in_order
from ..data.tokenizing import NoDocumentsError, tokenize
from ..data.tokens import TokenFile
from ..data.vocabulary import Vocabulary
from ..decode.translating import Translator
from ..errors import TrainingError
from ..files import write_whole
from ..layout import Layout
from ..mesh import Mesh
from ..tensors import Tensor
from .config import TrainConfig
from .evaluation import Evaluation
from .metrics import bits_per_byte
from .preparing import SAMPLED, cached, make_folder, say_left_out, train_vocabulary, vocabulary_before
from .text_options import DataOptions, TextOptions
from .text_record import (
    TARGET_VOCABULARY,
    VOCABULARY,
    check_same_text,
    has_checkpoint,
    named_vocabulary,
    remember,
    stored_tokens,
)
from .translations import Judgement, judge

PAIRS = "pairs"  # the folder of those that are made by rules
_MADE = {"train": 20_000, "held_out": 500}

Tokens = tuple[TokenFile, TokenFile]  # of the sources, of the targets
Vocabularies = tuple[Vocabulary, Vocabulary]


@dataclass(frozen=True)
class PairExamples:
    """The vocabularies of sources and targets, often one, and the tokens to train and to evaluate on."""

    unit: ClassVar[str] = "token"

    vocabularies: Vocabularies
    train: Tokens
    held_out: Tokens
    lengths: tuple[int, int]  # of rows, of sources and of targets

    @classmethod
    def open(cls, config: TrainConfig, console: Console, read_only: bool = False) -> "PairExamples":
        """Finds and tokenizes the pairs of a run, and says what is left out."""
        examples = _prepare(config, console, read_only)
        if not read_only:
            for tokens in (examples.train[0], examples.held_out[0]):
                say_left_out(console, tokens)
            examples._say_too_long(console)
        return examples

    @classmethod
    def other(cls, config: TrainConfig, options: TextOptions, console: Console) -> "PairExamples":
        """Returns other pairs to evaluate a run on, in the run's vocabularies."""
        options.check_kind("pairs")
        vocabularies = stored_vocabularies(config.directory())
        with console.status("looking for the pairs"):
            pairs = _find(options)
        with tempfile.TemporaryDirectory(prefix="meshax-") as temporary:
            folder = cached(options, vocabularies[1]) if options.cache else Path(temporary)
            # Files that are mapped into memory stay there when their names are gone.
            tokens = _tokenize(pairs, vocabularies, folder, "other", console)
        say_left_out(console, tokens[0])
        examples = cls(vocabularies, tokens, tokens, _lengths(config))
        examples._say_too_long(console)
        return examples

    @staticmethod
    def shapes(batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Returns the shapes of a batch: what a model that translates asks for."""
        return batch

    @cached_property
    def _rows(self) -> tuple[PackedPairs, PackedPairs]:
        """The rows to train and to evaluate on."""
        train = PackedPairs(*self.train, *self.lengths)
        return train, train if self.held_out is self.train else PackedPairs(*self.held_out, *self.lengths)

    def _say_too_long(self, console: Console) -> None:
        rows = self._rows if self.held_out is not self.train else self._rows[:1]
        for part, name in zip(rows, ("train on", "evaluate on"), strict=False):
            if part.num_left_out:
                source, target = self.lengths
                words = f"left out of the {part.num_pairs:,} pairs to {name}: {part.num_left_out:,}, which are longer "
                words += f"than {source} source or {target} target tokens"
                console.print(words, highlight=False, markup=False, soft_wrap=True)

    def stream(self, sizes: Mapping[str, int], seed: int, rows: Sequence[int] | None = None) -> PairBatches:
        """Returns the batches to train on."""
        return PairBatches(self._rows[0], sizes["batch"], seed=seed, rows=rows)

    def held_out_batches(
        self, sizes: Mapping[str, int], rows: Sequence[int] | None = None
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yields the held-out pairs once, in order."""
        return in_order(self._rows[1], sizes["batch"], rows=rows)

    def translator(self, model: Any, mesh: Mesh, layout: Layout, **search: Any) -> Translator:
        """Returns what translates such sources; how it searches are the arguments of `Translator`."""
        source_length, length = self.lengths
        return Translator(model, mesh, layout, self.vocabularies, source_length=source_length, length=length, **search)

    def judge(
        self, model: Any, mesh: Mesh, layout: Layout, count: int, on_done: Callable[[int], None]
    ) -> Judgement | None:
        """Translates the first held-out sources, and compares."""
        if not count:
            return None
        return judge(self.translator(model, mesh, layout), *self.held_out_texts(count), on_done=on_done)

    def held_out_texts(self, count: int = 0) -> tuple[list[str], list[str]]:
        """Returns the held-out sources and targets, or the first so many, as they were read."""
        number = min(count or self.held_out[0].num_documents, self.held_out[0].num_documents)
        sources, targets = (
            [words.decode(file.document(i)) for i in range(number)]
            for words, file in zip(self.vocabularies, self.held_out, strict=True)
        )
        return sources, targets

    def picture(self, *_: Any) -> None:
        """There is nothing to be seen."""

    def metrics(self, loss: float, count: float) -> dict[str, float]:
        """Returns the bits that each byte of the targets takes."""
        size = self.held_out[1].num_bytes * count / self.held_out[1].num_tokens
        return {"bits_per_byte": bits_per_byte(loss, round(size))}

    def amounts(self) -> tuple[int, int]:
        """Returns the numbers of tokens of the targets."""
        return self.train[1].num_tokens, self.held_out[1].num_tokens

    def identity(self) -> dict[str, Any]:
        """Returns the vocabularies'."""
        return {"vocabulary": [words.fingerprint for words in self.vocabularies]}

    def facts(self) -> dict[str, float]:
        """Returns the sizes of the vocabularies, and how many pairs there are."""
        sizes = {f"{side}_vocabulary_size": words.size for side, words in zip(SIDES, self.vocabularies, strict=True)}
        return {**sizes, "pairs": self.train[0].num_documents, "held_out_pairs": self.held_out[0].num_documents}

    def baseline(self) -> tuple[str, Evaluation]:
        """Returns how well a bigram model of the targets does, which sees no source."""
        train, held_out = self.train[1], self.held_out[1]
        bigram = Bigram.fit(train).evaluate(held_out)
        metrics = {"perplexity": bigram.perplexity}, {"bits_per_byte": bigram.bits_per_byte}
        return "bigram", Evaluation(math.log(bigram.perplexity), held_out.num_tokens, *metrics)


def stored_vocabularies(run: Path) -> Vocabularies:
    """Returns the vocabularies of a run that translates: of sources, and of targets."""
    joint = Vocabulary.load(run / VOCABULARY)
    return joint, Vocabulary.load(run / TARGET_VOCABULARY) if (run / TARGET_VOCABULARY).exists() else joint


def _prepare(config: TrainConfig, console: Console, read_only: bool) -> PairExamples:
    """Finds the pairs, trains or loads the vocabularies, and tokenizes what has not been tokenized yet."""
    run, data = config.directory(), config.data
    if read_only or has_checkpoint(run):
        if not read_only:
            check_same_text(config)
        if (stored := stored_tokens(run)) is not None:
            train, held_out = ((files[0], files[1]) for files in (stored["train"], stored["held_out"]))
            return PairExamples(stored_vocabularies(run), train, held_out, _lengths(config))
    with console.status("looking for the pairs"):
        pairs, other = _pairs(data, run, console)
    vocabularies = stored_vocabularies(run) if read_only else _vocabularies(config, pairs, console)
    if not read_only:
        run.mkdir(parents=True, exist_ok=True)
        vocabularies[0].save(run / VOCABULARY)
        if _has_two(config):
            vocabularies[1].save(run / TARGET_VOCABULARY)
    folder = cached(data, vocabularies[1]) if data.cache else run / "tokens"
    make_folder(folder)
    train = _tokenize(pairs, vocabularies, folder, "train", console)
    try:
        held_out = _tokenize(other, vocabularies, folder, "held_out", console)
    except NoDocumentsError as error:
        raise TrainingError(
            "there are too few pairs to hold some of them out.",
            values=f"{train[0].num_documents} pairs",
            rule="about a twentieth of the pairs is held out, chosen by the words of their sources.",
            fix="give more pairs, or pass data.validation_source=FILE and data.validation_target=FILE.",
        ) from error
    if not read_only:
        remember(config, {"train": train, "held_out": held_out})
    return PairExamples(vocabularies, train, held_out, _lengths(config))


def _has_two(config: TrainConfig) -> bool:
    """Says whether sources and targets have vocabularies of their own: each has its embedding then."""
    return getattr(config.model(), "source_embedding", False)


def _lengths(config: TrainConfig) -> tuple[int, int]:
    sizes = config.sizes()
    return sizes["source_length"], sizes["length"]


def _tokenize(pairs: Pairs, vocabularies: Vocabularies, folder: Path, name: str, console: Console) -> Tokens:
    source, target = (
        tokenize(pairs.side(number), vocabularies[number], folder / f"{name}-{side}", console)
        for number, side in enumerate(SIDES)
    )
    return source, target


def _pairs(data: DataOptions, run: Path, console: Console) -> tuple[Pairs, Pairs]:
    """Returns the pairs to train on, and those to evaluate on."""
    if not data.source and not data.pairs:
        train, held_out = _write_made(run / PAIRS, data.max_documents)
        console.print(
            f"pairs: numbers, dates and times in English and French, {_MADE['train']:,} sentences and "
            f"{_MADE['held_out']:,} held out, in {run / PAIRS}",
            highlight=False,
        )
    else:
        train, held_out = _find(data).hold_out()
    if data.validation_source or data.validation:
        held_out = _find(data, is_validation=True)
        train = _find(data) if data.source or data.pairs else train
    return train, held_out


def _find(data: TextOptions, is_validation: bool = False) -> Pairs:
    source, target, both = data.source, data.target, data.pairs
    if is_validation and isinstance(data, DataOptions):
        source, target, both = data.validation_source, data.validation_target, data.validation
    return Pairs.find(
        source,
        target,
        both,
        fields=data.pair_fields,
        errors=data.errors,  # type: ignore[arg-type]  # which it checks
        encoding=data.encoding,
        limit=Limit(data.max_documents),
    )


def _write_made(folder: Path, count: int) -> tuple[Pairs, Pairs]:
    """Writes the pairs that are made by rules, unless they are there."""
    parts = dict(zip(_MADE, sentence_pairs(_MADE["train"], _MADE["held_out"]), strict=True))
    make_folder(folder)
    found = []
    for name, pairs in parts.items():
        paths = [folder / f"{name}.{language}" for language in ("en", "fr")]
        for side, path in enumerate(paths):
            content = "".join(f"{pair[side]}\n" for pair in pairs).encode()
            if not path.exists() or path.read_bytes() != content:  # else its time says that nothing has changed
                write_whole(path, content)
        found.append(Pairs.find(*paths, limit=Limit(count)))
    return found[0], found[1]


def _vocabularies(config: TrainConfig, pairs: Pairs, console: Console) -> Vocabularies:
    """Returns the vocabularies of a run: its own, those that are named, or trained ones."""
    samples = [pairs.side(number).sample(SAMPLED // 2) for number in (0, 1)]
    source = vocabulary_before(config, named_vocabulary(config.data))
    if not _has_two(config):
        joint = source or train_vocabulary(config, chain(*samples), console)
        return joint, joint
    path = config.data.target_vocabulary
    target = vocabulary_before(config, Vocabulary.load(path) if path else None, TARGET_VOCABULARY)
    source = source or train_vocabulary(config, samples[0], console)
    return source, target or train_vocabulary(config, samples[1], console)
