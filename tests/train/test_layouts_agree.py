"""The one promise, for a whole training: a layout changes the speed, never the losses."""

import jax
import numpy as np
import pytest

import meshax as mx
from extent import some
from meshax.models.decoder import DecoderConfig
from meshax.optim.clipping import clipped
from meshax.optim.named_optimizers import by_name
from meshax.plan.search.named_layouts import find_layout
from meshax.train.step import init_state, make_train_step

STEPS = 50
MODEL = DecoderConfig(
    d_model=32, heads=4, d_kv=8, d_ff=64, layers=2, vocab=64, activation="gelu", positions="rotary", dropout=0.1,
    label_smoothing=0.1, keep="everything", dtype="float32",
)  # fmt: skip
BATCH, LENGTH = mx.dims(batch=8, length=16)
LAYOUTS = {
    "data": "data:2 model:4",
    "model": "data:2 model:4",
    "data+model": "data:2 model:4",
    "fsdp": "data:8",
    "sequence": "data:2 model:4",
}


def batches():
    """Texts in which a token tells something of the next, two documents in each example."""
    draw = np.random.default_rng(0)
    start, stride = draw.integers(0, 64, (STEPS, 8, 1)), draw.integers(1, 4, (STEPS, 8, 1))
    text = (start + stride * np.arange(LENGTH.size + 1)) % 64
    segments = np.broadcast_to(np.where(np.arange(16) < 6, 1, 2), (8, 16))
    positions = np.broadcast_to(np.where(np.arange(16) < 6, np.arange(16), np.arange(16) - 6), (8, 16))
    weights = np.ones((8, 16))
    weights[3, 10:] = 0
    for one in text:
        arrays = dict(tokens=one[:, :-1], targets=one[:, 1:], segments=segments, positions=positions, weights=weights)
        yield {name: mx.tensor(array.astype(np.int32), (BATCH, LENGTH)) for name, array in arrays.items()}


OPTIMIZER = clipped(by_name("adamw", 3e-3), 1.0)


def first_state(key):
    return init_state(MODEL.make, OPTIMIZER, key)


def losses(state, mesh, layout):
    """The losses of a run, and how often its step was traced."""
    place = mx.Mesh(mesh)
    rules = find_layout(layout, place)
    traced = []

    def train_step(state, batch, key):
        traced.append(jax.tree.structure(state))
        return make_train_step(OPTIMIZER)(state, batch, key)

    step, state, found = mx.spmd(train_step, place, rules), mx.put(state, place, rules), []
    for batch in batches():
        state, measured = step(state, batch, jax.random.key(1))
        found.append(measured["loss"])
    assert len(set(traced)) == 1  # a step gives what it takes: nothing is compiled twice
    return np.array([float(loss) for loss in found])


@pytest.fixture(scope="module")
def state():
    return mx.spmd(first_state, mx.Mesh("x:1"), "")(jax.random.key(0))


@pytest.fixture(scope="module")
def alone(state):
    """The losses on one processor."""
    found = losses(state, "x:1", "none")
    assert found[-5:].mean() < 0.8 * found[0]  # it learns: these are not 50 equal numbers
    return found


@pytest.mark.slow
@pytest.mark.parametrize("layout", some(LAYOUTS, "data+model"))
def test_every_layout_has_the_same_losses(layout, state, alone):
    np.testing.assert_allclose(losses(state, LAYOUTS[layout], layout), alone, rtol=1e-4)


def test_every_layout_begins_with_the_same_parameters(state):
    """Also where a rule pads: 4 heads over 8 processors."""
    place = mx.Mesh("data:8")
    made = mx.spmd(first_state, place, mx.Layout("heads:data"))(jax.random.key(0))
    is_tensor = lambda leaf: isinstance(leaf, mx.Tensor)  # noqa: E731
    for got, wanted in zip(*(jax.tree.leaves(tree, is_leaf=is_tensor) for tree in (made, state))):
        if is_tensor(got):
            np.testing.assert_allclose(got.numpy(), wanted.numpy(), rtol=1e-6)
