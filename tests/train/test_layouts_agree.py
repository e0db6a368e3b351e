"""The one promise, for a whole training: a layout changes the speed, never the losses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshax as mx
from meshax.models.decoder import Decoder, DecoderConfig
from meshax.optim.clipping import clipped
from meshax.optim.named_optimizers import by_name
from meshax.plan.named_layouts import find_layout
from meshax.train.step import init_state, make_train_step

STEPS = 50
MODEL = DecoderConfig(
    d_model=32, heads=4, d_kv=8, d_ff=64, layers=2, vocab=64, positions="rotary", dropout=0.1, label_smoothing=0.1,
    dtype="float32",
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


def losses(mesh, layout, microbatches=None):
    MODEL.dims()
    optimizer = clipped(by_name("adamw", 1e-2), 1.0)
    place = mx.Mesh(mesh)
    rules = find_layout(layout, place)
    state = mx.spmd(lambda key: init_state(lambda k: Decoder.init(k, MODEL), optimizer, key), place, rules)(
        jax.random.key(0)
    )
    step = mx.spmd(make_train_step(optimizer, microbatches), place, rules, donate=0)
    found = []
    for batch in batches():
        state, measured = step(state, batch, jax.random.key(1))
        found.append(measured["loss"])
    return np.array([float(loss) for loss in found])


@pytest.fixture(scope="module")
def alone():
    """The losses on one processor."""
    found = losses("x:1", "none")
    assert found[-5:].mean() < 0.8 * found[0]  # it learns: the comparison is not one of constants
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_has_the_same_losses(layout, alone):
    np.testing.assert_allclose(losses(LAYOUTS[layout], layout), alone, rtol=1e-4)


def test_dropout_is_on(alone):
    assert jnp.isfinite(alone).all()
