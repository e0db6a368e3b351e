"""Pairs of texts, a text and its translation, from files: which files, and how they become pairs.

    pairs = Pairs.find(source="news.en", target="news.fr")              # line n belongs to line n
    pairs = Pairs.find(source="europarl.tgz/training/*.en", target="europarl.tgz/training/*.fr")
    pairs = Pairs.find(both=["crawl.tsv.gz", "more.jsonl"])             # each line is a pair
    train, held_out = pairs.hold_out()

Nothing shifts a pair: a line feed alone ends a line (`lines.py`), and a pair of which one side is empty, over-long or
cannot be decoded is left out whole, and counted. Two files of different lengths are an error.

To be tokenized, each side is a text by itself, a document for each pair: the same pairs on both sides, in one order.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import ArgumentError, DataError, did_you_mean
from .archives import Place, find
from .compression import readable
from .left_out import Errors, FileError, LeftOut
from .limits import Counter, Limit
from .lines import Line, lines
from .reading import PIECE, Piece
from .text import WHOLE, encoding_named, hash_of

SIDES = ("source", "target")
_STRETCH = 1 << 20  # bytes that a sample takes at one place
_COUNTED = 1 << 28  # bytes on the disk: the lines of smaller files are counted at once
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_JSON = (".jsonl", ".ndjson", ".json")


class Pair(NamedTuple):
    """A text and its translation."""

    source: str
    target: str
    position: int  # bytes of the files, as they lie on the disk, that are read so far


@dataclass(frozen=True)
class PairReading:
    """How files become pairs; `per` is the side that a text of one side has."""

    per: str = "pair"
    fields: tuple[str, ...] = SIDES
    errors: Errors = "strict"
    encoding: str = "utf-8"


@dataclass(frozen=True)
class Aligned:
    """Two files of which line n belongs to line n, or one file with a pair on each line."""

    source: Place
    target: Place | None = None

    def __str__(self) -> str:
        return str(self.source) if self.target is None else f"{self.source} and {self.target}"

    @property
    def name(self) -> str:
        """The last parts of their names."""
        return self.source.name if self.target is None else f"{self.source.name} and {self.target.name}"

    @property
    def places(self) -> tuple[Place, ...]:
        """The files."""
        return (self.source,) if self.target is None else (self.source, self.target)

    def status(self) -> tuple[int, int]:
        """Returns their size as they lie on the disk, and the later time."""
        sizes, times = zip(*(place.status() for place in self.places), strict=True)
        return sum(sizes), max(times)


@dataclass(frozen=True)
class Pairs:
    """Files, and how they are read. Make one with `Pairs.find`."""

    files: tuple[Aligned, ...]
    reading: PairReading = PairReading()
    part: tuple[int, int] = (0, WHOLE)  # the pairs whose source has a hash in this range
    limit: Limit = Limit()  # of those, the first

    @classmethod
    def find(
        cls,
        source: str | Path | Iterable[str | Path] = (),
        target: str | Path | Iterable[str | Path] = (),
        both: str | Path | Iterable[str | Path] = (),
        *,
        fields: Sequence[str] = SIDES,
        errors: Errors = "strict",
        encoding: str = "utf-8",
        limit: Limit = Limit(),  # noqa: B008 - it cannot change
    ) -> "Pairs":
        """Finds files of pairs, and looks at them.

        Args:
            source: files or globs, also in archives (`a.tgz/folder/*.en`): plain, compressed, or WMT's `.sgm`.
            target: as many, of which each belongs to the one at the same place among the sources.
            both: files with a pair on each line: JSON lines (`.jsonl`), or two columns with a tab between them.
            fields: of JSON lines, the names of source and target, also within another: "translation.en". Of columns
                their numbers, counted from 1; without numbers, lines have exactly two.
            errors: what happens to what cannot be read: "strict" stops, "skip" leaves the pair out, and counts it,
                "replace" does too, but reads bytes that cannot be decoded as U+FFFD.
            encoding: one in which a line feed is the byte 10.
            limit: how many pairs to read.
        """
        if errors not in (known := ("strict", "replace", "skip")):
            raise ArgumentError(f"errors={errors!r} is no way to read text.", fix=did_you_mean(str(errors), known))
        encoding = encoding_named(encoding)
        aligned = _aligned(_places(source), _places(target))
        files = (*aligned, *(Aligned(place) for place in _places(both)))
        if not files:
            raise DataError(
                "no files of pairs are named.", fix='name some: source="news.en", target="news.fr", or both="news.tsv".'
            )
        if len(fields) != 2:
            raise ArgumentError(f"a pair has two fields, not {len(fields)}.", fix='name them: fields=("en", "fr").')
        if encoding.startswith(("utf-16", "utf-32")):
            raise ArgumentError(
                f"encoding={encoding!r} cannot be read line by line.",
                rule="a line feed is the byte 10, and nothing else is.",
                fix="convert the files with iconv -t utf-8.",
            )
        for file in aligned:
            _check_counts(file)
        return cls(files, PairReading("pair", tuple(fields), errors, encoding), limit=limit)

    @property
    def num_bytes(self) -> int:
        """The size of the files as they lie on disk."""
        return sum(file.status()[0] for file in self.files)

    def __iter__(self) -> Iterator[Pair]:
        """Yields the pairs, one at a time."""
        count = 0
        for file in self.files:
            for pair in self.read(file):
                if self.limit.documents and count >= self.limit.documents:
                    return
                yield pair
                count += 1

    def read(self, file: Aligned, left_out: LeftOut | None = None) -> Iterator[Pair]:
        """Yields the pairs of one of the files; the limit is not looked at."""
        left_out = LeftOut(self.reading.errors) if left_out is None else left_out
        low, high = self.part
        try:
            for pair in self._pairs(file, left_out):
                if self.part == (0, WHOLE) or low <= hash_of(pair.source) < high:
                    yield pair
        except FileError as error:
            if not left_out.takes(error.kind, error.where):
                raise

    def hold_out(self, fraction: float = 0.05) -> tuple["Pairs", "Pairs"]:
        """Returns the pairs to train on and those to evaluate on, always the same: no source is in both."""
        if not 0 < fraction < 1:
            raise ArgumentError(f"{fraction} is not a part to hold out.", fix="choose one between 0 and 1: 0.05.")
        edge = max(1, round(fraction * WHOLE))
        return replace(self, part=(edge, WHOLE)), replace(self, part=(0, edge))

    def side(self, number: int) -> "Side":
        """Returns the sources (0) or the targets (1) as a text."""
        return Side(self, number)

    def _pairs(self, file: Aligned, left_out: LeftOut) -> Iterator[Pair]:
        for number, sides in enumerate(self._lines(file, left_out), 1):
            if sides is None:
                continue
            source, target, where = *sides, f"{file.source}, line {number:,}"
            if len(source.content) > PIECE or len(target.content) > PIECE or source.is_cut or target.is_cut:
                left_out.count("long side", where)
                continue
            texts = [self._decoded(file, side, line, where, left_out) for side, line in enumerate((source, target))]
            if None in texts:
                continue
            if not all(texts):
                left_out.count("empty side", where)
                continue
            yield Pair(str(texts[0]), str(texts[1]), source.position + target.position)

    def _decoded(self, file: Aligned, side: int, line: Line, where: str, left_out: LeftOut) -> str | None:
        """Returns a side as characters without spaces around it; None if it is left out."""
        try:
            return line.content.decode(
                self.reading.encoding, "replace" if left_out.errors == "replace" else "strict"
            ).strip()
        except UnicodeDecodeError as error:
            if left_out.takes("undecodable", where):
                return None
            raise DataError(
                f"the {SIDES[side]} of a pair is not {self.reading.encoding.upper()}.",
                values=f"{where}{'' if file.target is None else f' and of {file.target}'}: "
                f"0x{line.content[error.start]:02x} at byte {error.start:,} of it: {error.reason}",
                fix='name its encoding: encoding="latin-1", or do without such bytes: errors="replace", '
                'or without such pairs: errors="skip".',
            ) from None

    def _lines(self, file: Aligned, left_out: LeftOut) -> Iterator[tuple[Line, Line] | None]:
        """Yields the two sides of each pair; None for a line that holds none, which is counted."""
        if file.target is None:
            for number, line in enumerate(lines(file.source), 1):
                yield self._cut(file.source, number, line, left_out)
            return
        num_sources = num_targets = 0
        for source, target in zip_longest(lines(file.source), lines(file.target)):
            num_sources, num_targets = num_sources + (source is not None), num_targets + (target is not None)
            if source is not None and target is not None:
                if num_sources == 1:
                    source, target = _unmarked(source), _unmarked(target)
                yield source, target
        if num_sources != num_targets:
            raise _unequal(file, num_sources, num_targets)

    def _cut(self, place: Place, number: int, line: Line, left_out: LeftOut) -> tuple[Line, Line] | None:
        """Returns the sides of a line that holds both."""
        content = line.content.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line.content
        sides: Any = (content, b"")
        if content.strip() and not line.is_cut:
            sides = self._of_json(content) if place.kind in _JSON else self._of_columns(content)
        if sides is not None:
            return line._replace(content=sides[0]), Line(sides[1], line.is_cut, 0)
        where = f"{place}, line {number:,}: {content[:40].decode(errors='replace')!r}"
        if not left_out.takes("not a pair", where):
            raise DataError(
                "a line holds no pair.",
                values=where,
                rule=f"a line of JSON has the fields {' and '.join(self.reading.fields)}; other lines have two columns "
                "with a tab between them.",
                fix='name the fields: fields=("en", "fr"), or columns: fields=("2", "3"); or leave such lines out: '
                'errors="skip".',
            )
        return None

    def _of_json(self, content: bytes) -> tuple[bytes, bytes] | None:
        try:
            record = json.loads(content)
            sides = [_within(record, name.split(".")) for name in self.reading.fields]
            first, second = (side.encode(self.reading.encoding, "replace") for side in sides)
            return first, second
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None

    def _of_columns(self, content: bytes) -> tuple[bytes, bytes] | None:
        columns = content.split(b"\t")
        if all(name.isdecimal() for name in self.reading.fields):
            numbers = [int(name) - 1 for name in self.reading.fields]
            return (columns[numbers[0]], columns[numbers[1]]) if max(numbers) < len(columns) else None
        return (columns[0], columns[1]) if len(columns) == 2 else None


class Side:
    """The sources of pairs, or the targets, as a text: what `tokenize` reads."""

    def __init__(self, pairs: Pairs, number: int):
        self.pairs, self.number = pairs, number
        self.files, self.part, self.limit = pairs.files, pairs.part, pairs.limit
        self.reading = replace(pairs.reading, per=SIDES[number])

    def status(self, file: Aligned) -> tuple[int, int]:
        """Returns the size and time of a file."""
        return file.status()

    def pieces(self, file: Aligned, start: int = 0, left_out: LeftOut | None = None) -> Iterator[Piece]:
        """Yields this side of each pair of one of the files."""
        for pair in self.pairs.read(file, left_out):
            yield Piece((pair.source, pair.target)[self.number], True, pair.position)

    def sample(self, num_bytes: int) -> Iterator[str]:
        """Yields texts of this side of about so many bytes in all.

        Plain files are read at places spread evenly; of others it takes the beginnings.
        """
        total = max(self.pairs.num_bytes, 1)
        for file in self.files:
            share = max(num_bytes * file.status()[0] // total, 1)
            place = file.places[self.number] if file.target is not None else None
            if place is not None and not self.limit and not place.member and place.kind == place.path.suffix != ".sgm":
                yield from _stretches(place.path, share, self.reading.encoding)
                continue
            pieces = self.pieces(file, left_out=LeftOut("skip"))
            for piece in Counter(Limit(self.limit.documents, share)).take(pieces):
                yield piece.text


def _stretches(path: Path, num_bytes: int, encoding: str) -> Iterator[str]:
    """Yields lines of a plain file of so many bytes in all, from places spread evenly over it."""
    with readable(path), open(path, "rb") as file:
        size = path.stat().st_size
        count = max(1, min(num_bytes, size) // _STRETCH)
        for number in range(count):
            file.seek(number * size // count)
            content = file.read(min(num_bytes, size) // count)
            if number:  # a line that began before
                content = content.partition(b"\n")[2]
            yield from content.decode(encoding, "ignore").split("\n")


def _places(patterns: str | Path | Iterable[str | Path]) -> list[Place]:
    names = [patterns] if isinstance(patterns, str | Path) else patterns
    return list(dict.fromkeys(place for name in names for place in find(name)))


def _aligned(sources: Sequence[Place], targets: Sequence[Place]) -> list[Aligned]:
    if len(sources) != len(targets):
        raise DataError(
            "there are not as many files of sources as of targets.",
            values=f"{len(sources)} of sources, {len(targets)} of targets",
            rule="the first file of the sources belongs to the first of the targets, and so on.",
            fix="name both in the same order.",
        )
    return [Aligned(source, target) for source, target in zip(sources, targets, strict=True)]


def _check_counts(file: Aligned) -> None:
    """Raises if two files have different numbers of lines; of large ones, this is seen when they are read."""
    assert file.target is not None
    if file.status()[0] > _COUNTED:
        return
    try:
        counts = [sum(1 for _ in lines(place)) for place in file.places]
    except FileError:  # which reading says, or leaves out
        return
    if not counts[0] == counts[1] > 0:
        raise _unequal(file, *counts)


def _unequal(file: Aligned, num_sources: int, num_targets: int) -> DataError:
    if num_sources == num_targets:
        return DataError("two files of pairs are empty.", values=str(file), fix="name others.")
    return DataError(
        "two files do not have equally many lines.",
        values=f"{file.source}: {num_sources:,}; {file.target}: {num_targets:,}",
        rule="line n of one belongs to line n of the other; a line feed ends a line, and nothing else does.",
        fix="make or fetch them again; a tool that splits at other characters, or drops empty lines, has shifted them.",
    )


def _unmarked(line: Line) -> Line:
    return line._replace(content=line.content.removeprefix(_BYTE_ORDER_MARK))


def _within(record: Any, names: Sequence[str]) -> Any:
    for name in names:
        record = record[name]
    return record
