"""The lines of a file as bytes: a line feed ends one, and nothing else does.

Python's own lines also end at U+2028, U+0085, a form feed and others. A text that has a partner, line by line, would be
shifted by each of them. What ends a line here is what ends one for `wc -l`, but that a last line needs no line feed.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple
from xml.sax.saxutils import unescape

from .archives import Place

LONGEST = 1 << 24  # bytes of a line that are kept: no more memory is needed, however long it is
_SEGMENT = re.compile(rb"<seg\b[^>]*>(.*?)</seg\s*>", re.IGNORECASE | re.DOTALL)
_OPENED = re.compile(rb"<seg\b", re.IGNORECASE)


class Line(NamedTuple):
    """A line without its end."""

    content: bytes
    is_cut: bool  # whether it is longer than what is kept
    position: int  # bytes of the file, as it lies on the disk, that are read so far


def lines(place: Place) -> Iterator[Line]:
    """Yields the lines of a file; of an .sgm file the segments."""
    plain = split(place.chunks())
    return _segments(plain) if place.kind == ".sgm" else plain


def split(chunks: Iterator[tuple[bytes, int]]) -> Iterator[Line]:
    """Yields the lines of bytes that come in parts, each with a position."""
    kept: list[bytes] = []
    length, position = 0, 0
    for chunk, position in chunks:
        first, *others = chunk.split(b"\n")
        kept, length = _appended(kept, length, first), length + len(first)
        if not others:
            continue
        yield Line(b"".join(kept), length > LONGEST, position)
        for content in others[:-1]:
            yield Line(content[:LONGEST], len(content) > LONGEST, position)
        kept, length = _appended([], 0, others[-1]), len(others[-1])
    if length:
        yield Line(b"".join(kept), length > LONGEST, position)


def _appended(kept: list[bytes], length: int, part: bytes) -> list[bytes]:
    room = LONGEST - length
    return [*kept, part[:room]] if room > 0 else kept


def _segments(plain: Iterator[Line]) -> Iterator[Line]:
    """Yields what stands between <seg> and </seg>, which may be on several lines or several times on one."""
    rest, is_cut = b"", False
    for content, cut, position in plain:
        rest, is_cut = (rest + b" " + content)[-LONGEST:] if rest else content, is_cut or cut
        end = 0
        for match in _SEGMENT.finditer(rest):
            yield Line(_unescaped(match[1].strip()), is_cut, position)
            end = match.end()
        rest = rest[end:]
        opened = _OPENED.search(rest)
        rest, is_cut = (rest[opened.start() :], is_cut) if opened else (b"", False)


def _unescaped(content: bytes) -> bytes:
    """Returns a segment with its entities as characters, byte for byte otherwise."""
    text = content.decode("latin-1")
    return unescape(text, {"&quot;": '"', "&apos;": "'"}).encode("latin-1")
