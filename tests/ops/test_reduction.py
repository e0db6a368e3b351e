"""Reductions over dims."""

import numpy as np
import pytest

import meshax as mx
from messages import pinned
from samples import counting

batch, length, hidden = mx.dims(batch=6, length=4, hidden=10)

x = counting(batch, length, hidden)


@pytest.mark.parametrize("op", ["sum", "mean", "var", "prod", "max", "min"])
@pytest.mark.parametrize(
    ("over", "axis"), [(None, None), (length, 1), ("hidden batch", (2, 0)), ((batch, "length"), (0, 1))]
)
def test_over_some_dims_or_all(op, over, axis):
    small = x / 1000 + 0.9

    reduced = getattr(mx, op)(small, over)

    np.testing.assert_allclose(reduced.numpy(), getattr(np, op)(small.numpy(), axis=axis), rtol=2e-4)


def test_means_of_integers_are_floats():
    mean = mx.mean(counting(batch, dtype=np.int32))

    assert (mean.dtype, float(mean)) == (np.float32, 2.5)


def test_the_first_of_equal_extrema_counts():
    x = mx.tensor([[3.0, 7.0, 7.0], [1.0, 1.0, 0.0]], "row col")

    np.testing.assert_array_equal(mx.argmax(x, "col").numpy(), [1, 0])
    np.testing.assert_array_equal(mx.argmin(x, "col").numpy(), [0, 2])


@pytest.mark.parametrize(("dtype", "size"), [("bfloat16", 2), ("float16", 2), ("float32", 4)])
@pytest.mark.parametrize("op", ["max", "min"])
def test_extrema_across_processors_are_exact_and_no_wider_than_their_dtype(op, dtype, size):
    columns = [[1.5, -2.5, 0, -0.0], [np.inf, -np.inf, 3, 4], [1, np.nan, 3, 4], [1, 2, -np.nan, 5], [-1, -3, -2, -3e4]]
    given = mx.tensor(np.float32(columns).T, "row col").astype(dtype)
    program = mx.spmd(lambda x: getattr(mx, op)(x, "row"), mx.Mesh("rows:4"), "row:rows")

    (sent,) = program.explain(given).collectives
    assert (sent.kind, sent.bytes) == ("all-reduce", 5 * size)
    wanted = getattr(np, op)(given.numpy().astype(np.float32), axis=0)
    np.testing.assert_array_equal(program(given).numpy().astype(np.float32), wanted)


def test_a_reduced_parameter_is_stored_as_one():
    assert mx.sum(mx.param(x), hidden).role == "param"


MISTAKES = {
    "a dim that is not there": (
        mx.ShapeError,
        lambda: mx.sum(x, over="lenght"),
        """
        there is no dim 'lenght' here.
          values: [batch:6, length:4, hidden:10]
          fix: did you mean "length"?
        """,
    ),
    "a dim of another size": (
        mx.ShapeError,
        lambda: mx.max(x, over=mx.Dim("length", 5)),
        """
        dim 'length' has size 4 here, not 5.
          values: [batch:6, length:4, hidden:10]
          rule: dims of one name have one size.
          fix: use the dim's name, or x.dim('length'), where the size may vary.
        """,
    ),
    "a dim twice": (
        mx.DimError,
        lambda: mx.mean(x, over=(length, "length")),
        """
        one shape has two dims of the name 'length'.
          values: [length:4, length:4]
          rule: the dims of a tensor have different names.
          fix: name it once; if another dim is meant, rename that first: x.rename(length="memory_length").
        """,
    ),
    "a number instead of a dim": (
        mx.DimError,
        lambda: mx.sum(x, over=0),
        """
        not a dim, nor the name of one: 0.
          rule: dims are named, not numbered.
          fix: name them, or pass dims made by mx.dims("batch:128 hidden:1024").
        """,
    ),
    "the place over a number": (
        mx.DimError,
        lambda: mx.argmin(x, over=-1),
        """
        not a dim, nor the name of one: -1.
          rule: dims are named, not numbered.
          fix: name them, or pass dims made by mx.dims("batch:128 hidden:1024").
        """,
    ),
    "the place over two dims": (
        mx.ShapeError,
        lambda: mx.argmax(x, over=(batch, length)),
        """
        one dim is meant here, not 2.
          values: [batch:6, length:4, hidden:10]
          fix: name one dim.
        """,
    ),
    "the place over no dim": (
        mx.ShapeError,
        lambda: mx.argmin(x, over=()),
        """
        one dim is meant here, not 0.
          values: [batch:6, length:4, hidden:10]
          fix: name one dim.
        """,
    ),
    "the place over a dim that is not there": (
        mx.ShapeError,
        lambda: mx.argmax(x, over="vocab"),
        """
        there is no dim 'vocab' here.
          values: [batch:6, length:4, hidden:10]
          fix: known names: batch, hidden, length.
        """,
    ),
}

test_messages = pinned(MISTAKES)
