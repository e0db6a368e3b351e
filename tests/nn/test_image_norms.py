"""Norms of images equal their definitions, over uneven blocks too; running statistics; messages."""

import equinox as eqx
import numpy as np
import pytest

import meshax as mx
from example_tensors import numbers
from extent import WHOLE, some
from meshax import nn
from meshax.testing import layout_invariance
from messages import pinned

batch, height, width, channel = mx.dims(batch=2, height=5, width=7, channel=6)
x = numbers(batch, height, width, channel, scale=3.0) + 2.0
mesh = mx.Mesh("rows:2 cols:4")
MESHES = ("x:8", "x:2 y:4") if WHOLE else ("x:2 y:4",)
KINDS = {
    "group": nn.GroupNorm.init(("height", "width"), channel, 2),
    "instance": nn.InstanceNorm.init(("height", "width"), channel),
}


def with_parameters(layer):
    """Scales and shifts that differ from place to place."""
    new = mx.param(layer.scale + numbers(channel)), mx.param(layer.shift + numbers(channel, scale=0.3))
    return eqx.tree_at(lambda layer: (layer.scale, layer.shift), layer, new)


def normal(values, axes, epsilon=1e-5):
    centred = values - values.mean(axes, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axes, keepdims=True) + epsilon)


LAYOUTS = ["", "batch:rows height:cols", "height:rows width:cols", "channel:rows width:cols"]


@pytest.mark.parametrize("layout", some(LAYOUTS, "height:rows width:cols"))
def test_a_batch_norm_and_its_running_statistics(layout):
    layer = with_parameters(nn.BatchNorm.init((channel,), momentum=0.75))

    def learn(layer, x):
        out, observed = layer.train(x)
        return out, layer.updated(observed)

    out, learned = mx.spmd(learn, mesh, layout)(layer, x)

    values = x.numpy().astype(np.float64)
    wanted = normal(values, (0, 1, 2)) * layer.scale.numpy() + layer.shift.numpy()
    np.testing.assert_allclose(out.numpy(), wanted, 1e-4, 1e-4)
    np.testing.assert_allclose(learned.mean.numpy(), 0.25 * values.mean((0, 1, 2)), 1e-4, 1e-5)
    np.testing.assert_allclose(learned.variance.numpy(), 0.75 + 0.25 * values.var((0, 1, 2)), 1e-4)
    assert (learned.mean.role, learned.scale.role) == (None, "param")
    by_running = (values - learned.mean.numpy()) / np.sqrt(learned.variance.numpy() + 1e-5)
    np.testing.assert_allclose(learned(x).numpy(), by_running * layer.scale.numpy() + layer.shift.numpy(), 1e-4, 1e-4)


def test_what_microbatches_observed_counts_by_its_mean():
    layer = nn.BatchNorm.init((channel,), momentum=0.5)
    several = mx.stack([mx.full((channel,), 2.0), mx.full((channel,), 4.0)], "microbatches")

    updated = layer.updated((several, several))

    np.testing.assert_allclose(updated.mean.numpy(), 1.5)
    np.testing.assert_allclose(updated.variance.numpy(), 2.0)


def test_what_a_batch_norm_sends():
    layer = nn.BatchNorm.init((channel,))
    program = mx.spmd(lambda layer, x: layer.train(x)[0], mesh, "height:cols batch:rows")
    assert [(c.kind, c.shape) for c in program.explain(layer, x).collectives] == [("all-reduce", (6,))] * 2


@pytest.mark.parametrize("name", some(KINDS, "group"))
def test_norms_of_each_example(name):
    layer = with_parameters(KINDS[name])
    values = x.numpy().reshape(2, 5, 7, 2, 3)
    wanted = normal(values, (1, 2, 4) if name == "group" else (1, 2)).reshape(2, 5, 7, 6)
    np.testing.assert_allclose(layer(x).numpy(), wanted * layer.scale.numpy() + layer.shift.numpy(), 1e-4, 1e-4)
    assert layout_invariance(
        lambda layer, x: layer(x), layer, x, meshes=MESHES, layouts=4 if WHOLE else 1, tolerance=1e-4
    )


test_messages = pinned(
    {
        "groups that do not divide": (
            mx.ArgumentError,
            lambda: nn.GroupNorm.init(("height",), channel, 4),
            """
            dim channel:6 cannot be cut into 4 groups.
              rule: groups have equally many channels.
              fix: choose a divisor of the number of channels.
            """,
        )
    }
)
