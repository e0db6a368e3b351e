"""Positions: sinusoids, rotations that depend on distances alone, buckets of distances."""

import jax
import numpy as np
import pytest

import meshax as mx
from example_tensors import numbers
from extent import WHOLE, some
from meshax import nn
from meshax.nn.positions import RelativeBias, Rotation, rotary, sinusoidal
from meshax.testing import layout_invariance
from messages import pinned

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


def scaled_frequencies(kind, theta, factor, original, length, pairs):
    """The published definitions, pair by pair."""
    plain = [theta ** (-i / pairs) for i in range(pairs)]
    if kind == "linear":
        return [f / factor for f in plain]
    if kind == "dynamic":
        longer = (factor * max(length, original) / original - (factor - 1)) ** (2 * pairs / (2 * pairs - 2))
        return [(theta * longer) ** (-i / pairs) for i in range(pairs)]
    if kind == "llama3":
        wanted = []
        for f in plain:
            wavelength = 2 * np.pi / f
            smooth = (original / wavelength - 1) / (4 - 1)
            between = (1 - smooth) * f / factor + smooth * f
            wanted.append(f if wavelength < original / 4 else f / factor if wavelength > original else between)
        return wanted
    place = [2 * pairs * np.log(original / (beta * 2 * np.pi)) / (2 * np.log(theta)) for beta in (32, 1)]
    low, high = max(np.floor(place[0]), 0), min(np.ceil(place[1]), 2 * pairs - 1)
    ramp = [min(max((i - low) / (high - low), 0), 1) for i in range(pairs)]
    return [f / factor * r + f * (1 - r) for f, r in zip(plain, ramp, strict=True)]


@pytest.mark.parametrize("kind", ["linear", "dynamic", "yarn", "llama3"])
@pytest.mark.parametrize("length", [20, 300])
def test_scalings_are_as_published(kind, length):
    rotation = Rotation(500.0, kind, factor=4.0, original=64)
    got = rotation.frequencies(mx.Dim("d_kv", 16), length).numpy()
    wanted = scaled_frequencies(kind, 500.0, 4.0, 64, length, 16)
    np.testing.assert_allclose(got, wanted, rtol=1e-5)
    assert rotation.stretch == (pytest.approx(0.1 * np.log(4) + 1) if kind == "yarn" else 1)
    turned = rotary(numbers(positions, d_model), mx.arange(positions), "d_model", rotation).numpy()
    norms = np.linalg.norm(numbers(positions, d_model).numpy(), axis=1)
    np.testing.assert_allclose(np.linalg.norm(turned, axis=1), norms * rotation.stretch, rtol=1e-5)


test_messages = pinned(
    {
        "scaling": (
            mx.ArgumentError,
            lambda: Rotation(scaling="yarnn"),
            """
            there is no scaling 'yarnn' of rotations.
              fix: did you mean "yarn"?
            """,
        ),
        "factor": (
            mx.ArgumentError,
            lambda: Rotation(scaling="linear", factor=0.5),
            """
            rotations have a base above 1, and a factor of at least 1.
              values: theta 10000.0, factor 0.5
              fix: for example theta 10000 and factor 1.
            """,
        ),
        "length": (
            mx.ArgumentError,
            lambda: Rotation(scaling="llama3", factor=8.0),
            """
            rotations scaled by 'llama3' start from a length, and there is none.
              fix: give the length that the model was trained for.
            """,
        ),
    }
)


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


@pytest.mark.parametrize(
    "kind", some(["sinusoidal", "rotary", "yarn", "llama3", "relative"], "rotary", "yarn", "relative")
)
def test_every_layout_gives_the_same(kind):
    bias = RelativeBias.init(KEY, (heads,))

    def fn(bias, x, keys):
        at = mx.arange(positions)
        if kind == "relative":
            return bias(at, keys)
        scaled = Rotation(50.0, kind, 4.0, 8) if kind in ("yarn", "llama3") else None
        return sinusoidal(at, d_model) + x if kind == "sinusoidal" else rotary(x, at, "d_model", scaled)

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
