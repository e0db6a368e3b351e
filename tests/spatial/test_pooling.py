"""Pooling: what padding counts, which dtypes, and what it sends."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshax as mx
from example_tensors import counting, numbers
from extent import some
from messages import pinned

batch, height, width = mx.dims(batch=2, height=12, width=8)
mesh = mx.Mesh("rows:2 cols:4")
x = numbers(batch, height, width)


@pytest.mark.parametrize("op", [mx.max_pool, mx.mean_pool])
def test_pools_that_do_not_overlap_send_nothing(op):
    program = mx.spmd(lambda x: op(x, {"height": 2, "width": 2}), mesh, "height:rows width:cols")

    assert program.explain(x).collectives == []
    assert program(x).dims == (batch, mx.Dim("height", 6), mx.Dim("width", 4))


def test_pools_that_overlap_send_their_border():
    program = mx.spmd(lambda x: mx.max_pool(x, {"height": 3}, 2, {"height": (1, 1)}), mesh, "height:cols")

    # Blocks of 3 become 2, 2, 2 and none: what the last one has goes to the third, all of it.
    assert [(c.kind, c.shape) for c in program.explain(x).collectives] == [("permute", (2, 3, 8))]
    wanted = mx.max_pool(x, {"height": 3}, 2, {"height": (1, 1)})
    np.testing.assert_array_equal(program(x).numpy(), wanted.numpy())


def test_padding_never_enters_a_mean():
    ones = mx.ones((height,))

    for layout in ("", "height:cols", "height:rows+cols"):
        made = mx.spmd(lambda x: mx.mean_pool(x, {"height": 5}, 2, {"height": (4, 7)}), mesh, layout)(ones)
        np.testing.assert_array_equal(made.numpy(), [1, 1, 1, 1, 1, 1, 1, 1, 0, 0])  # the last two hold padding only


@pytest.mark.parametrize("dtype", some(["bfloat16", "float16", "int32", "float8_e4m3fn"], "float8_e4m3fn"))
def test_other_dtypes(dtype):
    given = counting(height).astype(dtype)

    largest, mean = mx.spmd(
        lambda x: (mx.max_pool(x, {"height": 2}), mx.mean_pool(x, {"height": 2})), mesh, "height:cols"
    )(given)

    rounded = given.numpy().astype(np.float32).reshape(6, 2)
    assert (largest.dtype, mean.dtype) == (dtype, "float32" if dtype == "int32" else dtype)
    np.testing.assert_array_equal(largest.numpy().astype(np.float32), rounded.max(1))
    wanted = jnp.asarray(rounded.mean(1), mean.dtype).astype(jnp.float32)
    np.testing.assert_array_equal(mean.numpy().astype(np.float32), wanted)


@pytest.mark.parametrize("op", some([mx.max_pool, mx.mean_pool], mx.max_pool))
def test_gradients_of_gradients(op):
    def loss(x):
        return mx.sum(op(x * x * x, {"height": 3, "width": 3}, 2, "same"))

    def second(x):
        return mx.grad(lambda x: mx.sum(mx.square(mx.grad(loss)(x))))(x)

    got = mx.spmd(second, mesh, "height:rows width:cols")(x)
    np.testing.assert_allclose(got.numpy(), second(x).numpy(), 1e-5, 1e-5)
    alone = jax.grad(lambda a: jnp.sum(jax.grad(lambda a: _whole(op, a))(a) ** 2))(x.numpy())
    np.testing.assert_allclose(got.numpy(), alone, 1e-5, 1e-5)


def _whole(op, a):
    how = ((1, 3, 3), (1, 2, 2), "SAME")
    if op is mx.max_pool:
        return jnp.sum(jax.lax.reduce_window(a**3, -np.inf, jax.lax.max, *how))
    count = jax.lax.reduce_window(np.ones(a.shape, np.float32), 0.0, jax.lax.add, *how)
    return jnp.sum(jax.lax.reduce_window(a**3, 0.0, jax.lax.add, *how) / count)


MISTAKES = {
    "windows without names": (
        mx.ArgumentError,
        lambda: mx.max_pool(x, 2),
        """
        the windows of mx.max_pool slide along one to three dims.
          values: 2 for [batch:2, height:12, width:8]
          fix: name them in a dict: mx.max_pool(x, {"height": 2}).
        """,
    ),
    "a window that does not fit": (
        mx.ArgumentError,
        lambda: mx.mean_pool(x, {"height": 13}),
        """
        no window of mx.mean_pool fits into dim height:12.
          values: 13 places from the first tap to the last, padding 0 and 0
          rule: at least one window fits into the dim and its padding.
          fix: choose a smaller window or dilation, larger padding, or padding="same".
        """,
    ),
    "a window of half an element": (
        mx.ArgumentError,
        lambda: mx.mean_pool(x, {"height": 0.5}),
        """
        mx.mean_pool takes integers, not window=0.5.
          rule: such a number is part of the program: it is known before the program runs.
          fix: pass a Python int.
        """,
    ),
}
test_messages = pinned(MISTAKES)
