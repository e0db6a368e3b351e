"""A vocabulary of subwords, made from the text itself: byte-level BPE, by the library `tokenizers`.

Every text can be encoded, and decoding gives it back, byte for byte: a character that is in no subword becomes several
tokens, one for each of its bytes. Two tokens stand for no text: `PAD` fills up, `END` ends a document, and what comes
first in a document comes after an `END` too. The same text gives the same vocabulary.

A vocabulary from elsewhere is any tokenizer of that library. It has its own tokens that begin and end a document; what
a text gives, and what comes back, is its own affair.
"""

import json
from collections.abc import Iterable, Sequence
from hashlib import sha256
from os.path import commonprefix
from pathlib import Path

from ..errors import ArgumentError, DataError
from ..extras import ExtraError, extra
from ..files import write_whole
from .text import Text

PAD, END = 0, 1
_SPECIAL = ["<pad>", "<end>"]
ELSEWHERE = '{"begin": '  # so begins the description of a vocabulary from elsewhere
_SMALLEST = len(_SPECIAL) + 256  # every byte is a token


def check_size(size: int) -> None:
    """Raises if there cannot be so few tokens."""
    if size < _SMALLEST:
        raise ArgumentError(
            f"a vocabulary of {size} tokens is too small.",
            rule=f"every byte is a token, and two tokens stand for no text: {_SMALLEST} at least.",
            fix="32768 suits most texts, 4096 a few megabytes.",
        )


class Vocabulary:
    """The subwords, from the JSON text that describes them. Make one with `train` or `load`.

    `begin` and `end` stand around a document; at any of `stops`, which has `end`, a text that is written is whole.
    """

    begin: int
    end: int
    stops: tuple[int, ...]

    def __init__(self, description: str):
        with extra("train", "vocabularies"):
            from tokenizers import Tokenizer

        self._description = description
        if description.startswith(ELSEWHERE):  # a text that spells one of its special tokens means that token
            described = json.loads(description)
            self._tokenizer = Tokenizer.from_str(json.dumps(described["tokenizer"]))
            self.begin, self.end = int(described["begin"]), int(described["end"])
            self.stops = tuple(map(int, described.get("stops", [self.end])))
            return
        self._tokenizer = Tokenizer.from_str(description)
        # What a document says is text, even where it spells the name of one of our two tokens.
        self._tokenizer.encode_special_tokens = True
        self.begin = self.end = END
        self.stops = (END,)
        if [self._tokenizer.token_to_id(name) for name in _SPECIAL] != [PAD, END]:
            raise ValueError(f"its first tokens are not {' and '.join(_SPECIAL)}")

    @classmethod
    def train(cls, text: Text | Iterable[str], size: int = 32_768, megabytes: int = 256) -> "Vocabulary":
        """Makes a vocabulary from at most so many megabytes of the text, taken evenly from all of it.

        A short text gives fewer subwords than were asked for.
        """
        check_size(size)
        with extra("train", "vocabularies"):
            from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=size,
            special_tokens=_SPECIAL,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        tokenizer.train_from_iterator(text.sample(megabytes * 10**6) if isinstance(text, Text) else text, trainer)
        return cls(tokenizer.to_str())

    @classmethod
    def load(cls, path: str | Path) -> "Vocabulary":
        """Reads a vocabulary that was saved."""
        try:
            return cls(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise DataError(
                "a vocabulary cannot be read.",
                values=f"{path}: {error.strerror}",
                fix="name the file that Vocabulary.save wrote.",
            ) from None
        except ExtraError:
            raise
        except Exception as error:  # tokenizers raises no narrower class
            raise DataError(
                "a file holds no vocabulary, or a damaged one.",
                values=f"{path}: {error}",
                fix="name the file that Vocabulary.save wrote, or train it again: the same text gives the same one.",
            ) from None

    @classmethod
    def from_tokenizer(cls, path: str | Path) -> "Vocabulary":
        """Reads a `tokenizer.json`, and from the files beside it which of its tokens begin and end a document."""
        from .tokenizers_elsewhere import described

        return cls(described(Path(path)))

    def elsewhere(self) -> tuple[str, dict[str, str | None]]:
        """Returns the vocabulary as a `tokenizer.json`, and what its special tokens are called."""
        ids = {"bos_token": self.begin, "eos_token": self.end}
        names = {kind: self._tokenizer.id_to_token(number) for kind, number in ids.items()}
        if self._description.startswith(ELSEWHERE):
            return json.dumps(json.loads(self._description)["tokenizer"], ensure_ascii=False), names
        return self._description, names | {"pad_token": _SPECIAL[PAD]}

    def save(self, path: str | Path) -> None:
        """Writes the vocabulary into a file; one of that name is replaced, at once and whole."""
        write_whole(Path(path), self._description.encode())

    @property
    def size(self) -> int:
        """How many tokens there are."""
        return max(self._tokenizer.get_vocab().values()) + 1

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of its file: two vocabularies with the same are the same."""
        return sha256(self._description.encode()).hexdigest()

    def encode(self, text: str) -> list[int]:
        """Returns the tokens of a text, without those that begin and end a document."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the tokens of several texts, encoded on all cores."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    def decode(self, tokens: Iterable[int], after: Sequence[int] = ()) -> str:
        """Returns the text of tokens; special ones, as `PAD` and `END`, have none.

        Args:
            tokens: what to decode.
            after: tokens before them: some tokenizers write the first word of a text without the space before it.
        """
        before, whole = (
            self._tokenizer.decode(part, skip_special_tokens=True) if part else ""
            for part in ([*after], [*after, *map(int, tokens)])
        )
        return whole[len(commonprefix([before, whole])) :]  # halves of a character become another one together

    def name_of(self, token: int) -> str:
        """Returns what a token is called, also one that is no text, or half a character."""
        return self._tokenizer.id_to_token(token) or f"<{token}>"
