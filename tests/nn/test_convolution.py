"""Convolutions with parameters: their shapes, how much their results vary, and the same under every layout."""

import jax
import numpy as np
import pytest

import meshax as mx
from example_tensors import numbers
from extent import WHOLE, some
from meshax import nn
from meshax.testing import layout_invariance

batch, height, width, c_in, c_out, group = mx.dims(batch=2, height=9, width=8, c_in=3, c_out=4, group=2)
taps = {"height": mx.Dim("kh", 3), "width": mx.Dim("kw", 2)}
MESHES = ("x:8", "x:2 y:4") if WHOLE else ("x:2 y:4",)
x = numbers(batch, height, width, group, c_in)


def made(kind=nn.Conv, **how):
    return kind.init(jax.random.key(0), taps, (c_in,), (c_out,), **how)


@pytest.mark.parametrize("kind", [nn.Conv, nn.ConvTranspose])
def test_a_layer_is_its_operation_and_a_bias(kind):
    layer = made(kind, stride={"height": 2}, groups=(group,))
    op = {nn.Conv: mx.conv, nn.ConvTranspose: mx.conv_transpose}[kind]
    layer = jax.tree.map(lambda leaf: leaf + 0.5, layer)

    wanted = op(x, layer.weight, {"height": "kh", "width": "kw"}, over="c_in", stride={"height": 2}) + layer.bias

    assert {layer.weight.role, layer.bias.role} == {"param"}
    assert layer.bias.dims == (group, c_out)
    np.testing.assert_array_equal(layer(x).numpy(), wanted.numpy())
    assert made(kind, bias=False).bias is None


@pytest.mark.parametrize("kind", some([nn.Conv, nn.ConvTranspose], nn.ConvTranspose))
def test_results_vary_as_much_as_what_is_given(kind):
    many = mx.dims(height=16, width=16, c_in=64)
    given = mx.random.normal(jax.random.key(1), many)
    windows = {"height": mx.Dim("kh", 4), "width": mx.Dim("kw", 4)}
    layer = kind.init(jax.random.key(0), windows, many[2:], (mx.Dim("c_out", 32),), stride=2, scale=3.0)

    inner = layer(given).numpy()[2:-2, 2:-2]
    assert 2.7 < inner.std() < 3.3


def test_every_layout_gives_the_same():
    layer = made(stride=2, padding={"height": (1, 0)})
    assert layout_invariance(lambda layer, x: layer(x), layer, x, meshes=MESHES, layouts=4 if WHOLE else 1)
