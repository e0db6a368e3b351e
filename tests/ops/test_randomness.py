"""Random numbers that do not depend on the layout."""

from textwrap import dedent

import jax
import numpy as np
import pytest

import meshax as mx
from samples import counting

batch, hidden = mx.dims(batch=6, hidden=10)

key = jax.random.key(7)

SAMPLERS = {
    "normal": (lambda: mx.random.normal(key, (batch, hidden)), lambda: jax.random.normal(key, (6, 10))),
    "uniform": (
        lambda: mx.random.uniform(key, (batch, hidden), -1.0, 2.0),
        lambda: jax.random.uniform(key, (6, 10), minval=-1.0, maxval=2.0),
    ),
    "truncated_normal": (
        lambda: mx.random.truncated_normal(key, (batch, hidden), -1.0, 2.0),
        lambda: jax.random.truncated_normal(key, -1.0, 2.0, (6, 10)),
    ),
    "gumbel": (lambda: mx.random.gumbel(key, (batch, hidden)), lambda: jax.random.gumbel(key, (6, 10))),
    "exponential": (lambda: mx.random.exponential(key, (batch, hidden)), lambda: jax.random.exponential(key, (6, 10))),
    "bernoulli": (
        lambda: mx.random.bernoulli(key, (batch, hidden), 0.3),
        lambda: jax.random.bernoulli(key, 0.3, (6, 10)),
    ),
    "randint": (
        lambda: mx.random.randint(key, (batch, hidden), -5, 9),
        lambda: jax.random.randint(key, (6, 10), -5, 9),
    ),
}


@pytest.mark.parametrize(("ours", "jaxs"), SAMPLERS.values(), ids=SAMPLERS)
def test_numbers_are_those_of_jax_random_bit_for_bit(ours, jaxs):
    split = mx.spmd(ours, mx.Mesh("rows:2 cols:4"), "batch:rows hidden:cols")()

    np.testing.assert_array_equal(ours().numpy(), jaxs())
    np.testing.assert_array_equal(split.numpy(), jaxs())


def test_a_raw_key_is_read_as_threefry():
    drawn = mx.random.normal(jax.random.PRNGKey(7), batch)

    np.testing.assert_array_equal(drawn.numpy(), mx.random.normal(key, batch).numpy())


def test_dropout_zeroes_a_share_and_keeps_the_mean():
    x = mx.ones(mx.dims("many:10000"))

    dropped = mx.random.dropout(key, x, 0.25).numpy()

    assert set(np.unique(dropped)) == {np.float32(0), np.float32(1) / np.float32(0.75)}
    np.testing.assert_allclose(dropped.mean(), 1, atol=0.02)
    assert mx.random.dropout(key, x, 0.0) is x


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


def test_message_where_random_numbers_would_depend_on_the_layout():
    with jax.threefry_partitionable(False), pytest.raises(mx.DtypeError) as raised:
        mx.random.normal(key, batch)

    assert str(raised.value) == (
        "random numbers would depend on the layout.\n"
        "  rule: only partitionable threefry keys give each processor the numbers of its own slice.\n"
        '  fix: jax.config.update("jax_threefry_partitionable", True).'
    )


@pytest.mark.parametrize(("error", "wrong", "text"), MISTAKES.values(), ids=MISTAKES)
def test_messages(error, wrong, text):
    with pytest.raises(error) as raised:
        wrong()
    assert str(raised.value) == dedent(text).strip()
