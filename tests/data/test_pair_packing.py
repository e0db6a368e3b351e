"""Rows of pairs: every pair once, whole, a segment on both sides; too long ones in no row, and counted."""

import numpy as np
import pytest

from meshax.data import pair_packing as module
from meshax.data.pair_packing import PackedPairs
from meshax.data.stream import PairBatches, in_order
from meshax.data.vocabulary import END, PAD
from meshax.errors import ArgumentError, DataError
from messages import pinned

NAMES = ["inputs", "inputs_positions", "inputs_segments", "positions", "segments", "targets", "tokens", "weights"]


class Stored:
    """Documents in memory that are read as a token file's are."""

    folder, begin, fingerprint = "here", END, "0"

    def __init__(self, documents):
        self.documents = [np.array([*document, END]) for document in documents]
        self.num_documents = len(documents)

    def lengths(self, begin, end):
        return np.array([len(document) for document in self.documents[begin:end]], np.int64)

    def document(self, number):
        return self.documents[number]


def drawn(count=500, seed=0):
    """Pairs of lengths that differ; some sides are longer than 16."""
    draw = np.random.default_rng(seed)
    return [
        Stored([draw.integers(2, 100, draw.integers(1, longest)).tolist() for _ in range(count)])
        for longest in (18, 14)
    ]


def test_a_row_is_as_the_docstring_shows():
    a, b, c, x, y, z = range(10, 16)
    rows = PackedPairs(Stored([[a, b], [c]]), Stored([[x], [y, z]]), 6, 6)
    assert len(rows) == 1
    batch = {name: array[0].tolist() for name, array in rows.read([0]).items()}
    assert batch == {
        "inputs": [a, b, END, c, END, PAD],
        "inputs_segments": [1, 1, 1, 2, 2, 0],
        "inputs_positions": [0, 1, 2, 0, 1, 0],
        "targets": [x, END, y, z, END, PAD],
        "tokens": [END, x, END, y, z, PAD],
        "segments": [1, 1, 2, 2, 2, 0],
        "positions": [0, 1, 0, 1, 2, 0],
        "weights": [1, 1, 1, 1, 1, 0],
    }


def unpacked(batch):
    """The pairs in rows, by their segments, each checked to be whole."""
    pairs = []
    for row in range(len(batch["inputs"])):
        for segment in range(1, batch["segments"][row].max(initial=0) + 1):
            there, here = batch["inputs_segments"][row] == segment, batch["segments"][row] == segment
            source, target = batch["inputs"][row][there], batch["targets"][row][here]
            assert batch["inputs_positions"][row][there].tolist() == list(range(len(source)))
            assert batch["positions"][row][here].tolist() == list(range(len(target)))
            assert batch["tokens"][row][here].tolist() == [END, *target[:-1]]
            pairs.append((source.tolist(), target.tolist()))
    return pairs


@pytest.mark.parametrize("block", [4, 64, 10_000])
def test_every_pair_is_in_one_row_and_in_order(monkeypatch, block):
    monkeypatch.setattr(module, "_BLOCK", block)
    monkeypatch.setattr(module, "_MARKED", 5)
    source, target = drawn()
    rows = PackedPairs(source, target, 16, 15)
    pairs = [(a.tolist(), b.tolist()) for a, b in zip(source.documents, target.documents)]
    fitting = [pair for pair in pairs if len(pair[0]) <= 16 and len(pair[1]) <= 15]
    assert rows.num_left_out == len(pairs) - len(fitting) > 5
    batch = rows.read(range(len(rows)))
    assert sorted(batch) == NAMES and {array.dtype for array in batch.values()} == {np.dtype(np.int32)}
    assert unpacked(batch) == fitting
    assert (batch["weights"] == (batch["segments"] > 0)).all() and batch["segments"][:, 0].all()
    shuffled = np.random.default_rng(0).permutation(len(rows)).tolist()
    again = rows.read(shuffled)
    assert all((again[name] == batch[name][shuffled]).all() for name in NAMES)
    beyond = rows.read([len(rows), 0])
    assert all(not beyond[name][0].any() and (beyond[name][1] == batch[name][0]).all() for name in NAMES)


def test_rows_are_full_unless_the_next_pair_has_no_room():
    source, target = drawn()
    rows = PackedPairs(source, target, 40, 40)
    batch = rows.read(range(len(rows)))
    used = [(batch[name] > 0).sum(1) for name in ("inputs_segments", "segments")]
    first = [[(batch[name][row] == 1).sum() for row in range(len(rows))] for name in ("inputs_segments", "segments")]
    for row in range(len(rows) - 1):
        assert any(used[side][row] + first[side][row + 1] > 40 for side in (0, 1))


def test_a_stream_continues_exactly_and_is_the_same_for_every_number_of_processes():
    files = drawn()
    stream = PairBatches(PackedPairs(*files, 16, 15), 8, seed=3)
    batches = [next(stream) for _ in range(5)]
    state = stream.state()
    later = [next(stream) for _ in range(20)]  # into the second pass
    again = PairBatches(PackedPairs(*files, 16, 15), 8, seed=3)
    again.restore(state)
    parts = [PairBatches(PackedPairs(*files, 16, 15), 8, seed=3, rows=[2 * i, 2 * i + 1]) for i in range(4)]
    for part in parts:
        part.restore(state)
    for batch in later:
        other, rows = next(again), [next(part) for part in parts]
        for name in NAMES:
            assert (batch[name] == other[name]).all()
            assert (batch[name] == np.concatenate([part[name] for part in rows])).all()
    assert any(
        (batches[0][name] != next(PairBatches(PackedPairs(*files, 16, 15), 8, seed=4))[name]).any() for name in NAMES
    )
    with pytest.raises(DataError, match="source_length was 16, is 18"):
        PairBatches(PackedPairs(*files, 18, 15), 8, seed=3).restore(state)


def test_one_pass_has_every_pair_once():
    files = drawn()
    rows = PackedPairs(*files, 16, 15)
    every, stream = unpacked(rows.read(range(len(rows)))), PairBatches(rows, 1)
    seen = [pair for _ in range(len(rows)) for pair in unpacked(next(stream))]
    assert sorted(seen) == sorted(every) and seen != every
    assert [pair for batch in in_order(rows, 7) for pair in unpacked(batch)] == every


test_messages = pinned(
    {
        "no room": (
            ArgumentError,
            lambda: PackedPairs(*drawn(), 0, 4),
            """
            a row of 0 source tokens and 4 target tokens holds nothing.
              fix: choose lengths, for example 256.
            """,
        ),
        "all too long": (
            DataError,
            lambda: PackedPairs(Stored([[5] * 9]), Stored([[5]]), 8, 8),
            """
            all pairs are too long.
              values: 1 pairs; a row has 8 tokens of sources, 8 of targets
              fix: choose longer ones.
            """,
        ),
        "not the same pairs": (
            DataError,
            lambda: PackedPairs(Stored([[5], [6]]), Stored([[5]]), 8, 8),
            """
            the tokens of sources and targets are not of the same pairs.
              values: here: 2; here: 1
              fix: make them again: the files have changed between the one and the other.
            """,
        ),
        "fewer than a batch": (
            DataError,
            lambda: PairBatches(PackedPairs(Stored([[5], [6]]), Stored([[5], [6]]), 8, 8), 4),
            """
            there are fewer pairs than one batch has room for.
              values: 2 pairs make 1 rows, not 4
              fix: choose a smaller batch or shorter rows, or name more pairs.
            """,
        ),
    }
)
