"""How much of a text is read: its first documents, or its first bytes, and not one more."""

from collections.abc import Iterator
from dataclasses import dataclass

from .reading import Piece


@dataclass(frozen=True)
class Limit:
    """How much of a text is read: so many documents, so many bytes of UTF-8; 0 for all there are."""

    documents: int = 0
    bytes: int = 0

    def __bool__(self) -> bool:
        return bool(self.documents or self.bytes)


class Counter:
    """Keeps a text within its limit, also one that was begun before."""

    def __init__(self, limit: Limit, documents: int = 0, num_bytes: int = 0):
        self._limit, self._documents, self._bytes = limit, documents, num_bytes

    @property
    def is_full(self) -> bool:
        """Whether nothing more is taken."""
        limit = self._limit
        return bool(limit.documents and self._documents >= limit.documents) or bool(
            limit.bytes and self._bytes >= limit.bytes
        )

    def take(self, pieces: Iterator[Piece]) -> Iterator[Piece]:
        """Yields pieces up to the limit; the last document may end within a word, never within a character."""
        if not self._limit:
            yield from pieces
            return
        while not self.is_full and (piece := next(pieces, None)) is not None:
            room = self._limit.bytes - self._bytes if self._limit.bytes else None
            content = piece.text.encode()
            if room is not None and len(content) >= room:
                self._bytes = self._limit.bytes
                yield Piece(content[:room].decode(errors="ignore"), True, piece.position)
                return
            self._bytes += len(content)
            self._documents += piece.is_last
            yield piece
