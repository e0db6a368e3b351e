"""What text and pairs of texts have in common before they are tokens: a run's vocabulary, and folders for tokens."""

import json
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from rich.console import Console

from ..data.tokens import TokenFile
from ..data.vocabulary import Vocabulary, check_size
from ..errors import TrainingError
from .config import TrainConfig
from .text_options import TextOptions
from .text_record import VOCABULARY, has_checkpoint, text_options

SAMPLED = 256 * 10**6  # bytes of text that a vocabulary is trained from


def vocabulary_before(config: TrainConfig, named: Vocabulary | None, name: str = VOCABULARY) -> Vocabulary | None:
    """Returns the run's vocabulary, or the one that is named; None: it is trained from the text. It must fit the model.

    What a start left that never came to a checkpoint is no run: its vocabulary may be that of another text.

    Args:
        config: says which run.
        named: what the options name, if they do.
        name: of its file in the directory of a run.
    """
    run, size = config.directory(), config.model().sizes()["vocab"]
    if (run / name).exists() and has_checkpoint(run):
        vocabulary = Vocabulary.load(run / name)
    elif named is not None:
        vocabulary = named
    elif config.from_:  # its embedding is of these subwords
        vocabulary = Vocabulary.load(Path(config.from_).expanduser() / name)
    else:
        check_size(size)
        return None
    if vocabulary.size > size:
        raise TrainingError(
            f"the vocabulary has {vocabulary.size} subwords, the model {size}.",
            rule="every subword needs a row of the embedding.",
            fix=f"pass vocab={vocabulary.size}, or another vocabulary.",
        )
    return vocabulary


def train_vocabulary(config: TrainConfig, text: Iterable[str], console: Console) -> Vocabulary:
    """Makes a vocabulary from a sample of the text, as large as the model has room for."""
    size = config.model().sizes()["vocab"]
    with console.status("training a vocabulary"):
        vocabulary = Vocabulary.train(text, size)
    if vocabulary.size < size:
        console.print(
            f"vocabulary: {vocabulary.size} subwords, as many as the text gives; the model has room for {size}",
            highlight=False,
        )
    return vocabulary


def make_folder(folder: Path) -> None:
    """Makes a folder for tokens."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TrainingError(
            "the folder for tokens cannot be made.",
            values=f"{folder}: {error.strerror or error}",
            fix="choose another data.cache=, or out=.",
        ) from error


def cached(options: TextOptions, vocabulary: Vocabulary) -> Path:
    """Returns the folder for the tokens of a text, one for each way to make them."""
    key = json.dumps([text_options(options), vocabulary.fingerprint])
    return Path(options.cache).expanduser() / sha256(key.encode()).hexdigest()[:16]


def say_left_out(console: Console, tokens: TokenFile) -> None:
    """Says what of a text could not be read."""
    if tokens.left_out:
        words = f"left out of the text: {tokens.left_out}"
        console.print(words, highlight=False, markup=False, soft_wrap=True)
