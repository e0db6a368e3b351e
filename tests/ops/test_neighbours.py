"""Windows of a split dim: each processor gets the stretch it asks for, and nobody sends or receives twice at once."""

import random

import numpy as np
import pytest

import meshax as mx
from example_tensors import counting
from meshax.layout import block_size, current
from meshax.ops.neighbours import _pieces, _rounds, window
from meshax.tensors import Tensor, settled_array

row, col = mx.dims(row=3, col=10)
mesh = mx.Mesh("rows:2 cols:4")
mx.Dim.declare({"piece": "what the windows hold, one after the other"})

# Where the window of each of four processors begins; [col:10] is cut into blocks of 3, 3, 3 and 1.
STARTS = {
    "its own block": [0, 3, 6, 9],
    "one further": [1, 4, 7, 10],
    "one before": [-1, 2, 5, 8],
    "the same for all": [4, 4, 4, 4],
    "in reverse": [7, 4, 1, -2],
    "outside": [-9, -3, 10, 25],
    "spread out": [0, 2, 4, 6],
    "mixed": [8, -2, 9, 0],
}


def windows_of(x, starts, width, fill):
    """Each processor's window, one after the other along a dim of its own."""
    array = window(settled_array(x), current().placement(x.dims), col, starts, width, fill)
    return Tensor(array, (row, mx.Dim("piece", width * len(starts))))


def expected(x, starts, width, fill):
    padded = np.pad(x.numpy(), [(0, 0), (40, 40)], constant_values=fill)
    return np.concatenate([padded[:, 40 + start : 40 + start + width] for start in starts], 1)


@pytest.mark.parametrize("width", [1, 3, 7, 12])
@pytest.mark.parametrize("name", STARTS)
def test_each_processor_gets_its_window(name, width):
    x, starts = counting(row, col) + 1, STARTS[name]

    made = mx.spmd(lambda x: windows_of(x, starts, width, -5), mesh, "col:cols piece:cols")(x)

    np.testing.assert_array_equal(made.numpy(), expected(x, starts, width, -5))


@pytest.mark.parametrize("axes", [("rows", "cols"), ("cols", "rows")])
def test_windows_along_two_axes(axes):
    x, starts = counting(row, col) + 1, [2, 0, 9, -1, 4, 4, 8, 30]  # blocks of 2; the last three hold padding only

    rule = "+".join(axes)
    made = mx.spmd(lambda x: windows_of(x, starts, 4, 0), mesh, f"col:{rule} piece:{rule}")(x)

    np.testing.assert_array_equal(made.numpy(), expected(x, starts, 4, 0))


@pytest.mark.parametrize("start", [-13, -2, 0, 4, 9, 10, 17])
@pytest.mark.parametrize("width", [1, 5, 14])
def test_a_window_of_a_whole_dim(start, width):
    x = counting(row, col) + 1

    for setting in (current(), mx.layout.Setting(mesh, mx.Layout(""))):
        made = window(settled_array(x), setting.placement(x.dims), col, [start], width, 7)
        np.testing.assert_array_equal(made, expected(x, [start], width, 7))


@pytest.mark.parametrize("seed", range(20))
def test_nobody_sends_or_receives_twice_in_a_round(seed):
    r = random.Random(seed)
    count, size, width = r.randint(1, 8), r.randint(1, 20), r.randint(1, 9)
    block, starts = block_size(size, count), [r.randint(-5, size + 5) for _ in range(count)]

    pieces = _pieces(size, block, starts, [width] * count)
    rounds = _rounds(pieces)

    assert sorted(map(str, sum(rounds, []))) == sorted(map(str, pieces))
    for n, round_ in enumerate(rounds):
        for end in ("sender", "receiver"):
            assert len({getattr(piece, end) for piece in round_}) == len(round_)
        stays = {piece.sender == piece.receiver for piece in round_}
        assert stays == {True} if n == 0 and True in stays else stays == {False}
    covered = {(p.receiver, p.target + i) for p in pieces for i in range(p.length)}
    assert covered == {(n, i) for n, start in enumerate(starts) for i in range(width) if 0 <= start + i < size}
