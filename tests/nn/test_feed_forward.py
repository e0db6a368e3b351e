"""The feed-forward layer, plain and gated; and dropout, on which it relies."""

import equinox as eqx
import jax
import numpy as np
import pytest

import meshax as mx
from example_tensors import numbers
from extent import WHOLE
from meshax import nn
from meshax.nn.feed_forward import ACTIVATIONS
from meshax.testing import layout_invariance

batch, d_model, d_ff = mx.dims(batch=4, d_model=6, d_ff=10)
KEY = jax.random.key(0)
PLAIN = {
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
    "gelu_exact": lambda x: jax.nn.gelu(x, approximate=False),
    "silu": jax.nn.silu,
    "sigmoid": jax.nn.sigmoid,
}


@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_equals_plain_jax(activation, gated):
    layer = nn.FeedForward.init(KEY, (d_model,), (d_ff,), activation=activation, gated=gated)
    x = numbers(batch, d_model, scale=2.0)
    inner = PLAIN[activation](x.numpy() @ layer.into.weight.numpy())
    inner = inner * (x.numpy() @ layer.gate.weight.numpy()) if gated else inner
    np.testing.assert_allclose(layer(x).numpy(), inner @ layer.out.weight.numpy(), rtol=1e-4, atol=1e-5)


def test_biases():
    layer = nn.FeedForward.init(KEY, (d_model,), (d_ff,), gated=True, bias=True)
    maps = layer.into, layer.gate, layer.out
    biases = [np.sin(np.arange(linear.bias.size) + number).astype(np.float32) for number, linear in enumerate(maps)]
    values = [mx.param(mx.tensor(array, linear.bias.dims)) for array, linear in zip(biases, maps, strict=True)]
    layer = eqx.tree_at(lambda layer: (layer.into.bias, layer.gate.bias, layer.out.bias), layer, values)
    x = numbers(batch, d_model)
    into, gate = (x.numpy() @ one.weight.numpy() + b for one, b in zip(maps[:2], biases[:2], strict=True))
    wanted = (jax.nn.relu(into) * gate) @ layer.out.weight.numpy() + biases[2]
    np.testing.assert_allclose(layer(x).numpy(), wanted, rtol=1e-4, atol=1e-5)
    assert layout_invariance(lambda layer, x: layer(x), layer, x, layouts=4 if WHOLE else 2)


def test_every_layout_gives_the_same_with_dropout():
    layer = nn.FeedForward.init(KEY, (d_model,), (d_ff,), activation="silu", gated=True, dropout=0.3)
    assert layout_invariance(lambda layer, x: layer(x, KEY), layer, numbers(batch, d_model), layouts=4 if WHOLE else 2)


def test_an_activation_that_there_is_not():
    with pytest.raises(mx.ArgumentError) as raised:
        nn.FeedForward.init(KEY, (d_model,), (d_ff,), activation="geloo")
    assert str(raised.value) == "there is no activation 'geloo'.\n  fix: did you mean \"gelu\"?"


def test_dropout_without_a_key_does_nothing():
    x = numbers(batch, d_model)
    assert nn.Dropout(0.5)(x) is x and nn.Dropout(0.0)(x, KEY) is x


def test_dropout_keeps_the_mean():
    x = mx.ones(mx.dims(batch=4, many=10_000))
    out = nn.Dropout(0.25)(x, KEY).numpy()
    assert (out == 0).mean() == pytest.approx(0.25, abs=0.01) and out.mean() == pytest.approx(1, abs=0.01)
    assert set(np.unique(out)) == {np.float32(0), np.float32(1 / 0.75)}


def test_what_goes_into_relu_is_not_kept_for_its_gradient():
    """Only what comes out, which the next product keeps anyway: at every point the gradient is JAX's own."""
    points = np.array([-2.0, -0.0, 0.0, 1e-30, 3.0, np.inf, -np.inf, np.nan], np.float32)
    ours = jax.grad(lambda x: mx.sum(mx.relu(mx.tensor(x, "points")) * 3.0).array)(points)
    np.testing.assert_array_equal(ours, jax.grad(lambda x: jax.nn.relu(x).sum() * 3)(points))
    kept = jax.make_jaxpr(lambda x: jax.vjp(lambda x: mx.relu(mx.tensor(x, "points")).array, x)[1])(points)
    comparisons = [e for e in kept.eqns if e.primitive.name in ("eq", "ne", "gt", "lt", "ge", "le")]
    assert comparisons and not any(x in kept.jaxpr.invars for e in comparisons for x in e.invars)
    assert not [e for e in comparisons if e.primitive.name == "gt"]  # XLA would compare what goes in instead


@pytest.mark.parametrize("layout", ["", "d_ff:model batch:data"])
def test_joined_it_is_the_same(layout):
    layer = nn.FeedForward.init(KEY, (d_model,), (d_ff,), activation="silu", gated=True, bias=True)
    layer = jax.tree.map(lambda x: x + 0.2 * np.sin(np.arange(x.size, dtype=np.float32)).reshape(x.shape), layer)
    x = numbers(batch, d_model)
    program = mx.spmd(lambda layer, x: layer.joined()(x), mx.Mesh("data:2 model:4"), layout)
    np.testing.assert_allclose(program(layer, x).numpy(), layer(x).numpy(), rtol=1e-5, atol=1e-6)
    assert layer.joined().into.weight.dims == (d_model, mx.Dim("parts", 2), d_ff) and layer.joined().gate is None
