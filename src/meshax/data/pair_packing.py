"""Packs pairs into rows: several sources beside each other, and their targets, each pair a segment on both sides.

    pairs       a b END -> x END      c END -> y z END            a row of 6 source tokens and 6 target tokens
    inputs      a b END c END PAD
    targets     x END y z END PAD
    tokens      END x END y z PAD                                 what the decoder reads: the targets, shifted right
    segments    1 1 2 2 2 0                                       and 1 1 1 2 2 0 of the inputs
    positions   0 1 0 1 2 0                                       and 0 1 2 0 1 0 of the inputs

A row takes the next pairs of the files as long as both sides have room. So where a row begins follows from the lengths
alone. One pass over the offsets finds it, and remembers the beginning of every 64th row: from there any row is near,
and the memory hardly grows with the text. A pair of which one side is longer than a row has on that side is in no row;
it is counted. What is not filled is padding: segment 0, weight 0.
"""

from collections.abc import Sequence

import numpy as np

from ..errors import ArgumentError, DataError
from .tokens import TokenFile
from .vocabulary import PAD

Batch = dict[str, np.ndarray]
_BLOCK = 1 << 20  # pairs that are looked at together
_MARKED = 64  # of so many rows, one is remembered


class PackedPairs:
    """The rows of pairs, whose sources and targets are token files with as many documents each.

    Args:
        source: the tokens of the sources.
        target: the tokens of the targets.
        source_length: tokens of a row of sources.
        length: tokens of a row of targets.
    """

    def __init__(self, source: TokenFile, target: TokenFile, source_length: int, length: int):
        if source_length < 1 or length < 1:
            raise ArgumentError(
                f"a row of {source_length} source tokens and {length} target tokens holds nothing.",
                fix="choose lengths, for example 256.",
            )
        if source.num_documents != target.num_documents:
            raise DataError(
                "the tokens of sources and targets are not of the same pairs.",
                values=f"{source.folder}: {source.num_documents:,}; {target.folder}: {target.num_documents:,}",
                fix="make them again: the files have changed between the one and the other.",
            )
        self._files, self._lengths = (source, target), (source_length, length)
        self.identity = {
            "tokens": [source.fingerprint, target.fingerprint],
            "source_length": source_length,
            "length": length,
        }
        self.num_pairs, self.num_left_out = source.num_documents, 0
        self._marks, self._num_rows = self._pack()
        if not self._num_rows:
            raise DataError(
                "all pairs are too long.",
                values=f"{self.num_pairs:,} pairs; a row has {source_length} tokens of sources, {length} of targets",
                fix="choose longer ones.",
            )

    def __len__(self) -> int:
        return self._num_rows

    def _pack(self) -> tuple[np.ndarray, int]:
        """Returns the first pair of every 64th row, and the number of pairs; and how many rows there are."""
        marks: list[int] = []
        begin = num_rows = 0
        while begin < self.num_pairs:
            end = min(begin + _BLOCK, self.num_pairs)
            rows = self._begins(begin, end)
            if end < self.num_pairs and len(rows) > 1:  # the last may have room for pairs of the next block
                end = begin + rows.pop()
            marks += [begin + row for number, row in enumerate(rows, num_rows) if number % _MARKED == 0]
            self.num_left_out += int((~self._sizes(begin, end)[1]).sum())
            begin, num_rows = end, num_rows + len(rows)
        return np.array([*marks, self.num_pairs], np.int64), num_rows if self.num_left_out < self.num_pairs else 0

    def _begins(self, begin: int, end: int) -> list[int]:
        """Returns where the rows of some pairs begin, counted from the first of these."""
        after = []  # for each pair, the first that has no room in a row that begins with it
        for size, room in zip(self._sizes(begin, end)[0], self._lengths, strict=True):
            before = np.concatenate([[0], np.cumsum(size)])
            after.append(np.searchsorted(before, before[:-1] + room, "right") - 1)
        nearest = np.minimum(*after).tolist()
        row, rows = 0, []
        while row < len(nearest):
            rows.append(row)
            row = nearest[row]
        return rows

    def _row(self, number: int) -> tuple[int, int]:
        """Returns the first pair of a row, and the first of the next."""
        first, end = self._marks[number // _MARKED : number // _MARKED + 2].tolist()
        rows = [*self._begins(first, end), end - first]
        place = number % _MARKED
        return first + rows[place], first + rows[place + 1]

    def _sizes(self, begin: int, end: int) -> tuple[list[np.ndarray], np.ndarray]:
        """Returns the lengths of both sides of pairs, 0 if one of them is too long, and which pairs are in a row."""
        sizes = [file.lengths(begin, end) for file in self._files]
        is_in = np.logical_and(*(size <= room for size, room in zip(sizes, self._lengths, strict=True)))
        return [np.where(is_in, size, 0) for size in sizes], is_in

    def read(self, numbers: Sequence[int]) -> Batch:
        """Returns rows as int32 arrays [row, length]; of a number past the last it is all padding."""
        names = ("inputs", "inputs_segments", "inputs_positions"), ("targets", "segments", "positions")
        batch = {
            name: np.zeros((len(numbers), length), np.int32)
            for side, length in zip(names, self._lengths, strict=True)
            for name in side
        }
        batch["inputs"][:], batch["targets"][:] = PAD, PAD
        batch["tokens"] = np.full_like(batch["targets"], PAD)
        begin_token = self._files[1].begin
        for row, number in enumerate(numbers):
            if number >= len(self):
                continue
            first, end = self._row(number)
            _, is_in = self._sizes(first, end)
            for side, file in enumerate(self._files):
                documents = [file.document(first + int(pair)) for pair in np.flatnonzero(is_in)]
                place = 0
                for segment, document in enumerate(documents, 1):
                    there = slice(place, place + len(document))
                    tokens, segments, positions = names[side]
                    batch[tokens][row, there] = document
                    batch[segments][row, there] = segment
                    batch[positions][row, there] = np.arange(len(document))
                    if side:
                        batch["tokens"][row, there] = [begin_token, *document[:-1]]
                    place += len(document)
        batch["weights"] = (batch["segments"] > 0).astype(np.int32)
        return batch
