"""Tokenizers from elsewhere: a `tokenizer.json` of the library `tokenizers`, and the files beside it.

The file has the tokens, and which of them are special, but not what they are for: which one ends a document says
`tokenizer_config.json` (by its text) or `generation_config.json` or `config.json` (by its number), or its usual name.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DataError
from ..extras import extra

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_WORDS, _NUMBERS = "tokenizer_config.json", ("generation_config.json", "config.json")
_USUAL_ENDS = ("</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>", "<end>")


def described(path: Path) -> str:
    """Returns a tokenizer, and the tokens that begin and end a document, as the text that `Vocabulary` is made of."""
    with extra("train", "tokenizers from elsewhere"):
        from tokenizers import Tokenizer
    try:
        text = path.read_text(encoding="utf-8")
        tokenizer = Tokenizer.from_str(text)
    except OSError as error:
        raise DataError(
            "a tokenizer cannot be read.",
            values=f"{path}: {error.strerror}",
            fix="name a tokenizer.json, as the library tokenizers writes it.",
        ) from None
    except Exception as error:  # tokenizers raises no narrower class
        raise DataError(
            "a file holds no tokenizer, or a damaged one.",
            values=f"{path}: {error}",
            fix="name a tokenizer.json, as the library tokenizers writes it.",
        ) from None
    end = _special(path.parent, tokenizer, "eos")
    if end is None:
        end = next((number for word in _USUAL_ENDS if (number := tokenizer.token_to_id(word)) is not None), None)
    if end is None:
        special = [token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special]
        raise DataError(
            "nothing says which token of a tokenizer ends a document.",
            values=f"{path}: its special tokens are {', '.join(special) or 'none'}",
            rule=f'"eos_token" of a {_WORDS} beside it does, or "eos_token_id" of a {_NUMBERS[1]}.',
            fix=f'write {_WORDS}: {{"eos_token": "..."}}.',
        )
    begin = _special(path.parent, tokenizer, "bos")
    description = {"begin": end if begin is None else begin, "end": end, "tokenizer": json.loads(text)}
    stops = sorted({end, *_numbers(path.parent, tokenizer, "eos")})
    return json.dumps(description | ({"stops": stops} if len(stops) > 1 else {}))


def _special(folder: Path, tokenizer: "Tokenizer", kind: str) -> int | None:
    """Returns the number of the token that the files of a folder call so, if one does."""
    word = _table(folder / _WORDS).get(f"{kind}_token")
    word = word.get("content") if isinstance(word, dict) else word
    if isinstance(word, str) and (number := tokenizer.token_to_id(word)) is not None:
        return number
    return next(iter(_numbers(folder, tokenizer, kind)), None)


def _numbers(folder: Path, tokenizer: "Tokenizer", kind: str) -> list[int]:
    """Returns the numbers of the tokens that the first file of a folder to name any calls so: a chat has several."""
    for name in _NUMBERS:
        numbers = _table(folder / name).get(f"{kind}_token_id")
        numbers = numbers if isinstance(numbers, list) else [numbers]
        if known := [
            one for one in numbers if type(one) is int and one >= 0 and tokenizer.id_to_token(one) is not None
        ]:
            return known
    return []


def _table(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
