"""What mx.random refuses, and what it says."""

from textwrap import dedent

import jax
import pytest

import meshax as mx
from samples import counting

key, batch = jax.random.key(7), mx.Dim("batch", 6)

MISTAKES = {
    "a key of another generator": (
        mx.DtypeError,
        lambda: mx.random.normal(jax.random.key(0, impl="rbg"), batch),
        """
        mx.random takes one threefry key, not a rbg key of shape ().
          rule: only partitionable threefry keys give each processor the numbers of its own slice.
          fix: make it with jax.random.key(seed), and split it with jax.random.split.
        """,
    ),
    "several keys": (
        mx.DtypeError,
        lambda: mx.random.normal(jax.random.split(key, 3), batch),
        """
        mx.random takes one threefry key, not a threefry2x32 key of shape (3,).
          rule: only partitionable threefry keys give each processor the numbers of its own slice.
          fix: make it with jax.random.key(seed), and split it with jax.random.split.
        """,
    ),
    "a seed": (
        mx.DtypeError,
        lambda: mx.random.uniform(7, batch),
        """
        mx.random takes one threefry key, not int.
          rule: only partitionable threefry keys give each processor the numbers of its own slice.
          fix: make it with jax.random.key(seed), and split it with jax.random.split.
        """,
    ),
    "a rate of one": (
        mx.ShapeError,
        lambda: mx.random.dropout(key, counting(batch), 1.0),
        """
        a dropout rate is at least 0 and less than 1, not 1.0.
          fix: for example 0.1.
        """,
    ),
    "a negative rate": (
        mx.ShapeError,
        lambda: mx.random.dropout(key, counting(batch), -0.1),
        """
        a dropout rate is at least 0 and less than 1, not -0.1.
          fix: for example 0.1.
        """,
    ),
    "a name without a size": (
        mx.ShapeError,
        lambda: mx.random.bernoulli(key, "batch"),
        """
        mx.random.bernoulli does not know the size of 'batch'.
          rule: a new tensor is made of dims, which have sizes.
          fix: pass dims, for example mx.dims("batch:32 hidden:64").
        """,
    ),
}


@pytest.mark.parametrize(("error", "wrong", "text"), MISTAKES.values(), ids=MISTAKES)
def test_messages(error, wrong, text):
    with pytest.raises(error) as raised:
        wrong()
    assert str(raised.value) == dedent(text).strip()


def test_message_where_random_numbers_would_depend_on_the_layout():
    with jax.threefry_partitionable(False), pytest.raises(mx.DtypeError) as raised:
        mx.random.normal(key, batch)

    assert str(raised.value) == (
        "random numbers would depend on the layout.\n"
        "  rule: only partitionable threefry keys give each processor the numbers of its own slice.\n"
        '  fix: jax.config.update("jax_threefry_partitionable", True).'
    )
