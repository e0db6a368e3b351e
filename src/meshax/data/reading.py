"""Reads the documents of one file, in pieces.

A file is read from its beginning to its end in constant memory, however long it or a document in it is: a long document
comes in several pieces, cut at ends of lines where there are any. The pieces of a file are the same each time.
"""

import codecs
import contextlib
import gzip
import json
import os
import tokenize
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ..errors import DataError, did_you_mean

Per = Literal["file", "line"]
Errors = Literal["strict", "replace"]
PIECE = 1 << 16  # characters: small enough for the pieces of one batch to occupy many cores
_FIRST, _CHUNK = 1 << 13, 1 << 20  # bytes read at a time: a look at many files costs little, the rest is read fast


class Piece(NamedTuple):
    """A part of a document."""

    text: str
    is_last: bool  # of its document
    position: int  # bytes of the file that were read so far, as they lie on disk


Part = tuple[str, bool, int]  # of a document too, of any length


@dataclass(frozen=True)
class Reading:
    """How a file becomes documents: one a line, or one for the whole file; `.jsonl` files have one a line always."""

    per: Per = "file"
    field: str = "text"
    errors: Errors = "strict"

    def is_by_line(self, path: Path) -> bool:
        """Says whether a file holds many documents."""
        return self.per == "line" or is_json(path)

    def pieces(self, path: Path, start: int = 0) -> Iterator[Piece]:
        """Yields the documents of a file that are not blank, from the first line that begins after byte `start`."""
        texts = self._texts(path, start)
        if is_json(path):
            return _cut(self._json(path, texts, start))
        return _cut(_lines(texts, longest=PIECE) if self.per == "line" else _whole(texts))

    def look(self, path: Path) -> None:
        """Raises now what reading the beginning of a file would raise."""
        if not stat(path).st_size or next(self._texts(path), None) is None:
            raise DataError("a file of text is empty.", values=str(path), fix="remove it, or leave it out of the list.")
        if is_json(path):
            next(self.pieces(path), None)

    def _texts(self, path: Path, start: int = 0) -> Iterator[tuple[str, int]]:
        """Yields the decoded text in chunks, each with the position in the file."""
        decoder = codecs.getincrementaldecoder(_encoding(path))(self.errors)
        read, num_lines, position, is_skipping = start, 0, start, start > 0
        for chunk, position in _chunks(path, start):
            if is_skipping:
                skipped = _begun(chunk, is_json(path))
                chunk, read, is_skipping = chunk[skipped:], read + skipped, skipped == len(chunk)
            if not read and b"\0" in chunk:
                raise DataError(
                    "a file of text holds binary data.",
                    values=f"{path}: a zero byte at byte {chunk.index(0):,}",
                    fix="text is UTF-8, plain or in .gz or .jsonl files: convert it, or leave it out of the list.",
                )
            read += len(chunk)
            try:
                text = decoder.decode(chunk)
            except UnicodeDecodeError as error:
                raise _undecodable(path, error, read, num_lines, start) from None
            num_lines += chunk.count(b"\n")
            yield text, position
        try:
            rest = decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            raise _undecodable(path, error, read, num_lines, start) from None
        if rest:
            yield rest, position

    def _json(self, path: Path, texts: Iterator[tuple[str, int]], start: int) -> Iterator[Part]:
        after = f" after byte {start:,}" if start else ""
        for number, (line, _, position) in enumerate(_lines(texts), 1):
            if not line.strip():
                continue
            where = f"{path}, line {number:,}{after}"
            try:
                record = json.loads(line)
            except ValueError as error:
                raise DataError(
                    "a line is not JSON.", values=f"{where}: {error}", fix="correct or remove it."
                ) from None
            yield self._document(record, where), True, position

    def _document(self, record: Any, where: str) -> str:
        document = record.get(self.field) if isinstance(record, dict) else None
        if not isinstance(document, str):
            known = (
                [name for name, value in record.items() if isinstance(value, str)] if isinstance(record, dict) else []
            )
            raise DataError(
                f"a JSON line has no text in the field {self.field!r}.",
                values=where,
                rule="each line is an object, and one of its fields, the same in all, is the text of a document.",
                fix=f'name the field: field="..."; {did_you_mean(self.field, known)}',
            )
        try:
            document.encode()
        except UnicodeEncodeError as error:
            if self.errors == "strict":
                raise DataError(
                    "a JSON line holds half of a surrogate pair, which is no character.",
                    values=f"{where}: character {error.start:,} of the text is {document[error.start]!a}",
                    fix='correct the line, or read such characters as "?": errors="replace".',
                ) from None
            document = document.encode(errors="replace").decode()
        return document


def is_json(path: Path) -> bool:
    """Says whether a file holds JSON lines."""
    return path.with_suffix("").suffix == ".jsonl" if is_gzip(path) else path.suffix == ".jsonl"


def is_gzip(path: Path) -> bool:
    """Says whether a file is compressed."""
    return path.suffix == ".gz"


def stat(path: Path) -> os.stat_result:
    """Returns the size and time of a file of text."""
    with _readable(path):
        return path.stat()


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(
            "a file of text cannot be read.",
            values=f"{path}: {error.strerror or error}",
            fix="look whether it is there, and at its permissions.",
        ) from None


def _encoding(path: Path) -> str:
    """Returns UTF-8 (a mark at the beginning is no text), but Python's sources say themselves."""
    if path.suffix != ".py":
        return "utf-8-sig"
    with _readable(path), open(path, "rb") as source:
        try:
            return tokenize.detect_encoding(source.readline)[0]
        except (SyntaxError, LookupError) as error:
            raise DataError(
                "a Python source names an encoding that does not exist, or is not in the one it names.",
                values=f"{path}: {error}",
                fix="correct it, or leave it out of the list.",
            ) from None


def _chunks(path: Path, start: int) -> Iterator[tuple[bytes, int]]:
    size = _FIRST if not start else _CHUNK
    with _readable(path), open(path, "rb") as raw:
        stream = gzip.GzipFile(fileobj=raw) if is_gzip(path) else raw
        stream.seek(start)
        num_read = start
        while True:
            try:
                chunk = stream.read(size)
            except (gzip.BadGzipFile, EOFError, zlib.error) as error:
                raise DataError(
                    "a gzipped file is broken.",
                    values=f"{path}: after {num_read:,} bytes of text: {error}",
                    fix="fetch or make it again: gzip --test checks one.",
                ) from None
            if not chunk:
                return
            num_read += len(chunk)
            yield chunk, raw.tell()
            size = _CHUNK


def _begun(chunk: bytes, whole_lines: bool) -> int:
    """Returns how many bytes belong to a line, or at least to a character, that began before the chunk."""
    if newline := chunk.find(b"\n") + 1:
        return newline
    return len(chunk) if whole_lines else next((i for i, byte in enumerate(chunk) if byte & 0xC0 != 0x80), len(chunk))


def _undecodable(path: Path, error: UnicodeDecodeError, read: int, num_lines: int, start: int) -> DataError:
    byte = read - len(error.object) + error.start
    line = num_lines + error.object[: error.start].count(b"\n") + 1
    return DataError(
        f"a file of text is not {error.encoding.upper().replace('_', '-')}.",
        values=f"{path}, line {line:,}{f' after byte {start:,}' if start else ''}: "
        f"0x{error.object[error.start]:02x} at byte {byte:,}: {error.reason}",
        fix='convert it: iconv -f latin1 -t utf-8, or read what is wrong as U+FFFD: errors="replace".',
    )


def _whole(texts: Iterator[tuple[str, int]]) -> Iterator[Part]:
    position = 0
    for text, position in texts:
        yield text, False, position
    yield "", True, position


def _lines(texts: Iterator[tuple[str, int]], longest: float = float("inf")) -> Iterator[Part]:
    """Yields the lines without their ends; one longer than some number of characters in several parts."""
    rest, position = "", 0
    for text, position in texts:
        *lines, rest = (rest + text).split("\n")
        for line in lines:
            yield line.removesuffix("\r"), True, position
        if len(rest) > longest:
            yield rest, False, position
            rest = ""
    yield rest.removesuffix("\r"), True, position


def _cut(parts: Iterator[Part]) -> Iterator[Piece]:
    """Yields parts of documents as pieces, cut after a line, or before a space, or else where a piece is full."""
    rest, has_begun = "", False
    for text, is_last, position in parts:
        rest += text
        while len(rest) > PIECE:
            cut = rest.rfind("\n", 0, PIECE) + 1 or max(rest.rfind(" ", 0, PIECE), 0) or PIECE
            yield Piece(rest[:cut], False, position)
            rest, has_begun = rest[cut:], True
        if is_last:
            if has_begun or rest.strip():
                yield Piece(rest, True, position)
            rest, has_begun = "", False
