"""Padding with a value, with the edge, or mirrored."""

from functools import partial

import numpy as np
import pytest

import meshax as mx
from example_tensors import counting
from extent import some
from messages import pinned

batch, length, hidden = mx.dims(batch=6, length=4, hidden=10)
mesh = mx.Mesh("rows:2 cols:4")
LAYOUTS = ["", "hidden:cols", "hidden:rows+cols", "batch:cols hidden:rows"]
x, whole = counting(batch, length), counting(batch, hidden)


def under(layout, fn, *args):
    return mx.spmd(fn, mesh, layout)(*args)


@pytest.mark.parametrize("layout", [None, *some(LAYOUTS, "hidden:rows+cols")])
def test_edges_and_mirrors(layout):
    margins = {"edge": [(0, 0), (0, 3), (14, 1)], "reflect": [(0, 0), (0, 9), (9, 2)]}

    def pad_all(x):
        return {mode: [mx.pad(x, hidden, *m, mode=mode) for m in some] for mode, some in margins.items()}

    made = pad_all(whole) if layout is None else under(layout, pad_all, whole)

    for mode, some_margins in margins.items():
        for (before, after), padded in zip(some_margins, made[mode]):
            assert padded.dims == (batch, mx.Dim("hidden", 10 + before + after))
            np.testing.assert_array_equal(padded.numpy(), np.pad(whole.numpy(), [(0, 0), (before, after)], mode=mode))


def test_what_is_mirrored_stays_near():
    """An element that is mirrored at the dim's end is on the same processor, or the next."""
    ring = counting(batch, mx.Dim("ring", 14))
    program = mx.spmd(lambda x: mx.pad(x, "ring", 1, 1, mode="reflect"), mesh, "ring:cols")  # 14 + 2 in blocks of 4

    # Places 0 to 3 of the result are 1 0 1 2, and 12 to 15 are 11 12 13 12: only the third has to ask, for place 10.
    assert [(c.kind, c.shape) for c in program.explain(ring).collectives] == [("permute", (6, 1))]
    np.testing.assert_array_equal(program(ring).numpy(), np.pad(ring.numpy(), [(0, 0), (1, 1)], mode="reflect"))


MISTAKES = {
    "a mode that there is not": (
        mx.ArgumentError,
        lambda: mx.pad(x, length, 1, 1, mode="wrap"),
        """
        mx.pad has no mode 'wrap'.
          rule: a mode is "constant", "edge" or "reflect".
          fix: choose one of these.
        """,
    ),
    "more than there is to mirror": (
        mx.ArgumentError,
        lambda: mx.pad(x, length, 1, 4, mode="reflect"),
        """
        dim length:4 cannot be mirrored by 1 and 4.
          rule: its first and last element are not repeated: it has 3 others.
          fix: pad by less, or with mode="edge".
        """,
    ),
    **{
        f"padding of integers with {value}": (
            mx.ArgumentError,
            partial(mx.pad, counting(length, dtype=np.int32), length, 1, 1, value),
            f"""
            {value} is not an integer, as the tensor's elements are.
              fix: pad with an integer.
            """,
        )
        for value in (0.25, np.inf, -np.inf, np.nan, np.float32(np.inf))
    },
    "padding with a number that the dtype does not have": (
        mx.ArgumentError,
        lambda: mx.pad(counting(length, dtype=np.int8), length, 1, 1, 300),
        """
        300 is not one of the numbers of int8.
          values: -128 to 127
          fix: cast the tensor.
        """,
    ),
    "padding with a complex number": (
        mx.ArgumentError,
        lambda: mx.pad(x, length, 1, 1, 1j),
        """
        1j is not a real number, as the tensor's elements are.
          fix: pad with a real number.
        """,
    ),
    "padding with a tensor": (
        mx.ArgumentError,
        lambda: under("", lambda x: mx.pad(x, length, 1, 1, mx.sum(x)), x),
        """
        mx.pad takes a number for value=, not Tensor.
          rule: such a number is part of the program: it is known before the program runs.
          fix: pad with 0, and choose with mx.where; or use mx.concat.
        """,
    ),
    "padding with a traced value": (
        mx.ArgumentError,
        lambda: under("batch:rows", lambda x, value: mx.pad(x, length, 1, 1, value), x, 3.0),
        """
        mx.pad takes a number for value=, not a traced value.
          rule: such a number is part of the program: it is known before the program runs.
          fix: pad with 0, and choose with mx.where; or use mx.concat.
        """,
    ),
    "padding with a word": (
        mx.ArgumentError,
        lambda: mx.pad(x, length, 1, 1, "edge"),
        """
        mx.pad takes a number for value=, not str.
          rule: such a number is part of the program: it is known before the program runs.
          fix: pad with 0, and choose with mx.where; or use mx.concat.
        """,
    ),
    "a fraction of padding": (
        mx.ArgumentError,
        lambda: mx.pad(x, length, 1, 0.5),
        """
        mx.pad takes integers, not after=0.5.
          rule: such a number is part of the program: it is known before the program runs.
          fix: pass a Python int.
        """,
    ),
    "a negative padding": (
        mx.ArgumentError,
        lambda: mx.pad(x, length, -1, 2),
        """
        dim length:4 cannot be padded by -1 and 2.
          fix: use mx.slice to cut elements off.
        """,
    ),
}
test_messages = pinned(MISTAKES)
