"""From text to tokens: what a run reads before its first step, and reuses the next time."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from ..data.bigram import Bigram
from ..data.text import Text, standard_library
from ..data.tokenizing import tokenize
from ..data.tokens import TokenFile
from ..data.vocabulary import Vocabulary
from ..errors import TrainingError
from .config import TrainConfig


@dataclass(frozen=True)
class Prepared:
    """The vocabulary, and the tokens to train and to evaluate on."""

    vocabulary: Vocabulary
    train: TokenFile
    held_out: TokenFile

    def bigram(self) -> Bigram:
        """Returns the model to compare with."""
        return Bigram.fit(self.train)


def prepare(config: TrainConfig, console: Console) -> Prepared:
    """Finds the text, trains or loads the vocabulary, and tokenizes what has not been tokenized yet."""
    run = Path(config.out)
    folder = Path(config.data.cache) if config.data.cache else run / "tokens"
    folder.mkdir(parents=True, exist_ok=True)
    train, held_out = _texts(config, console)
    vocabulary = _vocabulary(config, run, train, console)
    return Prepared(
        vocabulary,
        tokenize(train, vocabulary, folder / "train", console),
        tokenize(held_out, vocabulary, folder / "held_out", console),
    )


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
    per = "line" if config.data.lines else "file"
    text = Text.find(config.data.text, per=per)
    if config.data.held_out:
        return text, Text.find(config.data.held_out, per=per)
    return text.hold_out()


def _vocabulary(config: TrainConfig, run: Path, text: Text, console: Console) -> Vocabulary:
    """Loads the run's vocabulary, or the one that is named, or trains one; it must fit the model."""
    own, size = run / "vocabulary.json", config.model().vocab
    if config.data.vocabulary:
        vocabulary = Vocabulary.load(config.data.vocabulary)
    elif own.exists():
        vocabulary = Vocabulary.load(own)
    else:
        with console.status("training a vocabulary"):
            vocabulary = Vocabulary.train(text, size)
    if vocabulary.size > size:
        raise TrainingError(
            f"the vocabulary has {vocabulary.size} subwords, the model {size}.",
            rule="every subword needs a row of the embedding.",
            fix=f"pass --vocab {vocabulary.size}, or another vocabulary.",
        )
    run.mkdir(parents=True, exist_ok=True)
    vocabulary.save(own)
    return vocabulary
