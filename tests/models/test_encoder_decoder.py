"""The model that translates: the same under every layout, packed or alone, with a cache or without."""

from dataclasses import replace

import equinox as eqx
import jax
import numpy as np
import pytest

import meshax as mx
from extent import some
from meshax.decode import BeamSearch, Engine, Request
from meshax.models.encoder_decoder import EncoderDecoderConfig
from messages import pinned
from packed_pairs import (
    DECODED,
    LAYOUTS,
    PAIRS,
    REQUESTS,
    batch,
    call,
    evaluated,
    examples,
    length,
    model_of,
    reread,
    source_length,
    trained,
)

SMALL = EncoderDecoderConfig(
    d_model=12, heads=4, d_kv=3, d_ff=20, layers=2, vocab=22, positions="learned", max_length=12, dtype="float32",
)  # fmt: skip
VARIANTS = {
    "as in the paper": {
        "dropout": 0.2, "dropout_shared": "length", "label_smoothing": 0.1, "logit_jitter": 0.01, "keep": "everything",
    },
    "tied, relative, deeper encoder": {"tied": True, "positions": "relative", "encoder_layers": 3, "norm": "layer"},
    "rotary, grouped keys, gated": {
        "positions": "rotary", "d_kv": 4, "kv_heads": 2, "gated": True, "activation": "silu", "qk_norm": True,
    },
    "sinusoidal, unrolled, words of their own": {
        "positions": "sinusoidal", "layers_as": "unrolled", "attention_scale": 1.0, "keep": "all products",
        "source_embedding": True,
    },
    "no positions, one head of keys, biases": {"positions": "none", "kv_heads": 1, "biases": "all", "dropout": 0.1},
}  # fmt: skip
CASES = [f"{variant}: {layout}" for variant in VARIANTS for layout in LAYOUTS]
CHOSEN = [
    "as in the paper: data+model",
    "sinusoidal, unrolled, words of their own: fsdp",
]


@pytest.mark.parametrize("case", some(CASES, *CHOSEN))
def test_a_layout_changes_nothing(case):
    variant, layout = case.split(": ")
    config = replace(SMALL, **VARIANTS[variant])
    value, grads = trained(config, *LAYOUTS[layout])
    wanted, wanted_grads = trained(config)
    assert value == pytest.approx(wanted, rel=1e-5) and 2 < value < 20
    for got, expected in zip(grads, wanted_grads, strict=True):
        np.testing.assert_allclose(got, expected, atol=2e-5, rtol=1e-3)
        assert np.isfinite(got).all() and np.abs(got).max() > 0


@pytest.mark.parametrize("variant", some(VARIANTS, "as in the paper"))
def test_packed_pairs_lose_what_they_lose_alone(variant):
    config = replace(SMALL, **VARIANTS[variant])
    packed, count = map(float, evaluated(config, examples()))
    alone = sum(float(evaluated(config, examples([[pair]]))[0]) for row in PAIRS for pair in row)
    assert packed == pytest.approx(alone, rel=1e-6) and count == 30


@pytest.mark.parametrize(("mesh", "layout"), [("x:1", ""), ("x:2", "length:x positions:x"), ("x:2", "memory:x")])
def test_what_is_not_a_number_stays_in_its_segment(mesh, layout):
    """A source of NaN makes NaN of its own text, of all of it, and of no other."""
    model, given = model_of(SMALL), examples()
    poisoned = 2  # the source of the second pair in row 0, and of the only one in row 1
    inputs = given["inputs"].numpy().copy()
    inputs[inputs == 21] = 20
    inputs[0, 4 + poisoned], inputs[1, poisoned] = 21, 21
    tokens = np.minimum(given["tokens"].numpy(), 20)
    given = given | {"inputs": mx.tensor(inputs, (batch, source_length)), "tokens": mx.tensor(tokens, (batch, length))}
    weight = model.embedding.weight.numpy().copy()
    weight[21] = np.nan
    nan = mx.param(mx.tensor(weight, model.embedding.weight.dims))
    model = eqx.tree_at(lambda model: model.embedding.weight, model, nan, is_leaf=lambda x: isinstance(x, mx.Tensor))
    logits = mx.spmd(call, mx.Mesh(mesh), layout)(model, given).numpy()
    is_nan = np.isnan(logits).all(-1)
    assert (np.isnan(logits).any(-1) == is_nan).all()
    wanted = np.zeros((4, 8), bool)
    wanted[0, 3:8] = wanted[1, :6] = True
    np.testing.assert_array_equal(is_nan, wanted)


def test_every_token_of_a_source_is_seen_and_no_later_token_of_the_text():
    model, given = model_of(SMALL), examples()
    run = mx.spmd(call, mx.Mesh("x:1"), "")
    before = run(model, given).numpy()
    for name, place, changed in (("inputs", 9, range(6)), ("inputs", 0, range(6)), ("tokens", 4, (4, 5))):
        values = given[name].numpy().copy()
        values[1, place] = (values[1, place] + 1) % 22
        after = run(model, given | {name: mx.tensor(values, given[name].dims)}).numpy()
        differs = (np.abs(after - before).max(-1) > 1e-6) & (given["weights"].numpy() > 0)
        assert np.argwhere(differs).tolist() == [[1, at] for at in changed]


@pytest.mark.parametrize("layout", some(DECODED, "sequence"))
@pytest.mark.parametrize("variant", some(VARIANTS, "as in the paper"))
def test_the_engine_writes_what_the_whole_model_says(variant, layout):
    """Five sources of different lengths, two at a time."""
    config = replace(SMALL, **VARIANTS[variant])
    engine = Engine(
        model_of(config), mx.Mesh(DECODED[layout][0]), DECODED[layout][1],
        slots=2, places=8, page=4, chunk=3, source_places=10,
    )  # fmt: skip
    assert [written.tokens for written in engine.generate(REQUESTS)] == reread(config)


@pytest.mark.exhaustive
@pytest.mark.parametrize("layout", [name for name in DECODED if name != "none"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_beams_are_the_same_under_every_layout(variant, layout):
    config = replace(SMALL, **VARIANTS[variant])

    def search(mesh, layout):
        options = dict(beams=3, slots=3, places=8, page=4, chunk=3, source_places=10)
        return list(BeamSearch(model_of(config), mx.Mesh(mesh), layout, **options).search(REQUESTS))

    ours, wanted = search(*DECODED[layout]), search(*DECODED["none"])
    assert [[text.tokens for text in texts] for texts in ours] == [[text.tokens for text in texts] for texts in wanted]
    scores = [[text.score for text in texts] for texts in ours], [[text.score for text in texts] for texts in wanted]
    np.testing.assert_allclose(*scores, atol=1e-5)
    assert all(texts[0].score >= text.score for texts in ours for text in texts if text.is_finished)


@pytest.mark.exhaustive
def test_one_beam_is_the_likeliest_token_each_time():
    search = BeamSearch(model_of(SMALL), mx.Mesh("x:1"), "", beams=1, slots=5, places=8, page=4, source_places=10)
    assert [texts[0].tokens for texts in search.search(REQUESTS)] == reread(SMALL)


def test_what_is_kept_of_a_source_has_no_beams():
    model = model_of(SMALL)
    cache = jax.eval_shape(lambda: model.empty_cache((batch, mx.Dim("beam", 5)), 8, 4, 10))
    assert "beam" in [d.name for d in cache.texts.keys.dims]
    assert [d.name for d in cache.sources.keys.dims] == ["layers", "batch", "heads", "memory", "d_kv"]


def engine(**options):
    return Engine(model_of(SMALL), mx.Mesh("x:1"), "", places=8, source_places=4, **options)


test_messages = pinned(
    {
        "no source": (
            mx.ArgumentError,
            lambda: engine().submit(Request((1,), tokens=3)),
            """
            this model writes from a source, and there is none.
              rule: a model that translates reads a source for each text; a language model reads none.
              fix: give the request source=.
            """,
        ),
        "a source that is too long": (
            mx.ArgumentError,
            lambda: engine().submit(Request((1,), tokens=3, source=(2,) * 5)),
            """
            a source of 5 tokens does not fit.
              values: 4 places
              fix: give more source_places, or shorten it.
            """,
        ),
        "a token of the source": (
            mx.ArgumentError,
            lambda: engine().submit(Request((1,), tokens=3, source=(22,))),
            """
            there is no token 22.
              values: 22 tokens
              fix: encode with its vocabulary.
            """,
        ),
    }
)
