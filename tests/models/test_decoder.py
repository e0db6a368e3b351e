"""The language model in all its variants: finite, equal under a layout of two axes, whatever is kept for the backward pass."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from messages import pinned

import meshax as mx
from meshax.models.decoder import KEEP, Decoder, DecoderConfig, fit_memory, parameter_count
from meshax.plan.named_layouts import find_layout

SMALL = DecoderConfig(d_model=16, heads=4, d_kv=4, d_ff=24, layers=2, vocab=20, max_length=8, dtype="float32")
VARIANTS = {
    "plain": {},
    "layer norm": {"norm": "layer"},
    "tied": {"tied": True},
    "gated": {"gated": True, "activation": "silu"},
    "rotary": {"positions": "rotary"},
    "learned": {"positions": "learned"},
    "relative": {"positions": "relative"},
    "no positions": {"positions": "none"},
    "grouped keys": {"kv_heads": 2, "positions": "rotary"},
    "one head of keys": {"kv_heads": 1, "positions": "relative"},
    "window": {"window": 3},
    "dropout": {"dropout": 0.2, "label_smoothing": 0.1, "z_loss": 1e-3},
}
batch, length = mx.dims(batch=4, length=8)
KEY = jax.random.key(0)


def examples():
    tokens = np.arange(32).reshape(4, 8) * 7 % 20
    segments = np.array([[1] * 8, [1] * 3 + [2] * 5, [1] * 8, [1] * 5 + [0] * 3])
    positions = np.array([range(8), [0, 1, 2, 0, 1, 2, 3, 4], range(8), [0, 1, 2, 3, 4, 0, 0, 0]])
    arrays = dict(tokens=tokens, targets=(tokens + 7) % 20, segments=segments, positions=positions, weights=segments > 0)
    return {name: mx.tensor(array.astype(np.int32), (batch, length)) for name, array in arrays.items()}


def loss(model, batch):
    total, count = model.loss(batch, KEY)
    return total / count


def leaves(tree):
    return [x.numpy() for x in jax.tree.leaves(tree, is_leaf=lambda leaf: isinstance(leaf, mx.Tensor))]


def split(config, model, layout="data+model"):
    config.dims()
    mesh = mx.Mesh("data:2 model:4")
    return mx.spmd(mx.value_and_grad(loss), mesh, find_layout(layout, mesh))(model, examples())


@pytest.mark.parametrize("name", VARIANTS)
def test_variants(name):
    config = replace(SMALL, **VARIANTS[name])
    model = Decoder.init(KEY, config)
    value, grads = split(config, model)
    wanted, wanted_grads = mx.value_and_grad(loss)(model, examples())
    assert float(value) == pytest.approx(float(wanted), rel=1e-5) and 2 < float(value) < 6
    for got, expected in zip(leaves(grads), leaves(wanted_grads), strict=True):
        np.testing.assert_allclose(got, expected, atol=2e-5, rtol=1e-3)
        assert np.isfinite(got).all() and np.abs(got).max() > 0


def test_every_layer_has_a_relative_bias_of_its_own():
    model = Decoder.init(KEY, replace(SMALL, positions="relative"))
    weight = model.layers.attention.relative.weight
    assert [d.name for d in weight.dims] == ["layers", "distances", "heads"]
    assert not np.allclose(weight.numpy()[0], weight.numpy()[1])


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "learned", "relative"])
def test_positions_matter_and_the_future_does_not(positions):
    model = Decoder.init(KEY, replace(SMALL, positions=positions))
    tokens = mx.tensor(np.arange(8)[None] % 20, (mx.Dim("batch", 1), length))
    changed = mx.tensor(np.array([[0, 1, 2, 3, 4, 9, 9, 9]]), (mx.Dim("batch", 1), length))
    swapped = mx.tensor(np.array([[1, 0, 2, 3, 4, 5, 6, 7]]), (mx.Dim("batch", 1), length))
    out = model(tokens).numpy()[0]
    np.testing.assert_allclose(model(changed).numpy()[0, :5], out[:5], atol=1e-5)
    assert np.abs(model(swapped).numpy()[0, 7] - out[7]).max() > 1e-4


def test_packed_documents_are_alone():
    """The second document of an example has the loss that it has in an example of its own."""
    model = Decoder.init(KEY, replace(SMALL, positions="rotary"))
    given = examples()
    packed = model(given["tokens"], given["segments"], given["positions"]).numpy()[1, 3:]
    alone = mx.tensor(given["tokens"].numpy()[1:2, 3:], (mx.Dim("batch", 1), mx.Dim("length", 5)))
    np.testing.assert_allclose(model(alone).numpy()[0], packed, atol=1e-5)


@pytest.mark.parametrize("keep", [name for name in KEEP if name != "nothing"])
def test_what_is_kept_changes_nothing(keep):
    model = Decoder.init(KEY, SMALL)
    value, grads = split(SMALL, model)
    other = replace(SMALL, keep=keep)
    kept, kept_grads = split(other, Decoder.init(KEY, other))
    assert float(kept) == pytest.approx(float(value), rel=1e-6)
    for got, expected in zip(leaves(kept_grads), leaves(grads), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-6, rtol=1e-4)


def test_without_a_key_the_loss_is_the_plain_one():
    config = replace(SMALL, **VARIANTS["dropout"])
    model = Decoder.init(KEY, config)
    plain = Decoder.init(KEY, SMALL)
    assert float(model.loss(examples())[0]) == float(plain.loss(examples())[0]) < float(model.loss(examples(), KEY)[0])


def test_the_most_that_fits_is_kept():
    needs = dict(zip(KEEP, (1, 2, 3, 4, 5), strict=True))
    chosen = [fit_memory(SMALL, lambda config: needs[config.keep], limit).keep for limit in (0.5, 1, 3.5, 9)]
    assert chosen == ["nothing", "nothing", "products", "everything"]


def test_parameters_are_counted_without_making_them():
    model = Decoder.init(KEY, SMALL)
    assert parameter_count(SMALL) == sum(leaf.size for leaf in leaves(model))


test_messages = pinned(
    {
        "positions": (
            mx.ArgumentError,
            lambda: replace(SMALL, positions="rotatory"),
            """
            there is no positions 'rotatory'.
              fix: did you mean "rotary"?
            """,
        ),
        "norm": (
            mx.ArgumentError,
            lambda: replace(SMALL, norm="batch"),
            """
            there is no norm 'batch'.
              fix: known names: layer, rms.
            """,
        ),
        "activation": (
            mx.ArgumentError,
            lambda: replace(SMALL, activation="gello"),
            """
            there is no activation 'gello'.
              fix: did you mean "gelu"?
            """,
        ),
        "longer than what was learned": (
            mx.ArgumentError,
            lambda: Decoder.init(KEY, replace(SMALL, positions="learned", max_length=4)).loss(examples()),
            """
            there are 4 learned positions, for 8 tokens.
              fix: choose a greater max_length, or shorter examples.
            """,
        ),
    }
)
