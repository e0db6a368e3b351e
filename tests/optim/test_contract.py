"""Every optimizer, under every kind of layout, gives what it gives unsplit."""

import functools
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshax as mx
from extent import some
from meshax import optim
from meshax.tensors import is_tensor
from messages import pinned

MESH = "data:2 model:4"
# 5 over 2, 6 and 10 over 4 leave padding
batch, layers, d_model, d_ff = mx.dims(batch=8, layers=5, d_model=6, d_ff=10)
LAYOUTS = {
    "data": mx.Layout("batch:data"),
    "model": mx.Layout("d_ff:model"),
    "both": mx.Layout("batch:data d_ff:model"),
    "other": mx.Layout("batch:data d_model:model"),
    "layers": mx.Layout("layers:data d_ff:model"),
    "zero-1": mx.Layout("batch:data", optimizer="d_model:data"),
    "zero-1, both dims": mx.Layout("batch:data", optimizer="d_model:model d_ff:data"),
    "zero-3": mx.Layout("batch:data", params="d_model:data", optimizer="d_model:data"),
    "zero-3 and model": mx.Layout("batch:data d_ff:model", params="d_model:data", optimizer="d_model:data"),
}


class Sign(optim.Optimizer):
    """One of a user's own, which reduces: steps by the sign of the distance from the mean gradient."""

    def first_state(self, params):
        return jnp.zeros((), jnp.int32)

    def update(self, grads, state, params):
        moved = lambda p, g: p - 0.01 * mx.sign(g - mx.mean(g))  # noqa: E731
        return jax.tree.map(moved, params, grads, is_leaf=is_tensor), state + 1


cosine = optim.schedules.cosine(0.05, steps=6, warmup=2)
OPTIMIZERS = {
    "adafactor": optim.by_name("adafactor", cosine, min_dim_size=4),
    "adafactor, all": optim.clipped(
        optim.by_name("adafactor", 0.1, min_dim_size=4, momentum=0.9, weight_decay=0.01), 0.05
    ),
    "adafactor, plain": optim.by_name("adafactor", 0.01, clip=None, multiply_by_parameter_scale=False),
    "adamw": optim.by_name("adamw", cosine, weight_decay=0.1),
    "adamw, clipped": optim.clipped(optim.by_name("adamw", 0.01), 0.05),
    "momentum": optim.by_name("momentum", cosine),
    "sgd": optim.by_name("sgd", cosine),
    "one of your own": Sign(),
}


def draw(dims, seed=0):
    values = np.random.RandomState(seed).normal(size=[d.size for d in dims])
    return mx.param(mx.tensor(values.astype(np.float32), dims))


def parameters():
    return {
        "layers": {"in": draw((layers, d_model, d_ff), 1), "bias": draw((layers, d_ff), 2), "gain": draw((layers,), 3)},
        "out": draw((d_ff, d_model), 4),
        "scale": draw((), 5),
    }


def examples():
    return mx.tensor(np.sin(np.arange(48.0)).reshape(8, 6).astype(np.float32), (batch, d_model))


def loss(w, x):
    h = mx.tanh(mx.einsum(x, w["layers"]["in"], over=d_model) + w["layers"]["bias"])
    y = mx.einsum(mx.einsum(h, w["layers"]["gain"], over=layers), w["out"], over=d_ff)
    return mx.mean(mx.square(y * w["scale"] - x))


def step(optimizer, w, state, x):
    value, grads = mx.value_and_grad(loss)(w, x)
    return *optimizer.apply(grads, state, w), value


def step_all(optimizers, trained, x):
    """One step of each optimizer, on parameters of its own."""
    return {name: step(optimizers[name], w, state, x)[:2] for name, (w, state) in trained.items()}


def train(optimizers, layout=None, steps=5):
    """Returns the parameters and the state of each optimizer after some steps, by plain functions or by a program."""
    first = lambda w: {name: (w, optimizer.init(w)) for name, optimizer in optimizers.items()}  # noqa: E731
    update = functools.partial(step_all, optimizers)
    if layout is None:
        first, update = jax.jit(first), jax.jit(update)
    else:
        first, update = mx.spmd(first, mx.Mesh(MESH), layout), mx.spmd(update, mx.Mesh(MESH), layout)
    trained = first(parameters())
    for _ in range(steps):
        trained = update(trained, examples())
    return trained


@pytest.fixture(scope="module")
def unsplit():
    return train(OPTIMIZERS)


@pytest.mark.parametrize("label", some(LAYOUTS, "zero-3 and model"))
def test_every_layout_gives_the_unsplit_result(label, unsplit):
    split = train(OPTIMIZERS, LAYOUTS[label])
    for name in OPTIMIZERS:
        for got, wanted in zip(leaves(split[name]), leaves(unsplit[name]), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-6, err_msg=name)


def leaves(tree):
    """The numbers of a pytree: whole tensors without padding."""
    found = jax.tree.leaves(tree, is_leaf=is_tensor)
    return [x.numpy() if is_tensor(x) else np.asarray(x) for x in found]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_keeps_the_types_of_parameters_and_state(name):
    optimizer, w = OPTIMIZERS[name], parameters()
    before = w, optimizer.init(w)
    after = jax.eval_shape(lambda w, state: optimizer.apply(w, state, w), *before)
    assert jax.tree.structure(after) == jax.tree.structure(before)  # dims and roles are part of it
    assert [(x.shape, x.dtype) for x in jax.tree.leaves(after)] == [(x.shape, x.dtype) for x in jax.tree.leaves(before)]
    assert {x.role for x in jax.tree.leaves(before[1], is_leaf=is_tensor) if is_tensor(x)} <= {"optimizer"}


@pytest.mark.parametrize("name", ["adafactor", "adamw", "momentum", "sgd"])
def test_the_number_of_updates_is_an_int32_of_the_state(name, unsplit):
    counters = [x for x in jax.tree.leaves(unsplit[name][1]) if x.dtype == jnp.int32]
    assert counters
    assert {(x.shape, int(x)) for x in counters} == {((), 5)}


def test_zero_1_scatters_gradients_and_gathers_parameters_once():
    program = mx.spmd(functools.partial(step, OPTIMIZERS["sgd"]), mx.Mesh(MESH), LAYOUTS["zero-1"])
    w = parameters()
    found = Counter()
    for c in program.explain(w, OPTIMIZERS["sgd"].init(w), examples()).collectives:
        found[c.kind, c.axes, c.elements] += c.count
    assert found == {
        ("all-reduce", ("data",), 1): 2,  # the loss, the gradient of the scale
        ("all-reduce", ("data",), 5): 1,  # gradients of what has no d_model: gain and bias
        ("all-reduce", ("data",), 50): 1,
        ("reduce-scatter", ("data",), 60): 1,
        ("reduce-scatter", ("data",), 300): 1,
        ("all-gather", ("data",), 30): 1,
        ("all-gather", ("data",), 150): 1,
    }


W = {"in": draw((d_model, d_ff)), "out": draw((d_ff, d_model))}
SGD = OPTIMIZERS["sgd"]
test_messages = pinned(
    {
        "another tree": (
            mx.ShapeError,
            lambda: SGD.apply({"in": W["in"], "bias": W["in"]}, SGD.init(W), W),
            """
            the gradients are not a tree like the parameters.
              values: no gradient of ['out']; no parameter ['bias']
              fix: pass what mx.grad gave for these parameters.
            """,
        ),
        "other dims": (
            mx.ShapeError,
            lambda: SGD.apply({"in": W["out"], "out": 1.0}, SGD.init(W), W),
            """
            a gradient does not have the dims of its parameter.
              values: ['in']: [d_ff:10, d_model:6] for [d_model:6, d_ff:10]; ['out']: float for [d_ff:10, d_model:6]
              fix: pass what mx.grad gave for these parameters.
            """,
        ),
    }
)
