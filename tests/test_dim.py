"""Dims and the algebra of named shapes."""

import numpy as np
import pytest

import meshax as mx
from meshax.dim import known_names, made_names, select, show, union, without
from messages import pinned

batch, length, hidden = mx.dims(batch=6, length=4, hidden=10)


def test_a_dim_is_a_name_and_a_size():
    dim = mx.Dim("batch", 6)

    assert (dim.name, dim.size) == ("batch", 6)
    assert repr(dim) == "batch:6"
    assert dim == batch and hash(dim) == hash(batch)
    assert dim != mx.Dim("batch", 7) and dim != mx.Dim("length", 6)


def test_a_size_becomes_a_python_integer():
    assert type(mx.Dim("batch", np.int64(6)).size) is int


@pytest.mark.parametrize(
    "made",
    [
        mx.dims("batch:6 length:4 hidden:10"),
        mx.dims("batch:6,length:4;hidden:10"),
        mx.dims("  batch:6,\n\tlength:4 ; hidden:10;"),
        mx.dims("batch:6", length=4, hidden=10),
    ],
)
def test_dims_are_parsed(made):
    assert made == (batch, length, hidden)


def test_no_dims():
    assert mx.dims("") == mx.dims() == ()


def test_a_name_is_known_once_a_dim_has_it():
    assert "never_made_before" not in known_names()
    mx.Dim("never_made_before", 1)
    assert "never_made_before" in known_names()


def test_a_name_is_known_once_it_is_declared():
    glossary = mx.Dim.declare({"declared_and_not_made": "nothing at all"})
    assert "declared_and_not_made" in known_names() - made_names()
    assert glossary == {"declared_and_not_made": "nothing at all"}
    with pytest.raises(TypeError):
        glossary["another"] = "changed"
    assert mx.spmd(lambda: mx.zeros(()), mx.Mesh("x:1"), "declared_and_not_made:x")().numpy() == 0


def test_show_names_the_axes_that_split():
    assert (
        show((batch, length, hidden), ((), ("rows",), ("cols", "planes")))
        == "[batch:6, length:4/rows, hidden:10/cols+planes]"
    )
    assert show((batch, length)) == "[batch:6, length:4]"
    assert show(()) == "[]"


@pytest.mark.parametrize("some", ["hidden batch", "hidden, batch", (hidden, "batch"), [hidden, batch]])
def test_select_reads_dims_and_names(some):
    assert select((batch, length, hidden), some) == (hidden, batch)


def test_union_keeps_the_left_order_then_appends():
    assert union((length, batch), (hidden, batch)) == (length, batch, hidden)
    assert union() == ()


def test_without():
    assert without((batch, length, hidden), (length,)) == (batch, hidden)


MISTAKES = {
    "a name with a space": (
        mx.DimError,
        lambda: mx.Dim("batch size", 6),
        """
        'batch size' is not a name for a dim.
          rule: a name is made of letters, digits and _, and does not begin with a digit.
          fix: write for example mx.Dim("batch", 32).
        """,
    ),
    "a name that begins with a digit": (
        mx.DimError,
        lambda: mx.Dim("2d", 6),
        """
        '2d' is not a name for a dim.
          rule: a name is made of letters, digits and _, and does not begin with a digit.
          fix: write for example mx.Dim("batch", 32).
        """,
    ),
    "a name that is no string": (
        mx.DimError,
        lambda: mx.Dim(6, "batch"),
        """
        6 is not a name for a dim.
          rule: a name is made of letters, digits and _, and does not begin with a digit.
          fix: write for example mx.Dim("batch", 32).
        """,
    ),
    "a size of zero": (
        mx.DimError,
        lambda: mx.Dim("batch", 0),
        """
        0 is not a size for dim 'batch'.
          rule: a size is a positive integer.
          fix: write for example mx.Dim("batch", 32).
        """,
    ),
    "a size that is no integer": (
        mx.DimError,
        lambda: mx.Dim("batch", 6.0),
        """
        6.0 is not a size for dim 'batch'.
          rule: a size is a positive integer.
          fix: write for example mx.Dim("batch", 32).
        """,
    ),
    "a size that is a truth value": (
        mx.DimError,
        lambda: mx.Dim("batch", True),
        """
        True is not a size for dim 'batch'.
          rule: a size is a positive integer.
          fix: write for example mx.Dim("batch", 32).
        """,
    ),
    "a part without a size": (
        mx.DimError,
        lambda: mx.dims("batch:6 length"),
        """
        'length' is not a part of a list of dims.
          values: 'batch:6 length'
          rule: each part is name:value.
          fix: write for example mx.dims("batch:128 hidden:1024").
        """,
    ),
    "a part with two sizes": (
        mx.DimError,
        lambda: mx.dims("batch:6:4"),
        """
        'batch:6:4' is not a part of a list of dims.
          values: 'batch:6:4'
          rule: each part is name:value.
          fix: write for example mx.dims("batch:128 hidden:1024").
        """,
    ),
    "a size that is a word": (
        mx.DimError,
        lambda: mx.dims("batch:six"),
        """
        'six' is not a size for dim 'batch'.
          values: 'batch:six'
          rule: a size is a positive integer.
        """,
    ),
    "a name twice": (
        mx.DimError,
        lambda: mx.dims("batch:6 length:4 batch:6"),
        """
        one shape has two dims of the name 'batch'.
          values: [batch:6, length:4, batch:6]
          rule: the dims of a tensor have different names.
          fix: name it once; if another dim is meant, rename that first: x.rename(length="memory_length").
        """,
    ),
    "two names twice": (
        mx.DimError,
        lambda: mx.dims("length:6 batch:6 batch:5 length:4"),
        """
        one shape has two dims of the name 'batch' and of 'length'.
          values: [length:6, batch:6, batch:5, length:4]
          rule: the dims of a tensor have different names.
          fix: name it once; if another dim is meant, rename that first: x.rename(length="memory_length").
        """,
    ),
    "a dim of another size": (
        mx.ShapeError,
        lambda: select((batch, length), mx.Dim("batch", 7)),
        """
        dim 'batch' has size 6 here, not 7.
          values: [batch:6, length:4]
          rule: dims of one name have one size.
          fix: use the dim's name, or x.dim('batch'), where the size may vary.
        """,
    ),
    "a name like one of the dims": (
        mx.ShapeError,
        lambda: select((batch, length), "bach"),
        """
        there is no dim 'bach' here.
          values: [batch:6, length:4]
          fix: did you mean "batch"?
        """,
    ),
    "a name like none of the dims": (
        mx.ShapeError,
        lambda: select((batch, length), "vocab"),
        """
        there is no dim 'vocab' here.
          values: [batch:6, length:4]
          fix: known names: batch, length.
        """,
    ),
    "a name where there are no dims": (
        mx.ShapeError,
        lambda: select((), "vocab"),
        """
        there is no dim 'vocab' here.
          values: []
          fix: there are none yet.
        """,
    ),
    "two sizes of one name": (
        mx.ShapeError,
        lambda: union((batch, length), (mx.Dim("length", 5),)),
        """
        dim 'length' has size 4 in one operand and 5 in another.
          values: [batch:6, length:4] and [length:5]
          rule: operands meet by name, and dims of one name have one size.
          fix: rename the dim of one operand if another dim is meant, or slice it to the same size.
        """,
    ),
}

test_messages = pinned(MISTAKES)
