"""optax on slices: exact where it works element by element, refused where it would be silently wrong."""

import jax
import numpy as np
import optax
import pytest

import meshax as mx
from extent import WHOLE
from meshax import optim

MESH = "data:2 model:4"
batch, d_model, d_ff = mx.dims(batch=8, d_model=6, d_ff=10)
LAYOUTS = {
    "data": mx.Layout("batch:data"),
    "both": mx.Layout("batch:data d_ff:model"),
    "zero-1": mx.Layout("batch:data", optimizer="d_model:data"),
    "zero-1, uneven": mx.Layout("batch:data", optimizer="d_model:data d_ff:model"),
    "zero-3": mx.Layout("batch:data", params="d_model:data", optimizer="d_model:data"),
    "zero-1 and tensor": mx.Layout("batch:data d_ff:model", optimizer="d_model:data"),
}
CHECKED = [LAYOUTS[name] for name in (LAYOUTS if WHOLE else ("zero-1, uneven", "zero-3"))]
ELEMENTWISE = {
    "sgd": optax.sgd(0.1),
    "momentum": optax.sgd(0.1, momentum=0.9),
    "adamw": optax.adamw(optax.linear_schedule(1e-2, 1e-3, 10)),
}


def parameters():
    r = np.random.RandomState(0)
    draw = lambda *dims: mx.param(mx.tensor(r.normal(size=[d.size for d in dims]).astype(np.float32), dims))  # noqa: E731
    return {"in": draw(d_model, d_ff), "bias": draw(d_ff), "out": draw(d_ff, d_model)}


def examples():
    return mx.tensor(np.sin(np.arange(48.0)).reshape(8, 6).astype(np.float32), (batch, d_model))


def loss(w, x):
    h = mx.tanh(mx.einsum(x, w["in"], over=d_model) + w["bias"])
    return mx.mean(mx.square(mx.einsum(h, w["out"], over=d_ff) - x))


def make_step(optimizer):
    def step(w, state, x):
        value, grads = mx.value_and_grad(loss)(w, x)
        w, state = optimizer.apply(grads, state, w)
        return w, state, value

    return step


def run(optimizer, layout, steps=3):
    w, x = parameters(), examples()
    program = mx.spmd(make_step(optimizer), mx.Mesh(MESH), layout, donate=(0, 1))
    state = mx.spmd(optimizer.init, program.mesh, layout)(w)
    w = mx.put(w, program.mesh, layout)
    losses = []
    for _ in range(steps):
        w, state, value = program(w, state, x)
        losses.append(float(value))
    return losses, {name: p.numpy() for name, p in w.items()}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_transformations_equal_plain_optax(name):
    transformation = ELEMENTWISE[name]
    w, x = parameters(), examples()
    state, wanted = transformation.init(w), []
    for _ in range(3):
        value, grads = mx.value_and_grad(loss)(w, x)
        updates, state = transformation.update(grads, state, w)
        w = jax.tree.map(lambda p, u: p + u, w, updates)
        wanted.append(float(value))
    for layout in CHECKED:
        losses, params = run(optim.from_optax(transformation), layout)
        np.testing.assert_allclose(losses, wanted, rtol=1e-5, err_msg=str(layout))
        for key in params:
            np.testing.assert_allclose(params[key], w[key].numpy(), rtol=2e-5, atol=2e-6, err_msg=str(layout))


REFUSED = {
    "clip": optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)),
    "lamb": optax.lamb(1e-2),
    "noise": optax.add_noise(0.1, 0.5, 0),
}


@pytest.mark.parametrize("name", REFUSED)
def test_transformations_that_mix_elements_are_refused_where_parameters_are_split(name):
    optimizer = optim.from_optax(REFUSED[name])
    run(optimizer, mx.Layout(""), steps=1)
    run(optimizer, mx.Layout("batch:data"), steps=1)
    with pytest.raises(mx.SliceError):
        run(optimizer, LAYOUTS["both"], steps=1)


def test_the_refusal_says_what_and_why():
    rows, cols = mx.dims(rows=6, cols=4)
    w = mx.param(mx.tensor(np.ones((6, 4), np.float32), (rows, cols)))
    optimizer = optim.from_optax(optax.clip_by_global_norm(1.0))
    program = mx.spmd(lambda w: optimizer.apply(w, optimizer.init(w), w)[0], mx.Mesh("x:2"), "rows:x")
    with pytest.raises(mx.SliceError) as refusal:
        program(w)
    assert str(refusal.value) == (
        "reduce_sum would combine elements of one processor's slice alone, along 'rows'.\n"
        "  values: [rows:6/x], on each processor float32[3, 4]\n"
        "  rule: inside a program the array of a split tensor is a slice, which JAX code may only see element by "
        "element.\n"
        "  fix: use mx.sum; mx.local for a function that may see slices; for optimizers optim.clipped and "
        "optim.Adafactor; or rename the dim to one that is not split."
    )
    assert "test_elementwise.py" in refusal.value.__notes__[0]


def test_state_of_another_shape_is_refused():
    w = mx.param(mx.tensor(np.ones((256, 128), np.float32), mx.dims(rows=256, cols=128)))
    with pytest.raises(mx.OptimizerError, match=r"state of shape \(\w+,\) for \[rows:256, cols:128\]"):
        optim.from_optax(optax.adafactor(1e-2)).init(w)


def test_state_is_stored_split_by_the_optimizers_rules():
    optimizer = optim.from_optax(optax.adam(1e-2))
    state = mx.spmd(optimizer.init, mx.Mesh(MESH), LAYOUTS["zero-1"])(parameters())
    moment = state[0].mu["in"]
    assert moment.role == "optimizer"
    assert {shard.data.shape for shard in moment.array.addressable_shards} == {(3, 10)}


def by_rank(params):
    return jax.tree.map(lambda a: "matrix" if a.ndim > 1 else "vector", params)


MASKING = {
    "masked": optax.masked(optax.adam(0.1), lambda p: jax.tree.map(lambda a: a.ndim > 1, p)),
    "multi_transform": optax.multi_transform({"matrix": optax.adam(0.1), "vector": optax.sgd(0.1)}, by_rank),
}


@pytest.mark.parametrize("name", MASKING)
def test_transformations_that_treat_parameters_differently(name):
    optimizer = optim.from_optax(MASKING[name])
    wanted = run(optimizer, mx.Layout(""))
    for layout in CHECKED:
        losses, params = run(optimizer, layout)
        np.testing.assert_allclose(losses, wanted[0], rtol=1e-5, err_msg=str(layout))
        for key in params:
            np.testing.assert_allclose(params[key], wanted[1][key], rtol=2e-5, atol=2e-6, err_msg=str(layout))


@pytest.mark.parametrize("optimizer", ["", "rows:x cols:y"])
def test_a_product_of_slices_is_refused(optimizer):
    rows, cols = mx.dims(rows=8, cols=8)
    w = mx.param(mx.tensor(np.sin(np.arange(64.0)).reshape(8, 8).astype(np.float32), (rows, cols)))
    squared = optim.from_optax(optax.stateless(lambda g, p: jax.tree.map(lambda q: q @ q, g)))
    layout = mx.Layout("", optimizer=optimizer)
    program = mx.spmd(lambda w: squared.apply(w, squared.init(w), w)[0], mx.Mesh("x:2 y:2"), layout)
    if optimizer:
        with pytest.raises(mx.SliceError, match="dot_general would combine elements"):
            program(w)
    else:
        np.testing.assert_allclose(program(w).numpy(), w.numpy() + w.numpy() @ w.numpy(), rtol=1e-5)
