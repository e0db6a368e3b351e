"""Cuts a token file into windows of one length, any of which can be read at once.

The documents, each with its `END`, are one stream, and window w predicts its tokens [w * length, (w + 1) * length): no
token is lost, and each is predicted once. What predicts a token is the one before it, so the first of a document is
predicted from the `END` before it. A window holds the ends and beginnings of documents as segments:

    stream      a b c END d e END f g h ...        window 1 of length 4
    targets     d e END f
    tokens      END d e END
    segments    1 1 1 2
    positions   0 1 2 0

In a vocabulary from elsewhere another token may begin a document: it then stands among the tokens where `END` is here.
A long document lies in several windows; in each it begins with position 0. Attention must stay within a segment. What
comes after the end of the stream is padding: segment 0, weight 0.
"""

from collections.abc import Sequence

import numpy as np

from ..errors import ArgumentError
from .tokens import Tokens
from .vocabulary import END, PAD

Batch = dict[str, np.ndarray]


class Windows:
    """The windows of a token file."""

    def __init__(self, tokens: Tokens | np.ndarray, length: int):
        if length < 1:
            raise ArgumentError(f"a window of {length} tokens holds nothing.", fix="choose a length, for example 1024.")
        self._stream = tokens if isinstance(tokens, np.ndarray) else tokens.tokens
        self._begin, self._end = (END, END) if isinstance(tokens, np.ndarray) else (tokens.begin, tokens.end)
        self.length = length

    def __len__(self) -> int:
        return -(-len(self._stream) // self.length)

    def __getitem__(self, number: int) -> Batch:
        if not 0 <= number < len(self):
            raise IndexError(number)
        return {name: rows[0] for name, rows in self.read([number]).items()}

    def read(self, numbers: Sequence[int]) -> Batch:
        """Returns windows as int32 arrays [window, length]; of a number past the last it is all padding."""
        stretch = np.full((len(numbers), self.length + 1), self._end, np.int32)
        sizes = np.zeros((len(numbers), 1), np.int32)
        for row, number in enumerate(numbers):
            begin = number * self.length
            part = self._stream[max(begin - 1, 0) : begin + self.length]
            offset = 1 if begin == 0 else 0
            stretch[row, offset : offset + len(part)] = part
            sizes[row] = max(len(part) + offset - 1, 0)
        place = np.arange(self.length, dtype=np.int32)
        is_token = place < sizes
        tokens, targets = stretch[:, :-1], stretch[:, 1:]
        ends = tokens == self._end
        begins = ends | (place == 0)
        positions = place - np.maximum.accumulate(np.where(begins, place, 0), axis=1)
        return {
            "tokens": np.where(is_token, np.where(ends, self._begin, tokens), PAD),
            "targets": np.where(is_token, targets, PAD),
            "segments": np.where(is_token, np.cumsum(begins, axis=1, dtype=np.int32), 0),
            "positions": np.where(is_token, positions, 0),
            "weights": is_token.astype(np.int32),
        }
