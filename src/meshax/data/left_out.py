"""What of a text cannot be read: an error, or left out and counted.

Of text that people have, some is empty, cut off, or not in the encoding that it should be in. Told to be strict, a
reader raises at the first such thing; else it asks a `LeftOut` to take it, which counts it and keeps the first place.
"""

from collections.abc import Mapping
from typing import Literal

from ..errors import DataError

Errors = Literal["strict", "replace", "skip"]
KINDS = {
    "empty": ("empty file", "empty files"),
    "broken": ("broken file", "broken files"),
    "binary": ("binary file", "binary files"),
    "unreadable": ("file that cannot be opened", "files that cannot be opened"),
    "undecodable": ("document with undecodable bytes", "documents with undecodable bytes"),
    "not JSON": ("line that is not JSON", "lines that are not JSON"),
    "no field": ("record without the field", "records without the field"),
    "no column": ("file without the column", "files without the column"),
    "not a pair": ("line that is not a pair", "lines that are not pairs"),
    "empty side": ("pair with an empty side", "pairs with an empty side"),
    "long side": ("pair with an over-long side", "pairs with an over-long side"),
}


class FileError(DataError):
    """A file of text that cannot be read, or not from some place on."""

    def __init__(self, what: str, *, kind: str, values: str, rule: str = "", fix: str = ""):
        super().__init__(what, values=values, rule=rule, fix=fix)
        self.kind, self.where = kind, values


class LeftOut:
    """How much is left out, by kind, with the first place of each: {"empty": (2, "a.txt")}."""

    def __init__(self, errors: Errors = "strict", counts: Mapping[str, tuple[int, str]] | None = None):
        self.errors = errors
        self.counts = dict(counts or {})

    def takes(self, kind: str, where: str) -> bool:
        """Counts something and returns True, or returns False if nothing may be left out: then raise."""
        if self.errors == "strict":
            return False
        self.count(kind, where)
        return True

    def count(self, kind: str, where: str) -> None:
        """Counts something that is left out whatever may be."""
        count, first = self.counts.get(kind, (0, where))
        self.counts[kind] = count + 1, first


def show_left_out(counts: Mapping[str, tuple[int, str]]) -> str:
    """Returns what is left out in words.

    >>> show_left_out({"empty": (2, "a.txt"), "broken": (1, "b.gz: cut off")})
    '2 empty files (first: a.txt), 1 broken file (b.gz: cut off)'
    """
    words = []
    for kind, (count, first) in counts.items():
        singular, plural = KINDS[kind]
        words.append(f"{count:,} {plural} (first: {first})" if count > 1 else f"1 {singular} ({first})")
    return ", ".join(words)
