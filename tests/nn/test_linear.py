"""Linear maps and embeddings equal plain JAX, under every layout."""

import jax
import numpy as np
import pytest

import meshax as mx
from example_tensors import numbers
from extent import WHOLE
from meshax import nn
from meshax.testing import layout_invariance

batch, rows, cols, heads, d_kv, layers, vocab = mx.dims(batch=4, rows=6, cols=10, heads=2, d_kv=3, layers=3, vocab=7)
KEY = jax.random.key(0)


def test_a_map_of_several_dims():
    layer = nn.Linear.init(KEY, (rows,), (heads, d_kv))
    x = numbers(batch, rows)
    assert [d.name for d in layer(x).dims] == ["batch", "heads", "d_kv"]
    np.testing.assert_allclose(layer(x).numpy(), np.einsum("br,rhk->bhk", x.numpy(), layer.weight.numpy()), rtol=1e-5)
    back = nn.Linear.init(KEY, (heads, d_kv), (rows,))
    wanted = np.einsum("bhk,hkr->br", layer(x).numpy(), back.weight.numpy())
    np.testing.assert_allclose(back(layer(x)).numpy(), wanted, rtol=1e-4)


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_results_vary_as_much_as_what_is_given(scale):
    before, after = mx.dims(before=512, after=256)
    layer = nn.Linear.init(KEY, (before,), (after,), scale=scale)
    weight = layer.weight.numpy()
    assert weight.std() == pytest.approx(scale / 512**0.5, rel=0.02)
    assert np.abs(weight).max() < 2.3 * weight.std()
    x = mx.random.normal(KEY, (batch, before))
    assert layer(x).numpy().std() == pytest.approx(scale, rel=0.1)


def test_a_stack_has_its_dim_first():
    layer = nn.Linear.init(KEY, (rows,), (cols,), (layers,))
    assert [d.name for d in layer.weight.dims] == ["layers", "rows", "cols"] and layer.weight.role == "param"
    assert layer.weight.numpy().std() == pytest.approx(6**-0.5, rel=0.2)  # of one layer, not of all

    def body(x, layer):
        return layer(x).rename(cols="rows"), None

    square = nn.Linear.init(KEY, (rows,), (mx.Dim("cols", 6),), (layers,))
    x = numbers(batch, rows)
    wanted = x.numpy()
    for weight in square.weight.numpy():
        wanted = wanted @ weight
    np.testing.assert_allclose(mx.scan(body, x, square, over=layers)[0].numpy(), wanted, rtol=1e-4, atol=1e-6)


def test_a_bias_begins_with_zeros_and_is_added():
    layer = nn.Linear.init(KEY, (rows,), (heads, d_kv), (layers,), bias=True)
    assert [d.name for d in layer.bias.dims] == ["layers", "heads", "d_kv"] and layer.bias.role == "param"
    assert not layer.bias.numpy().any() and nn.Linear.init(KEY, (rows,), (cols,)).bias is None
    plain, shift = nn.Linear.init(KEY, (rows,), (heads, d_kv)), numbers(heads, d_kv)
    both = nn.Linear(plain.weight, plain.before, plain.after, mx.param(shift))
    x = numbers(batch, rows)
    np.testing.assert_allclose(both(x).numpy(), plain(x).numpy() + shift.numpy(), rtol=1e-5)
    assert both(x.astype("bfloat16")).dtype == "bfloat16"
    assert layout_invariance(lambda layer, x: layer(x), both, x, layouts=4 if WHOLE else 2)


def test_parameters_are_cast_to_what_is_given():
    layer = nn.Linear.init(KEY, (rows,), (cols,))
    assert layer(numbers(batch, rows).astype("bfloat16")).dtype == "bfloat16" and layer.weight.dtype == "float32"


def test_an_embedding():
    layer = nn.Embedding.init(KEY, vocab, (rows,))
    tokens = mx.tensor(np.array([3, 0, 6, 3]), "batch")
    np.testing.assert_array_equal(layer(tokens).numpy(), layer.weight.numpy()[[3, 0, 6, 3]])
    assert layer(tokens, "bfloat16").dtype == "bfloat16"


def test_every_layout_gives_the_same():
    layers = nn.Embedding.init(KEY, vocab, (rows,)), nn.Linear.init(KEY, (rows,), (cols,))
    tokens = mx.tensor(np.array([3, 0, 6, 3]), (batch,))
    both = lambda layers, tokens: layers[1](layers[0](tokens))  # noqa: E731
    assert layout_invariance(both, layers, tokens, layouts=4 if WHOLE else 2)
