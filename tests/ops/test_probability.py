"""The softmax family and the cross-entropy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshax as mx
from example_tensors import counting
from extent import some
from messages import pinned

batch, length = mx.dims(batch=6, length=4)

logits, labels = counting(batch, length) / 7, mx.tensor(np.int32([0, 3, 1, 2, 2, 0]), batch)


def test_softmax_and_its_logarithm():
    wanted = jax.nn.softmax(logits.numpy(), axis=0)

    np.testing.assert_allclose(mx.softmax(logits, over=batch).numpy(), wanted, rtol=1e-6)
    np.testing.assert_allclose(mx.log_softmax(logits, over=batch).numpy(), np.log(wanted), rtol=1e-5)


def test_logsumexp_of_infinities():
    x = mx.tensor([[-np.inf, -np.inf], [np.inf, 0.0], [0.0, 0.0]], "row col")

    np.testing.assert_allclose(mx.logsumexp(x, "col").numpy(), [-np.inf, np.inf, np.log(2)], rtol=1e-6)


def test_cross_entropy():
    wanted = -np.log(jax.nn.softmax(logits.numpy(), axis=1))[np.arange(6), labels.numpy()]

    np.testing.assert_allclose(mx.softmax_cross_entropy(logits, labels, over=length).numpy(), wanted, rtol=1e-5)


def test_a_label_out_of_range_counts_as_none():
    outside = mx.tensor(np.int32([-1, 4, 0, 9, 1, 2]), batch)

    losses = mx.softmax_cross_entropy(logits, outside, over=length).numpy()

    np.testing.assert_array_equal(losses == 0, [True, True, False, True, False, False])


mesh = mx.Mesh("rows:2 cols:4")
LAYOUTS = ["", "length:rows", "batch:cols", "batch:rows+cols", "batch:cols length:rows"]
FLOATS = [name for name in dir(jnp) if name.startswith("float8") and "e8m0" not in name]


@pytest.mark.parametrize("layout", some(LAYOUTS, "batch:cols length:rows"))
@pytest.mark.parametrize("dtype", some(FLOATS, "float8_e4m3fn", "float8_e5m2fnuz"))
def test_floats_of_a_byte(dtype, layout):
    given = mx.tensor(jnp.asarray(-1 - np.arange(24).reshape(6, 4) % 7 / 4, dtype), (batch, length))
    fn = lambda x: (mx.softmax(x, batch), mx.log_softmax(x, batch), mx.logsumexp(x, batch))  # noqa: E731

    for found, wanted in zip(mx.spmd(fn, mesh, layout)(given), fn(given)):
        assert found.dtype == given.dtype
        np.testing.assert_array_equal(found.numpy(), wanted.numpy())
        assert not np.isnan(wanted.numpy().astype(np.float32)).any()


@pytest.mark.parametrize("layout", some([*LAYOUTS, "length:cols"], "batch:cols length:rows"))
def test_no_label_is_taken_for_another(layout):
    """2**32 + 1 is not 1, as a cast would have it."""
    with jax.enable_x64(True):
        given = mx.tensor(np.int64([0, 2**32 + 1, -(2**32), 2, 2**31, -1]), batch)
        unsigned = mx.tensor(np.uint32([0, 2**32 - 1, 7, 2, 2**31, 4]), batch)
        loss = lambda x, *ys: [mx.softmax_cross_entropy(x, y, length) for y in ys]  # noqa: E731
        found = mx.spmd(loss, mesh, layout)(logits, given, unsigned)
        single = loss(logits, mx.tensor(np.int32([0, 9, 9, 2, 9, 9]), batch))[0]

    for x in found:
        np.testing.assert_allclose(x.numpy(), single.numpy(), rtol=1e-6)


MISTAKES = {
    "labels that are floats": (
        mx.DtypeError,
        lambda: mx.softmax_cross_entropy(logits, labels.astype(jnp.float32), over=length),
        """
        labels are integers, not float32.
          values: [batch:6] float32
          fix: pass the places of the right classes, for example mx.argmax(one_hot, classes).
        """,
    ),
    "labels with the dim of the classes": (
        mx.ShapeError,
        lambda: mx.softmax_cross_entropy(logits, counting(batch, length, dtype=np.int32), over=length),
        """
        labels have the dim 'length' of the classes.
          values: [batch:6, length:4] and [batch:6, length:4]
          fix: pass integer labels without that dim.
        """,
    ),
    "labels that are an array": (
        mx.ShapeError,
        lambda: mx.softmax_cross_entropy(logits, labels.numpy(), over=length),
        """
        mx.softmax_cross_entropy takes tensors, not an array.
          values: int32[6]
          rule: an array takes part in an operation through the names of its dims.
          fix: name them: mx.tensor(array, "batch hidden").
        """,
    ),
    "a dim that is not there": (
        mx.ShapeError,
        lambda: mx.softmax_cross_entropy(logits, labels, over="lengths"),
        """
        there is no dim 'lengths' here.
          values: [batch:6, length:4]
          fix: did you mean "length"?
        """,
    ),
}

test_messages = pinned(MISTAKES)


@pytest.mark.parametrize("layout", some(["", "b:x", "a:x", "b:x+y"], "b:x+y"))
def test_large_logits_do_not_lose_the_logarithm(layout):
    """Beside a maximum of 1e8, the logarithm of a few exponentials is less than a rounding."""
    logits = mx.tensor(np.full((3, 6), 1e8, np.float32), mx.dims("a:3 b:6"))
    labels = mx.tensor(np.array([0, 5, 2], np.int32), "a")

    def both(x, y):
        return mx.log_softmax(x, "b"), mx.softmax_cross_entropy(x, y, over="b", label_smoothing=0.1)

    logs, losses = mx.spmd(both, mx.Mesh("x:2 y:4"), layout)(logits, labels)

    np.testing.assert_allclose(logs.numpy(), -np.log(6) * np.ones((3, 6)), rtol=1e-6)
    np.testing.assert_allclose(losses.numpy(), np.log(6) * np.ones(3), rtol=1e-6)
