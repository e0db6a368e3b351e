"""Norms equal their definitions, in float32, under every layout."""

import equinox as eqx
import numpy as np
import pytest

import meshax as mx
from example_tensors import numbers
from extent import WHOLE
from meshax import nn
from meshax.testing import layout_invariance

batch, rows, cols = mx.dims(batch=4, rows=6, cols=5)


def centred(x, axes):
    return x - x.mean(axes, keepdims=True)


def wanted(kind, x, axes, scale, shift):
    x = centred(x, axes) if kind is nn.LayerNorm else x
    return x / np.sqrt((x * x).mean(axes, keepdims=True) + 1e-6) * scale + shift


def with_parameters(layer):
    """Scales and shifts that differ from place to place."""
    changed = {f: getattr(layer, f) + numbers(*layer.scale.dims) for f in ("scale", "shift") if hasattr(layer, f)}
    return eqx.tree_at(lambda layer: [getattr(layer, f) for f in changed], layer, list(changed.values()))


@pytest.mark.parametrize("kind", [nn.RMSNorm, nn.LayerNorm])
@pytest.mark.parametrize("over", [(rows,), (cols,), (rows, cols)], ids=str)
def test_equals_its_definition(kind, over):
    layer, x = with_parameters(kind.init(over)), numbers(batch, rows, cols, scale=3.0)
    axes = tuple(x.dims.index(dim) for dim in over)
    shape = [dim.size if dim in over else 1 for dim in x.dims]
    scale, shift = (getattr(layer, f).numpy().reshape(shape) if hasattr(layer, f) else 0 for f in ("scale", "shift"))
    np.testing.assert_allclose(layer(x).numpy(), wanted(kind, x.numpy(), axes, scale, shift), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [nn.RMSNorm, nn.LayerNorm])
def test_every_layout_gives_the_same(kind):
    layer = with_parameters(kind.init((rows,)))
    assert layout_invariance(lambda layer, x: layer(x), layer, numbers(batch, rows, cols), layouts=4 if WHOLE else 2)


@pytest.mark.parametrize("kind", [nn.RMSNorm, nn.LayerNorm])
def test_16_bits_are_normalised_in_float32(kind):
    x = (numbers(batch, rows) + 300.0).astype("float16")  # whose squares float16 cannot hold
    out = kind.init((rows,))(x)
    assert out.dtype == "float16" and np.isfinite(out.numpy()).all()


@pytest.mark.parametrize(("kind", "all_reduces"), [(nn.RMSNorm, 1), (nn.LayerNorm, 2)])
def test_what_is_sent(kind, all_reduces):
    """One number for each element of the other dims, as the docstrings say."""
    program = mx.spmd(lambda layer, x: layer(x), mx.Mesh("x:2"), "rows:x")
    found = program.explain(kind.init((rows,)), numbers(batch, rows)).collectives
    assert [(c.kind, c.bytes) for c in found] == [("all-reduce", 4 * batch.size)] * all_reduces
