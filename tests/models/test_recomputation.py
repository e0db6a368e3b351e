"""What the backward pass keeps: a checkpoint only where something is computed again or forgotten; tracing once."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshax as mx
from meshax.checking.jaxprs import scan_counts
from meshax.models.recomputation import KEEP, keeping, traced_once
from meshax.ops.operands import once_outside
from meshax.tensors import settled_array

A, B, C = mx.Dim("a", 3), mx.Dim("b", 4), mx.Dim("c", 5)


@pytest.mark.parametrize(
    ("keep", "layout", "checkpoints"),
    [("everything", "", 0), ("everything", mx.Layout("", params="b:one"), 1), ("products", "", 1), ("nothing", "", 1)],
)
def test_where_there_is_a_checkpoint(keep, layout, checkpoints):
    def run(w):
        layer = keeping(lambda x: mx.sin(x) * x, keep)
        return mx.value_and_grad(lambda w: mx.sum(layer(w * 2)))(w)

    w = mx.param(mx.tensor(np.arange(12.0).reshape(3, 4), [A, B]))
    program = mx.spmd(run, mx.Mesh("one:2"), layout)
    assert str(program.trace(w).jaxpr).count("remat2[") == checkpoints
    total, gradient = program(w)
    x = 2 * np.arange(12.0).reshape(3, 4)
    np.testing.assert_allclose(total.numpy(), np.sum(np.sin(x) * x), rtol=1e-5)
    np.testing.assert_allclose(gradient.numpy(), 2 * (np.cos(x) * x + np.sin(x)), rtol=1e-5, atol=1e-5)


def stored(program, *args):
    """Returns the shapes of what the turns of loops stack, sorted: carries out of it."""
    found = []

    def look(jaxpr):
        for eqn in jaxpr.eqns:
            if eqn.primitive.name == "scan":
                found.extend(v.aval.str_short(short_dtypes=True) for v in eqn.outvars[scan_counts(eqn)[1] :])
            for inner in jax.extend.core.jaxprs_in_params(eqn.params):
                look(inner)

    look(program.trace(*args).jaxpr.jaxpr)
    return sorted(found)


def test_of_a_loop_everything_is_what_took_a_kernel():
    """Products and what was drawn are kept, with the carry and the gradients; what is element by element is not."""

    def layer(x, taken):
        w, key = taken
        hidden = mx.relu(mx.einsum(mx.tanh(x) * 2, w, over="b")) + 1
        return mx.sin((hidden * mx.random.uniform(key, hidden.dims)).rename(c="b")), None

    def run(layer, x, weights):
        def loss(weights):
            keys = jax.random.split(jax.random.key(3), 5)
            return mx.sum(mx.scan(layer, x, (weights, keys), over="layers")[0])

        return mx.value_and_grad(loss)(weights)

    c, layers = mx.dims(c=4, layers=5)
    x = mx.tensor(np.linspace(-1, 1, 12, dtype="float32").reshape(3, 4), [A, B])
    weights = mx.param(mx.tensor(np.linspace(-1, 1, 80, dtype="float32").reshape(5, 4, 4), [layers, B, c]))
    kept = mx.remat(layer, policy=KEEP["everything"])
    programs = [mx.spmd(functools.partial(run, each), mx.Mesh("one:1"), "") for each in (kept, layer)]
    assert stored(programs[0], x, weights) == ["f32[5,3,4]"] * 3 + ["f32[5,4,4]"]
    text = str(programs[0].trace(x, weights).jaxpr)
    assert (text.count("random_bits["), text.count("dot_general[")) == (1, 3)
    for ours, plain in zip(*(program(x, weights) for program in programs), strict=True):
        np.testing.assert_allclose(ours.numpy(), plain.numpy(), rtol=1e-6)


@pytest.mark.parametrize("keep", ["products", "all products", "everything"])
def test_of_a_relu_the_result_is_kept(keep):
    """Its derivative asks for it alone, and the next product needs it: what went in need not be kept."""

    def layer(x, w):
        return mx.einsum(mx.relu(mx.einsum(x, w, out=(A, C))), w, out=(A, B)), None

    def run(x, weights):
        layers = mx.remat(layer, policy=KEEP[keep])
        return mx.grad(lambda weights: mx.sum(mx.scan(layers, x, weights, over="layers")[0]))(weights)

    x = mx.tensor(np.linspace(-1, 1, 12, dtype="float32").reshape(3, 4), [A, B])
    weights = mx.tensor(np.linspace(-1, 1, 100, dtype="float32").reshape(5, 4, 5), [mx.Dim("layers", 5), B, C])
    program = mx.spmd(run, mx.Mesh("one:1"), "")
    assert stored(program, x, weights) == ["f32[5,3,4]", "f32[5,3,5]", "f32[5,4,5]"]
    text = str(program.trace(x, weights).jaxpr)
    assert (text.count(" relu "), text.count("dot_general[")) == (1, 6)


def test_what_nobody_knows_is_kept():
    unknown = jax.extend.core.Primitive("somebody_elses")
    assert KEEP["everything"](unknown)
    assert not KEEP["everything"](jax.lax.sin_p)
    calls = jax.make_jaxpr(lambda x: (jax.jit(jnp.sin)(x), jax.jit(jnp.cumsum)(x)))(np.ones(3)).eqns
    assert [KEEP["everything"](eqn.primitive, **eqn.params) for eqn in calls] == [False, True]


def test_equal_layers_are_traced_once():
    traced, outside = [], []

    def layer(y, w, number):
        traced.append(number)
        y = mx.sin(mx.einsum(y, w, over="b")).rename(c="b") * (number + 1)
        once_outside(outside.append, settled_array(mx.mean(y)))
        return y

    def run(x, weights):
        once = traced_once(layer)

        def loss(weights):
            y = x
            for number, w in enumerate(weights):
                y = once(y, w, number)
            return mx.sum(y * y)

        return mx.value_and_grad(loss)(weights)

    def by_hand(weights):
        y = x.numpy()
        for number, w in enumerate(weights):
            y = jnp.sin(y @ w) * (number + 1)
        return jnp.sum(y * y)

    a, b, c = mx.dims(a=6, b=5, c=5)
    x = mx.tensor(np.linspace(-1, 1, 30, dtype="float32").reshape(6, 5), [a, b])
    arrays = [np.linspace(-1, 1, 25, dtype="float32").reshape(5, 5) + number for number in range(3)]
    program = mx.spmd(run, mx.Mesh("one:2 two:4"), "a:one c:two")
    total, gradients = program(x, [mx.param(mx.tensor(array, [b, c])) for array in arrays])
    assert len(traced) == 1
    assert len({id(value) for value in outside}) == 3  # one of each call
    expected, by_weight = jax.value_and_grad(by_hand)(arrays)
    np.testing.assert_allclose(total.numpy(), expected, rtol=1e-5)
    for gradient, array in zip(gradients, by_weight, strict=True):
        np.testing.assert_allclose(gradient.numpy(), array, rtol=1e-4, atol=1e-5)


def test_what_differs_in_more_than_values_is_traced_again():
    seen = []

    @traced_once
    def layer(x):
        seen.append(x.dtype)
        return x * 2

    def run(x):
        mixed = layer(x), layer(x), layer(x.astype("bfloat16")), layer(x.rename(a="b"))
        return [mx.sum(y.astype("float32")) for y in mixed]

    x = mx.tensor(np.arange(6.0), [mx.Dim("a", 6)])
    sums = mx.spmd(run, mx.Mesh("one:2"), "a:one")(x)
    assert [str(dtype) for dtype in seen] == ["float32", "bfloat16", "float32"]
    assert [float(total.numpy()) for total in sums] == [30.0] * 4
    assert float(mx.sum(layer(x)).numpy()) == 30.0  # and outside of a program


def test_a_derivative_of_a_derivative_of_what_is_traced_once():
    def run(x):
        layer = traced_once(lambda x: mx.sin(x))
        slope = lambda x: mx.sum(mx.grad(lambda x: mx.sum(layer(layer(x))))(x))  # noqa: E731
        return mx.grad(slope)(x)

    values = np.linspace(0, 1, 6, dtype="float32")
    x = mx.tensor(values, [mx.Dim("a", 6)])
    second = jax.vmap(jax.grad(jax.grad(lambda x: jnp.sin(jnp.sin(x)))))(values)
    np.testing.assert_allclose(mx.spmd(run, mx.Mesh("one:2"), "a:one")(x).numpy(), second, rtol=1e-5, atol=1e-6)
