"""Gradients, auxiliary results and microbatches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshax as mx
from example_tensors import counting
from messages import pinned

batch, length = mx.dims(batch=6, length=4)

x, w = counting(batch, length), counting(length) + 1


def loss(w, x):
    return mx.mean(mx.square(mx.einsum(x, w, over=length)))


def test_value_and_grad_agree_with_jax():
    wanted = jax.value_and_grad(lambda w: jnp.mean((x.numpy() @ w) ** 2))(w.numpy())

    value, gradient = mx.value_and_grad(loss)(w, x)

    np.testing.assert_allclose(float(value), wanted[0], rtol=1e-6)
    np.testing.assert_allclose(gradient.numpy(), wanted[1], rtol=1e-6)
    np.testing.assert_array_equal(mx.grad(loss)(w, x).numpy(), gradient.numpy())


def test_argnums_choose_the_arguments():
    both = mx.grad(loss, argnums=(1, 0))(w, x)

    assert [g.dims for g in both] == [x.dims, w.dims]
    np.testing.assert_allclose(both[1].numpy(), mx.grad(loss)(w, x).numpy(), rtol=1e-6)


@pytest.mark.parametrize(("argnums", "same"), [(-1, 1), (-2, 0), ((-1, 0), (1, 0)), ((0, -1), (0, 1))])
def test_negative_argnums_count_from_the_end(argnums, same):
    got, wanted = (jax.tree.leaves(mx.grad(loss, argnums=numbers)(w, x)) for numbers in (argnums, same))

    assert all(np.any(gradient) for gradient in got)
    jax.tree.map(np.testing.assert_array_equal, got, wanted)


def test_a_gradient_has_the_role_of_its_tensor():
    assert mx.grad(loss)(mx.param(w), x).role == "param"


def test_has_aux_returns_what_is_beside_the_loss():
    def with_outputs(w, x):
        return loss(w, x), {"outputs": mx.einsum(x, w, over=length)}

    (value, aux), gradient = mx.value_and_grad(with_outputs, has_aux=True)(w, x)
    gradient_only, aux_only = mx.grad(with_outputs, has_aux=True)(w, x)

    assert aux["outputs"].dims == aux_only["outputs"].dims == (batch,)
    np.testing.assert_allclose(float(value), float(loss(w, x)))
    np.testing.assert_array_equal(gradient.numpy(), gradient_only.numpy())


@pytest.mark.parametrize("parts", [1, 2, 3, 6])
def test_microbatches_average(parts):
    value, gradient = mx.value_and_grad(loss)(w, x)

    cut_value, cut_gradient = mx.value_and_grad(loss, microbatches=parts, over=batch)(w, x)

    np.testing.assert_allclose(float(cut_value), float(value), rtol=1e-6)
    np.testing.assert_allclose(cut_gradient.numpy(), gradient.numpy(), rtol=1e-6)


def test_microbatches_stack_what_is_beside_the_loss():
    def with_sum(w, x):
        return loss(w, x), mx.sum(x, length)

    (_, sums), _ = mx.value_and_grad(with_sum, has_aux=True, microbatches=3, over="batch")(w, x)

    assert sums.dims == mx.dims("microbatches:3 batch:2")
    np.testing.assert_array_equal(sums.numpy(), x.numpy().sum(1).reshape(2, 3).T)  # part i holds i, i + 3


def test_each_microbatch_has_its_own_key():
    def noise(w, x, key):
        return mx.sum(w), mx.random.normal(key, length)

    (_, drawn), _ = mx.value_and_grad(noise, has_aux=True, microbatches=2, over=batch)(w, x, jax.random.key(0))

    assert not np.any(drawn.numpy()[0] == drawn.numpy()[1])


@pytest.mark.parametrize(("fn", "options"), [(lambda w: None, {}), (lambda w: (None, w), {"has_aux": True})])
def test_a_function_that_returns_no_loss_is_refused(fn, options):
    with pytest.raises(mx.ShapeError, match="a function to differentiate returns one number, not nothing."):
        mx.grad(fn, **options)(w)


MISTAKES = {
    "a loss with dims": (
        mx.ShapeError,
        lambda: mx.grad(lambda w: w * w)(w),
        """
        a function to differentiate returns one number.
          values: [length:4] float32
          fix: reduce it, for example with mx.mean.
        """,
    ),
    "a loss that is an integer": (
        mx.DtypeError,
        lambda: mx.grad(lambda w: mx.argmax(w, length))(w),
        """
        only floating numbers have gradients.
          values: int32
          fix: return a floating number.
        """,
    ),
    "a loss beside something else": (
        mx.ShapeError,
        lambda: mx.grad(lambda w: (mx.sum(w), w))(w),
        """
        a function to differentiate returns one number, not a tuple.
          fix: pass has_aux=True, and return (loss, everything else).
        """,
    ),
    "a loss in a dict": (
        mx.ShapeError,
        lambda: mx.value_and_grad(lambda w: {"loss": mx.sum(w), "weights": w})(w),
        """
        a function to differentiate returns one number, not a dict.
          fix: pass has_aux=True, and return (loss, everything else).
        """,
    ),
    "an argument that there is not": (
        mx.ArgumentError,
        lambda: mx.grad(loss, argnums=2)(w, x),
        """
        there is no argument 2 to differentiate by.
          values: argnums (2,) of 2 arguments
          fix: arguments are counted from 0.
        """,
    ),
    "an argument before the first": (
        mx.ArgumentError,
        lambda: mx.grad(loss, argnums=(0, -3))(w, x),
        """
        there is no argument -3 to differentiate by.
          values: argnums (0, -3) of 2 arguments
          fix: arguments are counted from 0.
        """,
    ),
    "an argument twice": (
        mx.ArgumentError,
        lambda: mx.grad(loss, argnums=(0, 0))(w, x),
        """
        argnums (0, 0) names an argument twice.
          fix: name each argument once.
        """,
    ),
    "an argument twice, once from the end": (
        mx.ArgumentError,
        lambda: mx.value_and_grad(loss, argnums=(0, -2))(w, x),
        """
        argnums (0, -2) names an argument twice.
          fix: name each argument once.
        """,
    ),
    "nothing beside the loss": (
        mx.ShapeError,
        lambda: mx.grad(loss, has_aux=True)(w, x),
        """
        with has_aux, a function returns its value and something else.
          values: Tensor
          fix: return (loss, aux), or leave out has_aux.
        """,
    ),
    "two things beside the loss": (
        mx.ShapeError,
        lambda: mx.value_and_grad(lambda w: (mx.sum(w), w, w), has_aux=True)(w),
        """
        with has_aux, a function returns its value and something else.
          values: tuple
          fix: return (loss, aux), or leave out has_aux.
        """,
    ),
    "a gradient by an integer tensor": (
        mx.DtypeError,
        lambda: mx.grad(lambda t: mx.sum(t["w"]))({"w": w, "ids": counting(batch, dtype=np.int32), "on": w > 2}),
        """
        only floating tensors have gradients.
          values: [batch:6] int32, [length:4] bool
          fix: choose other argnums, or pass these tensors in another argument.
        """,
    ),
    "microbatches of no dim": (
        mx.ShapeError,
        lambda: mx.value_and_grad(loss, microbatches=2),
        """
        microbatches= and over= go together.
          fix: write for example microbatches=4, over="batch".
        """,
    ),
    "a dim without microbatches": (
        mx.ShapeError,
        lambda: mx.grad(loss, over=batch),
        """
        microbatches= and over= go together.
          fix: write for example microbatches=4, over="batch".
        """,
    ),
    "no microbatches": (
        mx.ArgumentError,
        lambda: mx.grad(loss, microbatches=0, over=batch),
        """
        there cannot be 0 microbatches.
          fix: choose a number that divides the batch.
        """,
    ),
    "fewer microbatches than none": (
        mx.ArgumentError,
        lambda: mx.value_and_grad(loss, microbatches=-2, over=batch),
        """
        there cannot be -2 microbatches.
          fix: choose a number that divides the batch.
        """,
    ),
    "microbatches in a string": (
        mx.ArgumentError,
        lambda: mx.grad(loss, microbatches="2", over=batch),
        """
        there cannot be '2' microbatches.
          fix: choose a number that divides the batch.
        """,
    ),
    "a truth value of microbatches": (
        mx.ArgumentError,
        lambda: mx.value_and_grad(loss, microbatches=True, over=batch),
        """
        there cannot be True microbatches.
          fix: choose a number that divides the batch.
        """,
    ),
    "by an integer": (
        mx.DtypeError,
        lambda: mx.grad(lambda n, x: mx.sum(x) * n)(3, x),
        """
        only floating tensors have gradients.
          values: int int32
          fix: choose other argnums, or pass these tensors in another argument.
        """,
    ),
    "an argument by its name": (
        mx.ArgumentError,
        lambda: mx.grad(loss, argnums="w"),
        """
        mx.grad takes integers, not argnums='w'.
          rule: such a number is part of the program: it is known before the program runs.
          fix: pass a Python int.
        """,
    ),
    "an argument by its name among others": (
        mx.ArgumentError,
        lambda: mx.value_and_grad(loss, argnums=(0, "x")),
        """
        mx.grad takes integers, not argnums='x'.
          rule: such a number is part of the program: it is known before the program runs.
          fix: pass a Python int.
        """,
    ),
    "microbatches that do not divide": (
        mx.ShapeError,
        lambda: mx.grad(loss, microbatches=4, over=batch)(w, x),
        """
        dim batch:6 cannot be cut into 4 microbatches.
          rule: microbatches have one size.
          fix: choose a number that divides it.
        """,
    ),
    "microbatches over a dim that is not there": (
        mx.ShapeError,
        lambda: mx.grad(loss, microbatches=2, over="hidden")(w, x),
        """
        no argument has the dim 'hidden' to be cut into microbatches.
          fix: name the dim of the batch.
        """,
    ),
}

test_messages = pinned(MISTAKES)
