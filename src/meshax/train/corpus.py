"""From text to tokens: what a run reads before its first step, and reuses the next time."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from ..data.bigram import Bigram
from ..data.reading import Per
from ..data.text import Text, standard_library
from ..data.tokenizing import tokenize
from ..data.tokens import MANIFEST, TokenFile
from ..data.vocabulary import Vocabulary
from ..errors import DataError, TrainingError
from .config import TrainConfig

VOCABULARY = "vocabulary.json"


@dataclass(frozen=True)
class Prepared:
    """The vocabulary, and the tokens to train and to evaluate on."""

    vocabulary: Vocabulary
    train: TokenFile
    held_out: TokenFile

    def bigram(self) -> Bigram:
        """Returns the model to compare with."""
        return Bigram.fit(self.train)


def prepare(config: TrainConfig, console: Console, read_only: bool = False) -> Prepared:
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
        return Prepared(Vocabulary.load(run / VOCABULARY), train, held_out)
    folder = Path(config.data.cache).expanduser() if config.data.cache else run / "tokens"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TrainingError(
            "the folder for tokens cannot be made.",
            values=f"{folder}: {error.strerror or error}",
            fix="choose another --data.cache, or --out.",
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
            fix="give more text, or pass --data.held-out FILE.",
        ) from error
    return Prepared(vocabulary, train, held_out)


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
                fix="leave it out of --data.text, or of --data.held-out.",
            )
        return text, other
    try:
        return text.hold_out()
    except DataError as error:
        raise TrainingError(
            "one document cannot be both trained on and held out.",
            values=str(text.files[0]),
            fix="pass --data.held-out FILE, or --data.lines to make each line a document.",
        ) from error


def _vocabulary(config: TrainConfig, run: Path, text: Text, console: Console) -> Vocabulary:
    """Loads the run's vocabulary, or the one that is named, or trains one; it must fit the model.

    What a start left that never came to a checkpoint is no run: its vocabulary may be that of another text.
    """
    own, size = run / VOCABULARY, config.model().vocab
    has_run = any((run / "checkpoints").glob("*-step-*"))
    named = Vocabulary.load(config.data.vocabulary) if config.data.vocabulary else None
    if own.exists() and has_run:
        vocabulary = Vocabulary.load(own)
        if named is not None and named.fingerprint != vocabulary.fingerprint:
            raise TrainingError(
                f"the run in {str(run)!r} has another vocabulary.",
                values=f"{config.data.vocabulary}, beside {own}",
                fix="choose another --out, or leave the option out.",
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
            fix=f"pass --vocab {vocabulary.size}, or another vocabulary.",
        )
    run.mkdir(parents=True, exist_ok=True)
    vocabulary.save(own)
    return vocabulary
