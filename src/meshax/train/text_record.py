"""Which text a run has, as its directory says (`text.json`): the options, and where its tokens are.

To go on, or to evaluate, a run needs its tokens alone. So the options are compared, and not the text.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..data.tokens import MANIFEST, TokenFile, TokenFiles, Tokens
from ..data.vocabulary import Vocabulary
from ..errors import DataError, TrainingError
from ..files import write_whole
from .config import TrainConfig
from .text_options import DataOptions, TextOptions

VOCABULARY = "vocabulary.json"
TARGET_VOCABULARY = "target_vocabulary.json"  # beside it, if the targets of pairs have one of their own
TEXT = "text.json"
_NOT_THE_TEXT = {"vocabulary", "target_vocabulary", "tokenizer", "cache"}  # options that may change when a run goes on


def check_same_text(config: TrainConfig) -> None:
    """Raises if a run is to go on with another text or vocabulary than it has."""
    run, data = config.directory(), config.data
    for name, path in ((VOCABULARY, data.vocabulary or data.tokenizer), (TARGET_VOCABULARY, data.target_vocabulary)):
        own = run / name
        if not path or not own.exists():
            continue
        named = named_vocabulary(data) if name == VOCABULARY else Vocabulary.load(path)
        if named is not None and named.fingerprint != Vocabulary.load(own).fingerprint:
            raise TrainingError(
                f"the run in {str(run)!r} has another vocabulary.",
                values=f"{path}, beside {own}",
                fix="choose another out=, or leave the option out.",
            )
    there, here = _record(run).get("options", {}), text_options(data)
    if changed := [name for name, value in there.items() if here.get(name) != value]:
        raise TrainingError(
            f"the run in {str(run)!r} cannot go on with other text.",
            values="; ".join(f"data.{name} was {there[name]!r}, is {here.get(name)!r}" for name in changed),
            rule="a run goes on with the tokens that it has stored; the text itself may be gone.",
            fix="give the options as they were, or choose another out=.",
        )


def named_vocabulary(data: DataOptions) -> Vocabulary | None:
    """Returns the vocabulary that the options name, ours or from elsewhere, if they name one."""
    if data.tokenizer:
        return Vocabulary.from_tokenizer(Path(data.tokenizer).expanduser())
    return Vocabulary.load(data.vocabulary) if data.vocabulary else None


def has_checkpoint(run: Path) -> bool:
    """Says whether a run has come far enough to go on."""
    return any((run / "checkpoints").glob("*-step-*"))


def remember(config: TrainConfig, parts: Mapping[str, Sequence[TokenFile]]) -> None:
    """Writes down which text the run has, and where the token files of its parts are: to train, to evaluate on."""
    tokens = {
        name: [[str(file.folder.absolute()), file.fingerprint] for file in files] for name, files in parts.items()
    }
    record = {"options": text_options(config.data), "tokens": tokens}
    write_whole(config.directory() / TEXT, json.dumps(record, indent=1))


def stored_tokens(run: Path) -> dict[str, list[TokenFile]] | None:
    """Returns the token files of the parts, if they are where the run stored them, and as they were."""
    record = _record(run).get("tokens", {})
    try:
        return {
            name: [_where(run, Path(folder), key) for folder, key in record[name]] for name in ("train", "held_out")
        }
    except (DataError, KeyError):
        return None


def _where(run: Path, folder: Path, key: str) -> TokenFile:
    """Returns tokens that were stored; a run that was moved has taken its own with it."""
    for place in (run / "tokens" / folder.name, folder):
        if (place / MANIFEST).exists() and (tokens := TokenFile(place)).fingerprint == key:
            return tokens
    raise KeyError(key)


def _record(run: Path) -> dict[str, Any]:
    try:
        return json.loads((run / TEXT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def text_options(data: TextOptions) -> dict[str, Any]:
    """Returns the options that say which text it is, as JSON has them."""
    options = {name: value for name, value in dataclasses.asdict(data).items() if name not in _NOT_THE_TEXT}
    return json.loads(json.dumps(options))


def joined(files: Sequence[TokenFile]) -> Tokens:
    """Returns token files as one."""
    return files[0] if len(files) == 1 else TokenFiles(files)


def files_of(tokens: Tokens) -> tuple[TokenFile, ...]:
    """Returns the token files that are read as one."""
    return tokens.files if isinstance(tokens, TokenFiles) else (tokens,)
