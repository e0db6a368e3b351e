"""Windows as elements of a dim of their own."""

import numpy as np
import pytest

import meshax as mx
from example_tensors import counting
from extent import some
from messages import pinned

batch, length, hidden, window = mx.dims(batch=6, length=4, hidden=10, window=3)
mesh = mx.Mesh("rows:2 cols:4")
LAYOUTS = ["", "hidden:cols", "hidden:rows+cols", "batch:cols hidden:rows"]
HUGE = mx.Mesh("data:64 model:64", abstract=True)
long = mx.Dim("long", 2**33 + 7)

x, whole = counting(batch, length), counting(batch, hidden)


@pytest.mark.parametrize("layout", [None, *some(LAYOUTS, "batch:cols hidden:rows")])
@pytest.mark.parametrize(
    ("before", "after", "stride"), [(0, 0, 1), (1, 1, 1), (2, 0, 1), (0, 2, 2), (1, 0, 3), (2, 2, 4), (5, 9, 1)]
)
def test_windows_are_what_their_formula_says(layout, before, after, stride):
    cut = lambda x: mx.windows(x, hidden, window, before, after, stride)  # noqa: E731
    made = cut(whole) if layout is None else mx.spmd(cut, mesh, layout)(whole)
    count = (10 + before + after - 3) // stride + 1

    wanted = np.zeros((6, count, 3), np.float32)
    for i in range(count):
        for w in range(3):
            place = i * stride + w - before
            if 0 <= place < 10:
                wanted[:, i, w] = whole.numpy()[:, place]
    assert made.dims == (batch, mx.Dim("hidden", count), window)
    np.testing.assert_array_equal(made.numpy(), wanted)


def no_window(dim, before, after, stride):
    return f"""
        dim length:4 has no window of {dim}.
          values: before {before}, after {after}, stride {stride}
          rule: at least one window fits, and steps go forward.
          fix: choose a smaller window, or larger margins.
        """


MISTAKES = {
    "windows of more than fits": (
        mx.ShapeError,
        lambda: mx.spmd(lambda: mx.windows(mx.zeros(long), long, window), HUGE, "").trace(),
        """
        mx.windows counts places along dim long:8589934599, which do not fit into int32.
          rule: places along a dim are int32: at most 2147483648 of them.
          fix: use two dims in its place, for example of 65536 and the rest.
        """,
    ),
    "a margin in words": (
        mx.ArgumentError,
        lambda: mx.windows(x, length, window, before="same"),
        """
        mx.windows takes integers, not before='same'.
          rule: such a number is part of the program: it is known before the program runs.
          fix: pass a Python int.
        """,
    ),
    "a window that does not fit": (
        mx.ArgumentError,
        lambda: mx.windows(x, length, mx.Dim("wide", 6), before=1),
        no_window("wide:6", 1, 0, 1),
    ),
    "windows that do not move": (
        mx.ArgumentError,
        lambda: mx.windows(x, length, window, stride=0),
        no_window("window:3", 0, 0, 0),
    ),
    "a negative margin": (
        mx.ArgumentError,
        lambda: mx.windows(x, length, mx.Dim("pair", 2), after=-1),
        no_window("pair:2", 0, -1, 1),
    ),
    "a window without a size": (
        mx.ShapeError,
        lambda: mx.windows(x, length, "window"),
        """
        mx.windows does not know the size of 'window'.
          rule: a new tensor is made of dims, which have sizes.
          fix: pass dims, for example mx.dims("batch:32 hidden:64").
        """,
    ),
    "two dims of windows": (
        mx.ShapeError,
        lambda: mx.windows(x, length, mx.dims("first:2 second:2")),
        """
        mx.windows takes one dim, not 2.
          values: [first:2, second:2]
          fix: pass one dim.
        """,
    ),
    "windows of a name that is taken": (
        mx.DimError,
        lambda: mx.windows(x, length, mx.Dim("length", 2)),
        """
        one shape has two dims of the name 'length'.
          values: [batch:6, length:3, length:2]
          rule: the dims of a tensor have different names.
          fix: name it once; if another dim is meant, rename that first: x.rename(length="memory_length").
        """,
    ),
}
test_messages = pinned(MISTAKES)
