"""Text to train on: which files, and how they become documents.

    text = Text.find("books/*.txt")                 # a file is a document
    text = Text.find("lm1b/*.gz", per="line")       # a line is a document
    text = Text.find("crawl/*.jsonl.gz", field="body")
    text = Text.find("crawl", errors="skip")        # all files of a folder, without what cannot be read
    train, held_out = text.hold_out()

Nothing is read before it is needed, but a first look finds what is missing at once. If nothing may be left out, or
there is one file only, it finds what is empty or no text too.
"""

import codecs
import glob
import os
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from ..errors import ArgumentError, DataError, did_you_mean
from .compression import is_compressed, nearest, stat
from .left_out import Errors, FileError, LeftOut, show_left_out
from .limits import Counter, Limit
from .reading import Per, Piece, Reading

_STRETCH = 1 << 20  # bytes that a sample takes at one place
_NOT_THE_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test", "lib2to3", "__pycache__"}
WHOLE = 1 << 16  # hashes are below it


@dataclass(frozen=True)
class Text:
    """Files, and how they are read. Make one with `Text.find`."""

    files: tuple[Path, ...]
    reading: Reading = Reading()
    part: tuple[int, int] = (0, WHOLE)  # the documents whose hash lies in this range
    limit: Limit = Limit()  # of those, the first

    @classmethod
    def find(
        cls,
        patterns: str | Path | Iterable[str | Path],
        *,
        per: Per = "file",
        field: str | Iterable[str] = "text",
        errors: Errors = "strict",
        encoding: str = "utf-8",
        limit: Limit = Limit(),  # noqa: B008 - it cannot change
    ) -> "Text":
        """Finds files of text, and looks at the beginning of each.

        Args:
            patterns: paths, globs (`**` goes through folders) or folders, of which all files are taken but hidden ones.
                Files named `.gz`, `.bz2`, `.xz` or `.zst` are decompressed; `.jsonl` and `.ndjson` (and `.json`, if
                each line is a document) hold a JSON object a line, `.parquet` files rows; all others are plain text. A
                file that several patterns match is taken once.
            per: in plain files, "file" makes each file a document, "line" each line that is not blank.
            field: the field of a JSON object, or the column, that holds the text; of several names the first there is.
            errors: what happens to what cannot be read. "strict" stops. "skip" leaves out, and counts, documents that
                cannot be decoded, records without the field, and files that are empty, binary or broken. "replace" does
                the same, but reads bytes that cannot be decoded as U+FFFD.
            encoding: of files that say nothing of it. A mark at the beginning says UTF-8, UTF-16 or UTF-32.
            limit: where to stop.
        """
        for name, value, known in (("per", per, ("file", "line")), ("errors", errors, ("strict", "replace", "skip"))):
            if value not in known:
                raise ArgumentError(f"{name}={value!r} is no way to read text.", fix=did_you_mean(str(value), known))
        fields = (field,) if isinstance(field, str) else tuple(field)
        reading = Reading(per, fields, errors, encoding_named(encoding))
        names = [patterns] if isinstance(patterns, str | Path) else patterns
        files = tuple(dict.fromkeys(file for name in names for file in _matches(name)))
        if not files:
            raise DataError("no files of text are named.", fix='name some, for example "books/*.txt".')
        for file in files if errors == "strict" or len(files) == 1 else ():
            try:
                reading.look(file)
            except FileError as error:
                if errors == "strict" or error.kind not in ("empty", "binary", "broken", "unreadable"):
                    raise
                unread = show_left_out({error.kind: (1, error.where)})
                raise DataError("no text can be read.", values=unread, fix="correct it, or name other files.") from None
        if errors != "strict":
            reading.look_for_field(next((file for file in files if reading.is_by_line(file)), files[0]))
        return cls(files, reading, limit=limit)

    @property
    def num_bytes(self) -> int:
        """The size of the files as they lie on disk."""
        return sum(self.status(file)[0] for file in self.files)

    def status(self, file: Path) -> tuple[int, int]:
        """Returns the size and time of a file; of one that is gone, and may be left out, nothing."""
        try:
            status = stat(file)
        except FileError:
            if self.reading.errors == "strict":
                raise
            return 0, 0
        return status.st_size, status.st_mtime_ns

    def documents(self) -> Iterator[str]:
        """Yields the documents, one at a time."""
        parts = []
        for piece in self._all_pieces():
            parts.append(piece.text)
            if piece.is_last:
                yield "".join(parts)
                parts = []

    def _all_pieces(self) -> Iterator[Piece]:
        counter = Counter(self.limit)
        for file in self.files:
            yield from counter.take(self.pieces(file))
            if counter.is_full:
                return

    def pieces(self, file: Path, start: int = 0, left_out: LeftOut | None = None) -> Iterator[Piece]:
        """Yields the documents of one of the files, long ones in several pieces; the limit is not looked at.

        Args:
            file: which.
            start: about the byte to begin at.
            left_out: counts what cannot be read, if it may be left out.
        """
        pieces = self.reading.pieces(file, start, left_out)
        if self.part == (0, WHOLE):
            yield from pieces
            return
        (low, high), begins = self.part, True
        for piece in pieces:
            if begins:
                is_in = low <= hash_of(piece.text) < high
            if is_in:
                yield piece
            begins = piece.is_last

    def sample(self, num_bytes: int) -> Iterator[str]:
        """Yields pieces of at most so many bytes in all, from places spread evenly over the files.

        Nothing else is read, so a sample of 100 GB takes no longer than one of 1 GB. Compressed files cannot be entered
        in the middle: of these it takes the beginnings. Of a text with a limit it takes the beginning.
        """
        if self.limit:
            for piece in self._all_pieces():
                taken = piece.text.encode()[:num_bytes]
                num_bytes -= len(taken)
                yield taken.decode(errors="ignore")
                if not num_bytes:
                    return
            return
        for first, end, start, budget in self._places(num_bytes):
            for file in self.files[first:end]:
                for piece in self.pieces(file, start):
                    taken = piece.text.encode()[:budget]
                    budget -= len(taken)
                    yield taken.decode(errors="ignore")
                    if not budget:
                        break
                if not budget:
                    break
                start = 0

    def _places(self, num_bytes: int) -> list[tuple[int, int, int, int]]:
        """Returns evenly spread stretches: (first file, end of files, byte in the first, bytes to take)."""
        files, sizes = self.files, [self.status(file)[0] for file in self.files]
        total = sum(sizes)
        if not total or (total <= num_bytes and not any(map(is_compressed, files))):
            return [(0, len(files), 0, num_bytes)]
        count = max(1, min(num_bytes, total) // _STRETCH)
        plain, compressed = min(num_bytes, total) // count, num_bytes // count
        places: list[tuple[int, int, int]] = []
        index = begin = 0
        for number in range(count):
            at = number * total // count
            while at >= begin + sizes[index]:
                index, begin = index + 1, begin + sizes[index]
            if not is_compressed(files[index]):
                places.append((index, at - begin, plain))
            elif places and places[-1][0] == index:
                places[-1] = (index, 0, places[-1][2] + compressed)
            else:
                places.append((index, 0, compressed))
        ends = [max(later[0], place[0] + 1) for place, later in zip(places, places[1:], strict=False)] + [len(files)]
        return [(index, end, start, budget) for (index, start, budget), end in zip(places, ends, strict=True)]

    def hold_out(self, fraction: float = 0.05) -> tuple["Text", "Text"]:
        """Returns the text to train on and the text to evaluate on, always the same.

        Where each file is a document, files are held out, by their names. Otherwise documents are, by their words: two
        equal ones are both trained on, or both evaluated on.
        """
        if not 0 < fraction < 1:
            raise ArgumentError(f"{fraction} is not a part to hold out.", fix="choose one between 0 and 1: 0.05.")
        if any(map(self.reading.is_by_line, self.files)):
            edge = max(1, round(fraction * WHOLE))
            return replace(self, part=(edge, WHOLE)), replace(self, part=(0, edge))
        if len(self.files) < 2:
            raise DataError(
                "one document cannot be both trained on and held out.",
                values=str(self.files[0]),
                rule="where a file is a document, whole files are held out.",
                fix='name other files to evaluate on, cut the file up, or make each line a document: per="line".',
            )
        order = sorted(self.files, key=lambda file: (hash_of(file.name), str(file)))
        held_out = set(order[: min(max(1, round(fraction * len(order))), len(order) - 1)])
        kept = tuple(file for file in self.files if file not in held_out)
        return replace(self, files=kept), replace(self, files=tuple(f for f in self.files if f in held_out))


def documents(
    patterns: str | Path | Iterable[str | Path], *, per: Per = "file", field: str = "text", errors: Errors = "strict"
) -> Iterator[str]:
    """Yields the documents of files, one at a time; the arguments are those of `Text.find`."""
    return Text.find(patterns, per=per, field=field, errors=errors).documents()


class Corpus(NamedTuple):
    """Text to train on, text to evaluate on, and how many files are in neither because they cannot be decoded."""

    train: Text
    held_out: Text
    num_left_out: int


def standard_library() -> Corpus:
    """Returns the sources of Python's own standard library on this machine: text that is always there.

    Tests are not in it, nor what is not part of Python. One file in 20 is held out, by its name.
    """
    root, files = Path(sysconfig.get_path("stdlib")), []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(set(folders) - _NOT_THE_LIBRARY)
        files += [Path(folder, name) for name in sorted(names) if name.endswith(".py")]
    files = [path for path in files if path.stat().st_size]
    readable = [path for path in files if _is_readable(path)]
    if len(readable) < 2:
        raise DataError(
            "the sources of Python's standard library are not on this machine.",
            values=str(root),
            fix="name files of text of your own.",
        )
    return Corpus(*Text(tuple(readable)).hold_out(), len(files) - len(readable))


def _is_readable(path: Path) -> bool:
    try:
        for _ in Reading().pieces(path):
            pass
    except DataError:
        return False
    return True


def _matches(name: str | Path) -> list[Path]:
    path = Path(name).expanduser()
    if path.is_dir():
        if files := list(_below(path)):
            return files
        raise DataError("a folder has no files of text.", values=str(path), fix="name another, or files.")
    if path.exists():
        return [path]
    if glob.has_magic(str(path)):
        paths = sorted(Path(match) for match in glob.glob(str(path), recursive=True))
        if files := [path for path in paths if path.is_file()]:
            return files
        raise DataError("no file matches a pattern.", values=str(name), fix=nearest(path))
    raise DataError("a file of text does not exist.", values=str(path), fix=nearest(path))


def _below(folder: Path, above: tuple[tuple[int, int], ...] = ()) -> Iterator[Path]:
    """Yields the files of a folder and of those in it, always in the same order; names that begin with . are hidden.

    A link to a folder that it lies in is not followed.
    """
    status = folder.stat()
    if (here := (status.st_dev, status.st_ino)) in above:
        return
    with os.scandir(folder) as entries:
        seen = sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda entry: entry.name)
    # A link to what is gone is a file that cannot be opened; pipes and the like are none.
    yield from (Path(entry.path) for entry in seen if entry.is_file() or not os.path.exists(entry.path))
    for entry in seen:
        if entry.is_dir():
            yield from _below(Path(entry.path), (*above, here))


def encoding_named(name: str) -> str:
    """Returns Python's name of an encoding of text."""
    try:
        codec = codecs.lookup(name)
        "".encode(codec.name)  # raises if it is a codec, but not of text
        return codec.name
    except LookupError:
        fix = "choose utf-8, latin-1, cp1252, utf-16 or another that Python knows."
        raise ArgumentError(f"encoding={name!r} is not an encoding of text.", fix=fix) from None


def hash_of(text: str) -> int:
    """Returns a number below 65,536 that is the same on every machine."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogateescape"), digest_size=2).digest())
