"""Rename, reshape, transpose and broadcast."""

import numpy as np
import pytest

import meshax as mx
from example_tensors import counting
from messages import pinned

batch, length, hidden = mx.dims(batch=6, length=4, hidden=10)

x = counting(batch, length)


@pytest.mark.parametrize("names", [{"batch": "items"}, {batch: "items"}, {"batch": mx.Dim("items", 6)}], ids=str)
def test_rename(names):
    renamed = mx.rename(x, names)

    assert renamed.dims == (mx.Dim("items", 6), length)
    np.testing.assert_array_equal(renamed.numpy(), x.numpy())


def test_names_can_be_swapped_at_once():
    square = counting(*mx.dims(north=3, east=3))

    assert square.rename(north="east", east="north").dims == mx.dims("east:3 north:3")


def test_rename_keeps_the_role():
    assert mx.param(x).rename(batch="items").role == "param"


def test_reshape_reads_elements_in_order():
    merged, pair = mx.Dim("merged", 12), mx.Dim("pair", 2)

    np.testing.assert_array_equal(mx.reshape(x, (merged, pair)).numpy(), x.numpy().reshape(12, 2))
    np.testing.assert_array_equal(mx.reshape(x, ("length", batch)).numpy(), x.numpy().reshape(4, 6))


def test_transpose_stores_the_same_tensor_in_another_order():
    turned = mx.transpose(x, "length batch")

    assert turned.dims == (length, batch)
    np.testing.assert_array_equal(turned.numpy(), x.numpy().T)


def test_broadcast_repeats_along_new_dims():
    repeated = mx.broadcast(x, (hidden, "length", batch))

    assert repeated.dims == (hidden, length, batch)
    np.testing.assert_array_equal(repeated.numpy(), np.broadcast_to(x.numpy().T, (10, 4, 6)))


MISTAKES = {
    "a rename to another size": (
        mx.ShapeError,
        lambda: x.rename(batch=hidden),
        """
        a rename keeps the size: batch:6 cannot become hidden:10.
          fix: use mx.reshape or mx.slice to change sizes.
        """,
    ),
    "a rename of a dim that is not there": (
        mx.ShapeError,
        lambda: x.rename(lenght="memory"),
        """
        there is no dim 'lenght' here.
          values: [batch:6, length:4]
          fix: did you mean "length"?
        """,
    ),
    "a rename to a name that is taken": (
        mx.DimError,
        lambda: x.rename(batch="length"),
        """
        one shape has two dims of the name 'length'.
          values: [length:6, length:4]
          rule: the dims of a tensor have different names.
          fix: name it once; if another dim is meant, rename that first: x.rename(length="memory_length").
        """,
    ),
    "a rename to no name": (
        mx.DimError,
        lambda: x.rename(batch="the batch"),
        """
        'the batch' is not a name for a dim.
          rule: a name is made of letters, digits and _, and does not begin with a digit.
          fix: write for example mx.Dim("batch", 32).
        """,
    ),
    "a reshape to another number of elements": (
        mx.ShapeError,
        lambda: mx.reshape(x, (batch, hidden)),
        """
        24 elements cannot be read as 60.
          values: [batch:6, length:4] to [batch:6, hidden:10]
          rule: a reshape keeps the number of elements.
          fix: correct the sizes of the new dims.
        """,
    ),
    "a reshape to a name without a size": (
        mx.ShapeError,
        lambda: mx.reshape(x, "batch columns"),
        """
        mx.reshape does not know the size of 'columns'.
          rule: a new tensor is made of dims, which have sizes.
          fix: pass dims, for example mx.dims("batch:32 hidden:64").
        """,
    ),
    "a broadcast to a name without a size": (
        mx.ShapeError,
        lambda: mx.broadcast(x, ("columns", batch, "length")),
        """
        mx.broadcast does not know the size of 'columns'.
          rule: a new tensor is made of dims, which have sizes.
          fix: pass dims, for example mx.dims("batch:32 hidden:64").
        """,
    ),
    "a broadcast that loses a dim": (
        mx.ShapeError,
        lambda: mx.broadcast(x, (hidden, batch)),
        """
        mx.broadcast keeps every dim: length:4 is missing.
          values: [batch:6, length:4] to [hidden:10, batch:6]
          fix: name it too, or sum over it first.
        """,
    ),
    "a broadcast to another size": (
        mx.ShapeError,
        lambda: mx.broadcast(x, (mx.Dim("batch", 7), length)),
        """
        mx.broadcast keeps every dim: batch:6 is missing.
          values: [batch:6, length:4] to [batch:7, length:4]
          fix: name it too, or sum over it first.
        """,
    ),
    "a transpose that loses a dim": (
        mx.ShapeError,
        lambda: mx.transpose(x, "length"),
        """
        mx.transpose names every dim once.
          values: [batch:6, length:4] to [length:4]
          fix: name the missing dims.
        """,
    ),
    "a transpose with a dim twice": (
        mx.DimError,
        lambda: mx.transpose(x, "length length"),
        """
        one shape has two dims of the name 'length'.
          values: [length:4, length:4]
          rule: the dims of a tensor have different names.
          fix: name it once; if another dim is meant, rename that first: x.rename(length="memory_length").
        """,
    ),
}

test_messages = pinned(MISTAKES)
