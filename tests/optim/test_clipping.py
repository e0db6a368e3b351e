"""Clipping by the global norm: optax's, under every layout, with one all-reduce."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshax as mx
from extent import some
from meshax import optim
from meshax.layout import Setting
from meshax.testing import place_with_garbage
from messages import pinned

MESH = "data:2 model:4"
rows, cols = mx.dims(rows=6, cols=10)
LAYOUTS = {
    "unsplit": mx.Layout(""),
    "rows": mx.Layout("rows:data"),
    "uneven": mx.Layout("rows:model cols:data"),
    "twice": mx.Layout("cols:data+model"),
    "params": mx.Layout("cols:model", params="rows:data"),
}


def gradients(factor=1.0, dtype=np.float32):
    draw = lambda dims, seed: np.random.RandomState(seed).normal(size=[d.size for d in dims]) * factor  # noqa: E731
    shapes = {"matrix": (rows, cols), "vector": (rows,), "other": (cols,), "number": ()}
    return {
        name: mx.param(mx.tensor(jnp.asarray(draw(dims, i), dtype), dims))
        for i, (name, dims) in enumerate(shapes.items())
    }


def array(tree):
    return jax.tree.map(lambda x: x.numpy(), tree, is_leaf=lambda x: isinstance(x, mx.Tensor))


def clip(grads, limit, layout):
    """Clips in a program, with NaN in the padding of every gradient."""
    setting = Setting(mx.Mesh(MESH), layout)
    placed = {name: place_with_garbage(g, setting) for name, g in grads.items()}
    clipped, norm = mx.spmd(lambda grads: optim.clip_by_global_norm(grads, limit), setting.mesh, layout)(placed)
    return array(clipped), norm.item()


@pytest.mark.parametrize("label", some(LAYOUTS, "uneven", "params"))
@pytest.mark.parametrize("limit", [1.0, 100.0], ids=["clips", "leaves"])
def test_it_is_optaxs_under_every_layout(label, limit):
    grads = gradients()
    wanted, _ = optax.clip_by_global_norm(limit).update(array(grads), optax.EmptyState())
    got, norm = clip(grads, limit, LAYOUTS[label])
    np.testing.assert_allclose(norm, optax.tree.norm(array(grads)), rtol=1e-6)
    for name in grads:
        np.testing.assert_allclose(got[name], wanted[name], rtol=2e-6)


def test_outside_a_program_too():
    clipped, norm = optim.clip_by_global_norm(gradients(), 1.0)
    np.testing.assert_allclose(norm.item(), optax.tree.norm(array(gradients())), rtol=1e-6)
    np.testing.assert_allclose(optim.global_norm(clipped).item(), 1.0, rtol=1e-6)


def test_bfloat16_gradients_stay_so_and_are_summed_in_float32():
    grads = gradients(dtype=jnp.bfloat16)
    clipped, norm = optim.clip_by_global_norm(grads, 1.0)
    assert {g.dtype for g in clipped.values()} == {jnp.dtype(jnp.bfloat16)}
    wide = jax.tree.map(lambda x: x.astype(np.float32), array(grads))
    np.testing.assert_allclose(norm.item(), optax.tree.norm(wide), rtol=1e-6)


@pytest.mark.parametrize("label", some(LAYOUTS, "uneven", "params"))
def test_64_bits_change_nothing(label):
    """What is clipped keeps its dtype, and the norm is of 32 bits: one of gradients of 64 too."""
    wanted, norm = clip(gradients(), 1.0, LAYOUTS[label])
    with jax.enable_x64(True):
        same, same_norm = clip(gradients(), 1.0, LAYOUTS[label])
        wide, _ = optim.clip_by_global_norm(gradients(dtype=np.float64), 1.0)
        clipper = optim.clipped(optim.from_optax(optax.sgd(1.0)), 1.0)
        state = clipper.init(gradients())
        assert {x.dtype for x in (optim.global_norm(gradients()), optim.global_norm(wide), state.norm)} == {
            np.dtype("float32")
        }
    np.testing.assert_allclose(same_norm, norm, rtol=1e-6)
    for name in wanted:
        assert (same[name].dtype, wide[name].dtype) == (np.float32, np.float64)
        np.testing.assert_allclose(same[name], wanted[name], rtol=2e-6)
        np.testing.assert_allclose(wide[name].numpy(), wanted[name], rtol=2e-6)


@pytest.mark.parametrize("label", some(LAYOUTS, "uneven", "params"))
@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_a_norm_that_is_no_number_is_reported(label, bad):
    grads = gradients()
    values = grads["matrix"].numpy().copy()
    values[5, 9] = bad
    grads["matrix"] = mx.param(mx.tensor(values, (rows, cols)))
    got, norm = clip(grads, 1.0, LAYOUTS[label])
    np.testing.assert_equal(norm, bad)
    np.testing.assert_equal(got["vector"], np.zeros(6) if np.isinf(bad) else np.full(6, np.nan))


def test_gradients_keep_their_dims_and_roles():
    grads = {**gradients(), "plain": mx.tensor(np.ones(6, np.float32), (rows,))}
    clipped, _ = optim.clip_by_global_norm(grads, 1.0)
    assert jax.tree.structure(clipped) == jax.tree.structure(grads)


def test_one_all_reduce_for_all_gradients():
    def collectives(layout):
        program = mx.spmd(lambda grads: optim.clip_by_global_norm(grads, 1.0), mx.Mesh(MESH), layout)
        return [(c.kind, c.axes, c.elements, c.count) for c in program.explain(gradients()).collectives]

    assert collectives("") == []
    assert collectives("rows:data") == [("all-reduce", ("data",), 2, 1)]
    assert collectives("rows:data cols:model") == [("all-reduce", ("data", "model"), 3, 1)]


def test_a_clipped_optimizer_clips_what_was_scattered():
    """Pending gradients are reduce-scattered to where the state is, and the norm is that of the slices."""
    sgd, batch = optim.clipped(optim.by_name("sgd", 0.1), 1.0), mx.Dim("batch", 4)
    w = mx.param(mx.tensor(np.ones((6, 10), np.float32), (rows, cols)))
    x = mx.tensor(np.ones((4, 6), np.float32), (batch, rows))

    def step(w, state, x):
        grads = mx.grad(lambda w, x: mx.mean(mx.square(mx.einsum(x, w, over=rows))))(w, x)
        return sgd.apply(grads, state, w)

    program = mx.spmd(step, mx.Mesh(MESH), mx.Layout("batch:data", optimizer="rows:data"))
    assert [(c.kind, c.elements) for c in program.explain(w, sgd.init(w), x).collectives] == [
        ("reduce-scatter", 60),
        ("all-reduce", 1),
        ("all-gather", 30),
    ]


def test_the_state_of_a_clipped_optimizer_tells_the_norm():
    sgd = optim.clipped(optim.by_name("sgd", 1.0), 1.0)
    params, grads = gradients(), gradients()
    after, state = sgd.apply(grads, sgd.init(params), params)
    norm = float(optax.tree.norm(array(grads)))
    np.testing.assert_allclose(state.norm.item(), norm, rtol=1e-6)
    np.testing.assert_allclose(after["matrix"].numpy(), params["matrix"].numpy() * (1 - 1 / norm), rtol=1e-5)


test_messages = pinned(
    {
        "a limit of 0": (
            mx.ArgumentError,
            lambda: optim.clip_by_global_norm(gradients(), 0),
            """
            gradients cannot be clipped to a norm of 0.
              fix: choose a positive number.
            """,
        ),
        "a limit below 0": (
            mx.ArgumentError,
            lambda: optim.clipped(optim.by_name("sgd", 0.1), -1.0),
            """
            gradients cannot be clipped to a norm of -1.0.
              fix: choose a positive number.
            """,
        ),
        "an array": (
            mx.ShapeError,
            lambda: optim.clip_by_global_norm({"w": np.zeros(3, np.float32)}, 1.0),
            """
            optim.clip_by_global_norm takes tensors, not an array.
              values: float32[3]
              rule: an array takes part in an operation through the names of its dims.
              fix: name them: mx.tensor(array, "batch hidden").
            """,
        ),
    }
)
