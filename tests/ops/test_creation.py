"""Tensors made from nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshax as mx
from messages import pinned

batch, length, hidden = mx.dims(batch=6, length=4, hidden=10)


def test_filled_tensors():
    np.testing.assert_array_equal(mx.zeros((batch, length)).numpy(), np.zeros((6, 4), np.float32))
    np.testing.assert_array_equal(mx.ones(batch, jnp.int32).numpy(), np.ones(6, np.int32))
    np.testing.assert_array_equal(mx.full((length,), 2.5).numpy(), np.full(4, 2.5))
    np.testing.assert_array_equal(mx.arange(hidden).numpy(), np.arange(10))
    assert mx.zeros(()).dims == ()


@pytest.mark.parametrize("layout", ["", "hidden:cols", "hidden:rows+cols"])
def test_each_processor_makes_its_own_slice(layout):
    made = mx.spmd(lambda: (mx.arange(hidden), mx.ones((batch, hidden))), mx.Mesh("rows:2 cols:4"), layout)()

    np.testing.assert_array_equal(made[0].numpy(), np.arange(10))
    np.testing.assert_array_equal(made[1].numpy(), np.ones((6, 10)))


@pytest.mark.parametrize("dims", [(batch, length), ()], ids=["two", "none"])
def test_arange_counts_along_one_dim(dims):
    with pytest.raises(mx.ShapeError, match=f"mx.arange takes one dim, not {len(dims)}."):
        mx.arange(dims)


@pytest.mark.parametrize("make", [mx.zeros, mx.ones, mx.arange, lambda dims: mx.full(dims, 2.0)])
def test_a_size_is_not_a_dim(make):
    with pytest.raises(mx.DimError, match="not a dim, nor the name of one: 3."):
        make(3)


@pytest.mark.parametrize("layout", ["", "long:data", "long:data+model"])
def test_more_elements_than_32_bits_count(layout):
    long = mx.Dim("long", 2**33 + 7)
    program = mx.spmd(lambda: mx.zeros((long, length)), mx.Mesh("data:64 model:64", abstract=True), layout)

    assert program.trace().results.dims == (long, length)


MISTAKES = {
    "places that do not fit": (
        mx.ShapeError,
        lambda: mx.arange(mx.Dim("long", 2**31 + 1)),
        """
        mx.arange counts places along dim long:2147483649, which do not fit into int32.
          rule: places along a dim are int32: at most 2147483648 of them.
          fix: use two dims in its place, for example of 65536 and the rest.
        """,
    ),
    "a name without a size": (
        mx.ShapeError,
        lambda: mx.arange("hidden"),
        """
        mx.arange does not know the size of 'hidden'.
          rule: a new tensor is made of dims, which have sizes.
          fix: pass dims, for example mx.dims("batch:32 hidden:64").
        """,
    ),
    "names without sizes": (
        mx.ShapeError,
        lambda: mx.zeros("batch hidden"),
        """
        mx.zeros does not know the size of 'batch', 'hidden'.
          rule: a new tensor is made of dims, which have sizes.
          fix: pass dims, for example mx.dims("batch:32 hidden:64").
        """,
    ),
    "a name beside a dim": (
        mx.ShapeError,
        lambda: mx.ones((batch, "hidden")),
        """
        mx.ones does not know the size of 'hidden'.
          rule: a new tensor is made of dims, which have sizes.
          fix: pass dims, for example mx.dims("batch:32 hidden:64").
        """,
    ),
    "a dim twice": (
        mx.DimError,
        lambda: mx.full((batch, batch), 1.0),
        """
        one shape has two dims of the name 'batch'.
          values: [batch:6, batch:6]
          rule: the dims of a tensor have different names.
          fix: name it once; if another dim is meant, rename that first: x.rename(length="memory_length").
        """,
    ),
    "names of random numbers": (
        mx.ShapeError,
        lambda: mx.random.normal(jax.random.key(0), "batch"),
        """
        mx.random.normal does not know the size of 'batch'.
          rule: a new tensor is made of dims, which have sizes.
          fix: pass dims, for example mx.dims("batch:32 hidden:64").
        """,
    ),
}

test_messages = pinned(MISTAKES)


@pytest.mark.parametrize(("value", "what"), [(np.arange(4.0), "an array"), (mx.ones(()), "a tensor")])
def test_full_takes_a_number(value, what):
    with pytest.raises(mx.ShapeError, match=f"^mx.full fills with a number, not {what}."):
        mx.full((length,), value)
