"""Windows lose no token, and know which document each belongs to."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshax import ArgumentError
from meshax.data import END, PAD, Windows
from messages import pinned

DOCUMENTS = st.lists(st.lists(st.integers(2, 60_000), min_size=1, max_size=30), min_size=1, max_size=12)


def stream_of(documents):
    return np.array([token for document in documents for token in (*document, END)], np.uint16)


def test_the_example_of_the_module():
    a, b, c, d, e, f, g, h = range(2, 10)
    window = Windows(stream_of([[a, b, c], [d, e], [f, g, h]]), 4)[1]

    assert {name: row.tolist() for name, row in window.items()} == {
        "tokens": [END, d, e, END],
        "targets": [d, e, END, f],
        "segments": [1, 1, 1, 2],
        "positions": [0, 1, 2, 0],
        "weights": [1, 1, 1, 1],
    }


@given(DOCUMENTS, st.integers(1, 40))
def test_no_token_is_lost_and_each_is_predicted_once(documents, length):
    stream = stream_of(documents)
    windows = Windows(stream, length)
    batch = windows.read(range(len(windows)))

    is_token = batch["weights"] == 1
    assert batch["targets"][is_token].tolist() == stream.tolist()
    assert batch["tokens"][is_token].tolist() == [END, *stream.tolist()[:-1]]
    assert all(rows.dtype == np.int32 and rows.shape == (len(windows), length) for rows in batch.values())


@given(DOCUMENTS, st.integers(1, 40))
def test_segments_are_the_documents(documents, length):
    """Against the plain way: the number of each token's document, and its place there, counted one by one."""
    stream = stream_of(documents)
    owner = [number for number, document in enumerate(documents) for _ in (*document, END)]
    windows = Windows(stream, length)
    for number in range(len(windows)):
        window = windows[number]
        owners = owner[number * length : (number + 1) * length]
        segments = [sorted(set(owners)).index(o) + 1 for o in owners]
        positions = [owners[:place].count(o) for place, o in enumerate(owners)]
        padding = [0] * (length - len(owners))

        assert window["segments"].tolist() == segments + padding
        assert window["positions"].tolist() == positions + padding
        assert window["weights"].tolist() == [1] * len(owners) + padding
        for name in ("tokens", "targets"):
            assert window[name].tolist()[len(owners) :] == [PAD] * len(padding)


@given(DOCUMENTS, st.integers(1, 40), st.data())
def test_any_windows_can_be_read_in_any_order(documents, length, data):
    windows = Windows(stream_of(documents), length)
    numbers = data.draw(st.lists(st.integers(0, len(windows) - 1), min_size=1, max_size=5))
    batch = windows.read(numbers)
    for row, number in enumerate(numbers):
        for name, values in windows[number].items():
            assert np.array_equal(batch[name][row], values)


def test_past_the_end_is_padding():
    windows = Windows(stream_of([[5, 6, 7]]), 4)
    assert len(windows) == 1
    assert all(not rows.any() for rows in windows.read([1, 7]).values())
    with pytest.raises(IndexError):
        windows[1]


test_messages = pinned(
    {
        "no length": (
            ArgumentError,
            lambda: Windows(stream_of([[5]]), 0),
            """
            a window of 0 tokens holds nothing.
              fix: choose a length, for example 1024.
            """,
        ),
    }
)
