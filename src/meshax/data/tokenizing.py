"""From text to tokens on disk, once: on all cores, in constant memory, and not from the beginning after a crash.

Text is read, encoded and appended in batches. Now and then everything so far is forced to disk, and a small file says
how far that is. An interrupted run leaves this, and the next one cuts the files to what it says and continues. Only the
manifest, written last, makes the tokens whole. Of several processes that want the same tokens, one works and the others
wait for it.
"""

import contextlib
import errno
import json
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from ..errors import DataError
from ..files import Lock, write_whole
from .left_out import LeftOut, show_left_out
from .limits import Counter, Limit
from .reading import PIECE, Piece
from .tokens import FORMAT, MANIFEST, OFFSET, TokenFile
from .vocabulary import Vocabulary

_BATCH = 1 << 22  # characters encoded at a time: each takes some 50 bytes of memory meanwhile
_OURS = re.compile(r"(tokens|offsets|progress)-[0-9a-f]{16}\.(bin|json)|(progress-.*|manifest)\.json\.\d+\.partial")
_NAMED = 1000  # files that the manifest names
CHECKPOINT = 1 << 26  # bytes of text between two points to continue from


class NoDocumentsError(DataError):
    """A text of which nothing is left to read."""


class Documents(Protocol):
    """What can be tokenized: a `Text`, or one side of pairs."""

    @property
    def files(self) -> Sequence[Any]:
        """What it is read from; each has a `name`."""

    @property
    def reading(self) -> Any:
        """How they are read: a dataclass with `per`, `fields`, `errors` and `encoding`."""

    @property
    def part(self) -> tuple[int, int]:
        """The range of hashes of the documents that are read."""

    @property
    def limit(self) -> Limit:
        """How many of those are read."""

    def status(self, file: Any) -> tuple[int, int]:
        """Returns the size and time of a file."""

    def pieces(self, file: Any, start: int = 0, left_out: LeftOut | None = None) -> Iterator[Piece]:
        """Yields the documents of one of the files, long ones in several pieces; the limit is not looked at."""


@dataclass(frozen=True)
class Point:
    """How far the work is: the place in the text, and the sizes of what is written."""

    file: int = 0
    pieces: int = 0  # of that file
    position: int = 0  # bytes of it
    tokens: int = 0
    documents: int = 0
    bytes: int = 0  # of text
    errors: str = "strict"  # how it was read
    left_out: dict[str, tuple[int, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Batch:
    texts: list[str]
    are_last: list[bool]
    file: int
    pieces: int
    position: int
    left_out: dict[str, tuple[int, str]]


def tokenize(text: Documents, vocabulary: Vocabulary, folder: str | Path, console: Console | None = None) -> TokenFile:
    """Writes the tokens of a text into a folder, unless they are there already.

    They are made again if a file has changed (its name, size or time), or the way it is read, or the vocabulary; what
    was in the folder is then removed. Interrupted, it continues where it was when it is called again.

    Args:
        text: the documents.
        vocabulary: what to encode them with.
        folder: where to write; one for each text.
        console: where to show progress; standard error by default.
    """
    folder, console = Path(folder), console or Console(stderr=True)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder, console):
            key = _key(text, vocabulary)
            with contextlib.suppress(DataError):
                tokens = TokenFile(folder)
                if tokens.fingerprint == key and _is_as_strict(tokens.manifest["text"]["errors"], text):
                    return tokens
            _Writer(text, vocabulary, folder, key).run(console)
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise DataError(
            "the disk is full: not all tokens are written." if is_full else "tokens cannot be written.",
            values=f"{folder}: {error.strerror or error}",
            fix="free some space and call again: it continues where it was." if is_full else "choose another folder.",
        ) from None
    return TokenFile(folder)


class _Writer:
    def __init__(self, text: Documents, vocabulary: Vocabulary, folder: Path, key: str):
        self.text, self.vocabulary, self.folder, self.key = text, vocabulary, folder, key
        self.dtype = np.dtype("<u2" if vocabulary.size <= 1 << 16 else "<u4")
        self.tokens, self.offsets = folder / f"tokens-{key}.bin", folder / f"offsets-{key}.bin"
        self.progress = folder / f"progress-{key}.json"
        self.sizes = np.cumsum([0, *(text.status(file)[0] for file in text.files)])

    def run(self, console: Console) -> None:
        (self.folder / MANIFEST).unlink(missing_ok=True)
        self._remove_others()
        point = self._last_point()
        columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        with (
            Progress(TextColumn("tokenizing"), *columns, console=console, disable=not console.is_terminal) as bar,
            open(self.tokens, "r+b" if point.tokens else "wb") as tokens,
            open(self.offsets, "r+b" if point.tokens else "wb") as offsets,
        ):
            task = bar.add_task("", total=int(self.sizes[-1]), completed=self._bytes_read(point))
            if point.tokens:
                tokens.truncate(point.tokens * self.dtype.itemsize)
                tokens.seek(0, os.SEEK_END)
                offsets.truncate((point.documents + 1) * OFFSET.itemsize)
                offsets.seek(0, os.SEEK_END)
            else:
                offsets.write(bytes(OFFSET.itemsize))
            saved, said = point.bytes, 0
            for batch, ids in self._encoded(point):
                point = self._append(point, batch, ids, tokens, offsets)
                bar.update(task, completed=self._bytes_read(point))
                if point.bytes - saved >= CHECKPOINT:
                    saved = point.bytes
                    self._force(tokens, offsets)
                    write_whole(self.progress, json.dumps(asdict(point)).encode())
                    said = self._say(point, said, console)
            self._force(tokens, offsets)
            bar.update(task, completed=int(self.sizes[-1]))
        self._finish(point)

    def _encoded(self, point: Point) -> Iterator[tuple[_Batch, list[list[int]]]]:
        """Yields batches and their tokens: while one is encoded, the next is read."""
        with ThreadPoolExecutor(1) as encoder:
            waiting = None
            for batch in self._batches(point):
                future = encoder.submit(self.vocabulary.encode_batch, batch.texts)
                if waiting:
                    yield waiting[0], waiting[1].result()
                waiting = batch, future
            if waiting:
                yield waiting[0], waiting[1].result()

    def _batches(self, point: Point) -> Iterator[_Batch]:
        texts: list[str] = []
        are_last: list[bool] = []
        length, left_out = 0, LeftOut(self.text.reading.errors, point.left_out)
        counter, num_files = Counter(self.text.limit, point.documents, point.bytes), len(self.text.files)
        for index, file in islice(enumerate(self.text.files), point.file, None):
            pieces, skip = self.text.pieces(file, left_out=left_out), point.pieces if index == point.file else 0
            for _ in islice(pieces, skip):
                left_out.counts = dict(point.left_out)  # what is left out before them has been counted
            for number, piece in enumerate(counter.take(pieces), skip + 1):
                texts.append(piece.text)
                are_last.append(piece.is_last)
                length += len(piece.text)
                if length >= _BATCH:
                    place = (num_files, 0, 0) if counter.is_full else (index, number, piece.position)
                    yield _Batch(texts, are_last, *place, dict(left_out.counts))
                    texts, are_last, length = [], [], 0
            if counter.is_full:
                break
        yield _Batch(texts, are_last, num_files, 0, 0, left_out.counts)

    def _append(self, point: Point, batch: _Batch, ids: list[list[int]], tokens: Any, offsets: Any) -> Point:
        flat: list[int] = []
        ends = []
        for one, is_last in zip(ids, batch.are_last, strict=True):
            flat += one
            if is_last:
                flat.append(self.vocabulary.end)
                ends.append(point.tokens + len(flat))
        tokens.write(np.array(flat, self.dtype).tobytes())
        offsets.write(np.array(ends, OFFSET).tobytes())
        return Point(
            batch.file,
            batch.pieces,
            batch.position,
            point.tokens + len(flat),
            point.documents + len(ends),
            point.bytes + sum(len(text.encode()) for text in batch.texts),
            self.text.reading.errors,
            batch.left_out,
        )

    def _finish(self, point: Point) -> None:
        if not point.documents:
            left_out = f"; left out: {show_left_out(point.left_out)}" if point.left_out else ""
            raise NoDocumentsError(
                "a text has no documents.",
                values=_names(self.text) + left_out,
                rule="blank lines and files are no documents, nor is what cannot be read.",
                fix='name other files, or correct these: errors="strict" says how.',
            )
        if _key(self.text, self.vocabulary) != self.key:
            raise DataError(
                "files of text changed while they were read.",
                values=_names(self.text),
                fix="call again when they are complete.",
            )
        manifest = {
            "format": FORMAT,
            "key": self.key,
            "dtype": self.dtype.str,
            "tokens": point.tokens,
            "documents": point.documents,
            "bytes": point.bytes,
            "left_out": point.left_out,
            "vocabulary": self.vocabulary.fingerprint,
            "vocabulary_size": self.vocabulary.size,
            "begin": self.vocabulary.begin,
            "end": self.vocabulary.end,
            "text": _description(self.text),
        }
        write_whole(self.folder / MANIFEST, json.dumps(manifest, indent=1).encode())
        self.progress.unlink(missing_ok=True)

    def _say(self, point: Point, said: int, console: Console) -> int:
        """Writes how many hundredths are done, where there is no bar: a log has lines."""
        done, total = self._bytes_read(point), int(self.sizes[-1])
        hundredths = 100 * done // max(total, 1)
        if hundredths > said and not console.is_terminal:
            console.print(f"tokenizing: {done / 1e9:.2f} of {total / 1e9:.2f} GB", highlight=False)
        return hundredths

    def _last_point(self) -> Point:
        """Returns where an interrupted run was, if what it wrote is there."""
        with contextlib.suppress(OSError, ValueError, TypeError):
            point = Point(**json.loads(self.progress.read_bytes()))
            is_there = self.tokens.stat().st_size >= point.tokens * self.dtype.itemsize
            is_there &= _is_as_strict(point.errors, self.text, is_whole=False)
            if is_there and self.offsets.stat().st_size >= (point.documents + 1) * OFFSET.itemsize:
                return point
        return Point()

    def _remove_others(self) -> None:
        """Removes what belongs to another text or vocabulary. A process that reads it keeps it until it ends."""
        for path in self.folder.iterdir():
            if _OURS.fullmatch(path.name) and self.key not in path.name:
                path.unlink(missing_ok=True)

    def _bytes_read(self, point: Point) -> int:
        """Returns how much of the files is read; where the limit is nearer than their end, as if that were the end."""
        total, limit = int(self.sizes[-1]), self.text.limit
        shares = [point.documents / limit.documents if limit.documents else 0.0]
        shares += [point.bytes / limit.bytes if limit.bytes else 0.0]
        return max(int(self.sizes[point.file]) + point.position, int(total * max(shares)))

    @staticmethod
    def _force(*files: Any) -> None:
        for file in files:
            file.flush()
            os.fsync(file.fileno())


def _alone(folder: Path, console: Console) -> Lock:
    """Waits until no other process works in the folder."""
    words = f"waiting for another process that tokenizes into {folder}"
    return Lock.wait_for(folder, lambda: console.print(words, markup=False, soft_wrap=True))


def _key(text: Documents, vocabulary: Vocabulary) -> str:
    """Returns a name for the tokens: of other files, or another way to make them, it is another.

    How errors are treated is not part of it, so that a run which met a wrong byte continues with errors="replace".
    """
    reading = text.reading
    parts = (FORMAT, PIECE, vocabulary.fingerprint, reading.per, reading.fields, reading.encoding, text.part)
    key = sha256(json.dumps((*parts, asdict(text.limit))).encode())
    for file in text.files:
        key.update(json.dumps((file.name, *text.status(file))).encode())
    return key.hexdigest()[:16]


def _is_as_strict(errors: str, text: Documents, is_whole: bool = True) -> bool:
    """Says whether tokens of a text read so, whole or the beginning, are those that the text would have now.

    What was read strictly to its end has nothing to replace or to leave out. A beginning may be that of a document
    which turns out to be one to leave out.
    """
    return errors == text.reading.errors or (errors == "strict" and (is_whole or text.reading.errors == "replace"))


def _description(text: Documents) -> dict[str, Any]:
    named = [(file, *text.status(file)) for file in text.files[:_NAMED]]
    files = [{"path": str(file), "bytes": size, "modified": time / 1e9} for file, size, time in named]
    limit = {f"max_{name}": value for name, value in asdict(text.limit).items()}
    return {**asdict(text.reading), "part": text.part, **limit, "num_files": len(text.files), "files": files}


def _names(text: Documents) -> str:
    more = f" and {len(text.files) - 3:,} more" if len(text.files) > 3 else ""
    return ", ".join(str(file) for file in text.files[:3]) + more
