"""Positions: sinusoids, rotations that depend on distances alone, buckets of distances."""

import jax
import numpy as np
import pytest

import meshax as mx
from example_tensors import numbers
from extent import WHOLE
from meshax import nn
from meshax.nn.positions import RelativeBias, rotary, sinusoidal
from meshax.testing import layout_invariance

positions, memory, d_model, heads = mx.dims(positions=12, memory=9, d_model=8, heads=3)
KEY = jax.random.key(0)


def test_sinusoids():
    out = sinusoidal(mx.arange(positions), d_model).numpy()
    angles = np.arange(12)[:, None] * 10_000.0 ** (-np.arange(4) / 4)
    np.testing.assert_allclose(out, np.concatenate([np.sin(angles), np.cos(angles)], 1), atol=1e-5)


def test_rotations_see_distances_alone():
    q, k = numbers(positions, d_model), numbers(memory, d_model, scale=2.0)

    def scores(shift):
        there = mx.arange(positions) + shift, mx.arange(memory) + shift
        return mx.einsum(rotary(q, there[0], "d_model"), rotary(k, there[1], "d_model"), over="d_model").numpy()

    np.testing.assert_allclose(scores(0), scores(37), atol=2e-4)
    assert np.abs(scores(0) - np.einsum("pd,md->pm", q.numpy(), k.numpy())).max() > 0.5
    turned = rotary(q, mx.arange(positions), "d_model").numpy()
    np.testing.assert_allclose(np.linalg.norm(turned, axis=1), np.linalg.norm(q.numpy(), axis=1), rtol=1e-5)
    np.testing.assert_allclose(turned[0], q.numpy()[0], atol=1e-6)


def bucket(distance, buckets=32, farthest=128):
    """T5's, one way."""
    distance, exact = max(distance, 0), buckets // 2
    if distance < exact:
        return distance
    return min(exact + int(np.log(distance / exact) / np.log(farthest / exact) * (buckets - exact)), buckets - 1)


def test_relative_buckets():
    bias = RelativeBias.init(KEY, (heads,))
    queries = mx.tensor(np.array([0, 5, 15, 17, 40, 100, 127, 200, 5000]), "positions")
    out = bias(queries, mx.tensor(np.array([0, 3]), "memory"))
    wanted = [[bias.weight.numpy()[bucket(q - k)] for k in (0, 3)] for q in queries.numpy()]
    found = mx.transpose(out, ("positions", "memory", "heads")).numpy()
    np.testing.assert_array_equal(found, wanted)


def test_relative_buckets_both_ways():
    """Half of the buckets are for what lies behind, half for what lies ahead."""
    bias = RelativeBias.init(KEY, (heads,), both_ways=True)
    queries = mx.tensor(np.array([0, 1, 5, 9, 40, 200]), "positions")
    keys = np.array([0, 4, 30, 1000])
    wanted = [
        [bias.weight.numpy()[bucket(abs(q - k), 16) + (16 if k > q else 0)] for k in keys] for q in queries.numpy()
    ]
    found = mx.transpose(bias(queries, mx.tensor(keys, "memory")), ("positions", "memory", "heads")).numpy()
    np.testing.assert_array_equal(found, wanted)
    d_kv = mx.Dim("d_kv", 4)
    made = [nn.Attention.init(KEY, d_model, heads, d_kv, causal=c, relative=True).relative for c in (True, False)]
    assert [bias.both_ways for bias in made] == [False, True]


def test_a_stack_of_biases():
    layers = mx.Dim("layers", 2)
    assert [d.name for d in RelativeBias.init(KEY, (heads,), (layers,)).weight.dims] == ["layers", "distances", "heads"]


@pytest.mark.parametrize("kind", ["sinusoidal", "rotary", "relative"])
def test_every_layout_gives_the_same(kind):
    bias = RelativeBias.init(KEY, (heads,))

    def fn(bias, x, keys):
        at = mx.arange(positions)
        if kind == "relative":
            return bias(at, keys)
        return sinusoidal(at, d_model) + x if kind == "sinusoidal" else rotary(x, at, "d_model")

    assert layout_invariance(fn, bias, numbers(positions, d_model), mx.arange(memory), layouts=4 if WHOLE else 2)


@pytest.mark.parametrize("kind", ["sinusoidal", "rotary"])
def test_an_odd_size(kind):
    odd = mx.Dim("d_model", 7)
    with pytest.raises(mx.ArgumentError) as raised:
        if kind == "rotary":
            rotary(numbers(positions, odd), mx.arange(positions), "d_model")
        else:
            sinusoidal(mx.arange(positions), odd)
    assert str(raised.value) == f"{kind} positions need an even size, and d_model has 7.\n  fix: add one to it."
