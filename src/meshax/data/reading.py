"""Reads the documents of one file, in pieces.

A file is read from its beginning to its end in constant memory, however long it or a document in it is: a long document
comes in several pieces, cut at ends of lines where there are any. The pieces of a file are the same each time.

What cannot be read is an error, or is left out (`left_out.py`): of files with many documents those that are wrong, and
what comes after the place where the file is broken; a file that is one document is read whole or not at all.
"""

import codecs
import json
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ..errors import DataError, did_you_mean
from . import parquet
from .compression import chunks, kind_of, readable, stat
from .left_out import Errors, FileError, LeftOut

Per = Literal["file", "line"]
PIECE = 1 << 16  # characters: small enough for the pieces of one batch to occupy many cores
_HANDLERS = {"strict": "strict", "replace": "replace", "skip": "surrogateescape"}
_ESCAPED = re.compile("[\udc80-\udcff]")  # bytes that the last of these could not decode
_JUDGED = 1 << 24  # characters of a line that are read before it is decided whether it can be decoded
_LONGEST_RECORD = 1 << 28  # characters of a line of JSON: what is longer is a file of another kind
_LOOKED_AT = 100  # records, one of which has to have the field
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32", codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}  # fmt: skip


class Piece(NamedTuple):
    """A part of a document."""

    text: str
    is_last: bool  # of its document
    position: int  # bytes of the file that were read so far, as they lie on disk


Part = tuple[str, bool, int]  # of a document too, of any length
Record = tuple[Any, str, int]  # the text or None, where it is, bytes of the file so far


@dataclass(frozen=True)
class Reading:
    """How a file becomes documents: one a line, or one for the whole file; JSON lines and Parquet have one a record."""

    per: Per = "file"
    fields: tuple[str, ...] = ("text",)
    errors: Errors = "strict"
    encoding: str = "utf-8"

    def is_by_line(self, path: Path) -> bool:
        """Says whether a file holds many documents."""
        return self.per == "line" or self._has_records(path)

    def pieces(self, path: Path, start: int = 0, left_out: LeftOut | None = None) -> Iterator[Piece]:
        """Yields the documents of a file that are not blank, from the first line that begins after byte `start`."""
        left_out = LeftOut(self.errors) if left_out is None else left_out
        try:
            if self._has_records(path):
                yield from _cut(self._documents(path, start, left_out))
            elif self.per == "line":
                yield from _cut(self._plain_lines(path, start, left_out))
            else:
                yield from _cut(_whole(self._sound_texts(path, start, left_out)))
        except FileError as error:
            if not left_out.takes(error.kind, error.where):
                raise

    def look(self, path: Path) -> None:
        """Raises now what reading the beginning of a file would raise, if nothing may be left out."""
        if not stat(path).st_size or not is_parquet(path) and next(self._texts(path), None) is None:
            raise FileError(
                "a file of text is empty.",
                kind="empty",
                values=str(path),
                fix='remove it, or leave such files out: errors="skip".',
            )
        if self._has_records(path):
            next(self.pieces(path), None)

    def look_for_field(self, path: Path) -> None:
        """Raises if the first records of a file all lack the field: then its name is wrong."""
        if not self._has_records(path):
            return
        try:
            records = list(islice(self._records(path, 0, LeftOut("skip")), _LOOKED_AT))
        except FileError as error:
            if error.kind == "no column":
                raise
            return
        has_text = any(isinstance(self._text_of(record), str) for record, _, _ in records)
        if records and not has_text and not is_parquet(path):
            raise self._no_field(*records[0][:2])

    def _has_records(self, path: Path) -> bool:
        return is_parquet(path) or self._is_json(path)

    def _is_json(self, path: Path) -> bool:
        return kind_of(path) in (".jsonl", ".ndjson") or (self.per == "line" and kind_of(path) == ".json")

    def _texts(self, path: Path, start: int = 0) -> Iterator[tuple[str, int]]:
        """Yields the decoded text in chunks, each with the position in the file."""
        decoder, is_wide = None, False
        if start and self._codec(path, next(chunks(path), (b"", 0))[0]).startswith(("utf-16", "utf-32")):
            start = 0  # where a character begins cannot be seen there
        read, num_lines, position, is_skipping = start, 0, start, start > 0
        for chunk, position in chunks(path, start):
            if decoder is None:
                codec = self._codec(path, chunk if not start else b"")
                decoder = codecs.getincrementaldecoder(codec)(_HANDLERS[self.errors])
                is_wide = codec.startswith(("utf-16", "utf-32"))
            if is_skipping:
                skipped = _begun(chunk, self._is_json(path) or self.encoding != "utf-8")
                chunk, read, is_skipping = chunk[skipped:], read + skipped, skipped == len(chunk)
            if not read and b"\0" in chunk and not is_wide:
                raise FileError(
                    "a file of text holds binary data.",
                    kind="binary",
                    values=f"{path}: a zero byte at byte {chunk.index(0):,}",
                    fix="text is plain, compressed, JSON lines or Parquet: convert it, or leave such files out: "
                    'errors="skip".',
                )
            read += len(chunk)
            try:
                text = decoder.decode(chunk)
            except UnicodeDecodeError as error:
                raise _undecodable(path, error, read, num_lines, start) from None
            num_lines += chunk.count(b"\n")
            yield text, position
        try:
            rest = decoder.decode(b"", final=True) if decoder else ""
        except UnicodeDecodeError as error:
            raise _undecodable(path, error, read, num_lines, start) from None
        if rest:
            yield rest, position

    def _codec(self, path: Path, head: bytes) -> str:
        """Returns the encoding that a mark at the beginning says, or a Python source; else the one that is named."""
        for mark, name in _MARKS.items():
            if head.startswith(mark):
                return name
        if path.suffix != ".py":
            return "utf-8-sig" if self.encoding == "utf-8" else self.encoding  # a mark is no text
        with readable(path), open(path, "rb") as source:
            try:
                return tokenize.detect_encoding(source.readline)[0]
            except (SyntaxError, LookupError) as error:
                raise FileError(
                    "a Python source names an encoding that does not exist, or is not in the one it names.",
                    kind="undecodable",
                    values=f"{path}: {error}",
                    fix='correct it, or leave such files out: errors="skip".',
                ) from None

    def _sound_texts(self, path: Path, start: int, left_out: LeftOut) -> Iterator[tuple[str, int]]:
        """Yields the texts of a file that is one document, if all of it can be read: what is long is read twice."""
        if left_out.errors == "strict" or start:
            for text, position in self._texts(path, start):
                yield _replaced(text) if self.errors == "skip" else text, position
            return
        kept: list[tuple[str, int]] | None = []
        length, is_blank = 0, True
        for text, position in self._texts(path):
            if self.errors == "skip" and _ESCAPED.search(text):
                left_out.takes("undecodable", str(path))
                return
            is_blank = is_blank and not text.strip()
            length += len(text)
            kept = [*kept, (text, position)] if kept is not None and length < _JUDGED else None
        if is_blank:
            left_out.takes("empty", str(path))
        yield from self._texts(path) if kept is None else kept

    def _plain_lines(self, path: Path, start: int, left_out: LeftOut) -> Iterator[Part]:
        """Yields the lines of a file of plain text."""
        number, begins = 1, True
        longest, position = PIECE if self.errors != "skip" else _JUDGED, 0
        for line, is_last, position in _lines(self._texts(path, start), longest):
            if self.errors == "skip" and _ESCAPED.search(line):
                left_out.takes("undecodable", f"{path}, line {number:,}")
                # Of a line that is longer than can be kept, what is wrong is replaced: its beginning is out already.
                line = "" if begins and is_last else _replaced(line)
            yield line, is_last, position
            number, begins = number + is_last, is_last
        if not position:
            left_out.takes("empty", str(path))

    def _records(self, path: Path, start: int, left_out: LeftOut) -> Iterator[Record]:
        """Yields the records of a file, each with its place."""
        if is_parquet(path):
            for value, number, position in parquet.rows(path, self.fields, start):
                yield {self.fields[0]: value}, f"{path}, row {number:,}", position
            return
        after = f" after byte {start:,}" if start else ""
        number, begins = 1, True
        for line, is_last, position in _lines(self._texts(path, start), _LONGEST_RECORD):
            where = f"{path}, line {number:,}{after}"
            if begins and line.strip():
                try:
                    record = self._parsed(line, is_last)
                except UnicodeError:
                    left_out.takes("undecodable", where)
                except (ValueError, RecursionError) as error:
                    if not left_out.takes("not JSON", f"{where}: {error}"):
                        raise DataError(
                            "a line is not JSON.",
                            values=f"{where}: {error}",
                            fix='correct or remove it, or leave such lines out: errors="skip".',
                        ) from None
                else:
                    yield record, where, position
            number, begins = number + is_last, is_last

    def _parsed(self, line: str, is_whole: bool) -> Any:
        """Returns the record of a line of JSON."""
        if not is_whole:
            raise ValueError(f"it is longer than {_LONGEST_RECORD:,} characters")
        if self.errors == "skip" and _ESCAPED.search(line):
            raise UnicodeError
        return json.loads(line)

    def _documents(self, path: Path, start: int, left_out: LeftOut) -> Iterator[Part]:
        """Yields the texts of the records of a file."""
        position, before = 0, dict(left_out.counts)
        for record, where, position in self._records(path, start, left_out):
            text = self._text_of(record)
            if isinstance(text, str | bytes):
                yield self._decoded(text, where, left_out), True, position
            elif not left_out.takes("no field", where):
                raise self._no_field(record, where)
        if not position and left_out.counts == before:
            left_out.takes("empty", str(path))

    def _text_of(self, record: Any) -> Any:
        """Returns what a record has in the first of the fields that it has."""
        if not isinstance(record, dict):
            return None
        return next((record[name] for name in self.fields if record.get(name) is not None), None)

    def _no_field(self, record: Any, where: str) -> DataError:
        known = [name for name, value in record.items() if isinstance(value, str)] if isinstance(record, dict) else []
        return DataError(
            f"a record has no text in the field {' or '.join(map(repr, self.fields))}.",
            values=where,
            rule="each record is an object, and one of its fields, the same in all, is the text of a document.",
            fix=f'name the field: field="..."; {did_you_mean(self.fields[0], known)}',
        )

    def _decoded(self, text: str | bytes, where: str, left_out: LeftOut) -> str:
        """Returns the text of a record as characters; none if it holds what is no character and is left out."""
        handler = "replace" if self.errors == "replace" else "strict"
        try:
            return text.decode(errors=handler) if isinstance(text, bytes) else text.encode(errors=handler).decode()
        except UnicodeDecodeError as error:
            what, values = "a record is not UTF-8.", f"{where}: {error.reason} at byte {error.start:,}"
        except UnicodeEncodeError as error:
            what = "a JSON line holds half of a surrogate pair, which is no character."
            values = f"{where}: character {error.start:,} of the text is {error.object[error.start]!a}"
        if left_out.takes("undecodable", where):
            return ""
        raise DataError(
            what,
            values=values,
            fix='correct it, or replace what is wrong: errors="replace", or leave such records out: errors="skip".',
        ) from None


def is_parquet(path: Path) -> bool:
    """Says whether a file holds rows of columns."""
    return path.suffix == ".parquet"


def _replaced(text: str) -> str:
    """Returns a text with U+FFFD for each byte that could not be decoded."""
    return _ESCAPED.sub("\ufffd", text)


def _begun(chunk: bytes, whole_lines: bool) -> int:
    """Returns how many bytes belong to a line, or at least to a character, that began before the chunk."""
    if newline := chunk.find(b"\n") + 1:
        return newline
    return len(chunk) if whole_lines else next((i for i, byte in enumerate(chunk) if byte & 0xC0 != 0x80), len(chunk))


def _undecodable(path: Path, error: UnicodeDecodeError, read: int, num_lines: int, start: int) -> FileError:
    byte = read - len(error.object) + error.start
    line = num_lines + error.object[: error.start].count(b"\n") + 1
    return FileError(
        f"a file of text is not {error.encoding.upper().replace('_', '-')}.",
        kind="undecodable",
        values=f"{path}, line {line:,}{f' after byte {start:,}' if start else ''}: "
        f"0x{error.object[error.start]:02x} at byte {byte:,}: {error.reason}",
        fix='name its encoding: encoding="latin-1", or do without such bytes: errors="replace" or errors="skip".',
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
