"""A text as one long line of tokens on disk, mapped into memory: any stretch of it can be read at once.

A folder holds it: `tokens-KEY.bin` (documents one after the other, each with its `END`), `offsets-KEY.bin` (where each
begins, and where the last ends) and `manifest.json`. The manifest is written last, so a folder without one, or whose
manifest has another key, holds nothing: `meshax.data.tokenize` makes it anew.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ArgumentError, DataError
from .left_out import show_left_out
from .vocabulary import END

MANIFEST = "manifest.json"
OFFSET = np.dtype("<u8")
FORMAT = 1
_DTYPES = ("uint16", "uint32", "<u2", "<u4")


class TokenFiles:
    """Several token files, one after the other, as one to read from."""

    def __init__(self, files: Sequence["TokenFile"]):
        self.files = tuple(files)
        self.tokens = _Joined([file.tokens for file in files])
        self.num_tokens = sum(file.num_tokens for file in files)
        self.num_documents = sum(file.num_documents for file in files)
        self.num_bytes = sum(file.num_bytes for file in files)
        self.vocabulary_size = files[0].vocabulary_size
        self.begin, self.end = files[0].begin, files[0].end

    def __len__(self) -> int:
        return self.num_tokens


class _Joined:
    """Arrays one after the other, of which stretches are copied when they are asked for."""

    def __init__(self, arrays: Sequence[np.ndarray]):
        self._arrays = arrays
        self._begins = np.cumsum([0, *map(len, arrays)])

    def __len__(self) -> int:
        return int(self._begins[-1])

    def __getitem__(self, place: Any) -> Any:
        if not isinstance(place, slice):
            return self[place : place + 1][0]
        begin, end, _ = place.indices(len(self))
        return np.concatenate(
            [a[max(begin - b, 0) : max(end - b, 0)] for a, b in zip(self._arrays, self._begins, strict=False)]
        )


class TokenFile:
    """The tokens of a text, as `tokenize` wrote them into a folder."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        self.manifest = self._read_manifest()
        self.tokens = self._map("tokens", np.dtype(self.manifest["dtype"]), self.num_tokens)
        self._offsets = self._map("offsets", OFFSET, self.num_documents + 1)

    def __len__(self) -> int:
        return self.num_tokens

    @property
    def num_tokens(self) -> int:
        """How many tokens there are, the end of each document included."""
        return self.manifest["tokens"]

    @property
    def num_documents(self) -> int:
        """How many documents there are."""
        return self.manifest["documents"]

    @property
    def num_bytes(self) -> int:
        """The size of the documents' text in UTF-8, which bits per byte are measured by."""
        return self.manifest["bytes"]

    @property
    def left_out(self) -> str:
        """What of the text could not be read, in words."""
        return show_left_out(self.manifest.get("left_out", {}))

    @property
    def vocabulary_size(self) -> int:
        """How many different tokens there could be."""
        return self.manifest["vocabulary_size"]

    @property
    def begin(self) -> int:
        """The token that a document is begun with, in the place of the end of the one before it."""
        return self.manifest.get("begin", END)

    @property
    def end(self) -> int:
        """The token that ends a document."""
        return self.manifest.get("end", END)

    @property
    def fingerprint(self) -> str:
        """Another text, another way of reading it, or another vocabulary has another one."""
        return self.manifest["key"]

    def document(self, number: int) -> np.ndarray:
        """Returns the tokens of one document, with its end."""
        if not 0 <= number < self.num_documents:
            raise ArgumentError(
                f"there is no document {number}.", values=str(self.folder), fix=f"there are {self.num_documents:,}."
            )
        begin, end = self._offsets[number : number + 2]
        return self.tokens[int(begin) : int(end)]

    def lengths(self, begin: int, end: int) -> np.ndarray:
        """Returns how many tokens each of some documents has, with its end."""
        return np.diff(self._offsets[begin : end + 1].astype(np.int64))

    def _read_manifest(self) -> dict[str, Any]:
        try:
            manifest = json.loads((self.folder / MANIFEST).read_text(encoding="utf-8"))
            version = manifest["format"]
            if version == FORMAT:
                _check(manifest)
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataError(
                "a folder holds no tokens, or not all of them.",
                values=f"{self.folder / MANIFEST}: {getattr(error, 'strerror', None) or error}",
                rule="a manifest is written when all tokens are.",
                fix="call meshax.data.tokenize(text, vocabulary, folder): it continues where it was interrupted.",
            ) from None
        if version != FORMAT:
            raise DataError(
                "a folder of tokens was made by another version of meshax.",
                values=f"{self.folder / MANIFEST}: format {version}; this version reads format {FORMAT}",
                fix="make it again: meshax.data.tokenize(text, vocabulary, folder).",
            )
        return manifest

    def _map(self, name: str, dtype: np.dtype, length: int) -> np.ndarray:
        path = self.folder / f"{name}-{self.fingerprint}.bin"
        size = path.stat().st_size if path.exists() else 0
        if size != length * dtype.itemsize:
            raise DataError(
                "a file of tokens is damaged.",
                values=f"{path}: {size:,} bytes, not {length * dtype.itemsize:,}",
                fix="make it again: meshax.data.tokenize(text, vocabulary, folder).",
            )
        return np.memmap(path, dtype, "r", shape=(length,))


Tokens = TokenFile | TokenFiles


def _check(manifest: dict[str, Any]) -> None:
    """Raises a ValueError unless the files that a manifest names are in its folder, and hold whole numbers."""
    counts = [manifest[name] for name in ("tokens", "documents", "bytes", "vocabulary_size")]
    if not all(type(count) is int and count >= 0 for count in counts):
        raise ValueError("its counts are no numbers")
    if manifest["dtype"] not in _DTYPES or not str(manifest["key"]).isalnum():
        raise ValueError("it names no file of tokens")
