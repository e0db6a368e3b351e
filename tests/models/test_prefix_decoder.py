"""The language model with a prefix: the same under every layout, packed or alone, with a cache or without."""

from dataclasses import replace

import equinox as eqx
import jax
import numpy as np
import pytest

import meshax as mx
from extent import some
from meshax.decode import BeamSearch, Engine, Request
from meshax.models.prefix_decoder import PrefixDecoderConfig
from meshax.tensors import is_tensor
from messages import pinned
from packed_pairs import DECODED, LAYOUTS, PAIRS, REQUESTS, call, evaluated, examples, model_of, reread, trained

SMALL = PrefixDecoderConfig(
    d_model=12, heads=4, d_kv=3, d_ff=20, layers=2, vocab=22, positions="learned", max_length=20, dtype="float32",
)  # fmt: skip
VARIANTS = {
    "learned, dropout": {"dropout": 0.2, "dropout_shared": "length", "logit_jitter": 0.01, "keep": "everything"},
    "rotary, grouped keys, window": {"positions": "rotary", "d_kv": 4, "kv_heads": 2, "gated": True, "window": 3},
    "relative, unrolled, words of their own": {
        "positions": "relative", "layers_as": "unrolled", "source_embedding": True, "tied": True,
    },
    "sinusoidal, one head of keys": {"positions": "sinusoidal", "kv_heads": 1, "biases": "all", "qk_norm": True},
}  # fmt: skip
CASES = [f"{variant}: {layout}" for variant in VARIANTS for layout in LAYOUTS]
CHOSEN = ("rotary, grouped keys, window: ring",)


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


@pytest.mark.parametrize("variant", some(VARIANTS, "rotary, grouped keys, window"))
def test_packed_pairs_lose_what_they_lose_alone(variant):
    config = replace(SMALL, **VARIANTS[variant])
    packed, count = map(float, evaluated(config, examples()))
    alone = sum(float(evaluated(config, examples([[pair]]))[0]) for row in PAIRS for pair in row)
    assert packed == pytest.approx(alone, rel=1e-6) and count == 30


def test_64_bits_change_nothing():
    wanted = list(map(float, evaluated(SMALL, examples())))
    with jax.enable_x64(True):
        assert list(map(float, evaluated(SMALL, examples()))) == pytest.approx(wanted, rel=1e-6)


def test_all_of_a_prefix_is_seen_and_no_later_token_of_the_text():
    """Also by the other tokens of the prefix: what the last one says reaches the first, and through it the text."""
    config = replace(SMALL, layers=1, positions="sinusoidal")
    model, given = model_of(config), examples()
    run = mx.spmd(call, mx.Mesh("x:1"), "")
    before = run(model, given).numpy()
    for name, place, changed in (("inputs", 9, range(6)), ("inputs", 0, range(6)), ("tokens", 4, (4, 5))):
        values = given[name].numpy().copy()
        values[1, place] = (values[1, place] + 1) % 22
        after = run(model, given | {name: mx.tensor(values, given[name].dims)}).numpy()
        differs = (np.abs(after - before).max(-1) > 1e-6) & (given["weights"].numpy() > 0)
        assert np.argwhere(differs).tolist() == [[1, at] for at in changed]


def test_a_prefix_is_read_both_ways():
    """A first token that sees no later one would be the same whatever these are."""
    attention = model_of(replace(SMALL, layers_as="unrolled")).layers[0].attention
    draw = np.random.default_rng(1)
    x = draw.normal(size=(3, 6, 12)).astype(np.float32)
    changed = x.copy()
    changed[:, 3] += 1
    run = mx.spmd(lambda layer, x: layer(x, prefix=4), mx.Mesh("x:1"), "")
    outs = [run(attention, mx.tensor(one, "rows positions d_model")).numpy() for one in (x, changed)]
    assert (np.abs(outs[0] - outs[1]).max((0, 2)) > 1e-6).all()
    changed = x.copy()
    changed[:, 4] += 1
    after = run(attention, mx.tensor(changed, "rows positions d_model")).numpy()
    assert (np.abs(outs[0] - after).max((0, 2)) > 1e-6).tolist() == [False] * 4 + [True] * 2


@pytest.mark.parametrize("layout", some(["", "length:x positions:x"], ""))
def test_what_is_not_a_number_stays_in_its_segment(layout):
    """A source of NaN makes NaN of its own text, of all of it, and of no other."""
    model, given = model_of(replace(SMALL, source_embedding=True)), examples()
    inputs = np.minimum(given["inputs"].numpy(), 20)
    inputs[0, 6], inputs[1, 2] = 21, 21  # the source of the second pair in row 0, and of the only one in row 1
    given = given | {"inputs": mx.tensor(inputs, given["inputs"].dims)}
    weight = model.source_embedding.weight.numpy().copy()
    weight[21] = np.nan
    nan = mx.param(mx.tensor(weight, model.embedding.weight.dims))
    model = eqx.tree_at(lambda model: model.source_embedding.weight, model, nan, is_leaf=is_tensor)
    logits = mx.spmd(call, mx.Mesh("x:2"), layout)(model, given).numpy()
    is_nan = np.isnan(logits).all(-1)
    assert (np.isnan(logits).any(-1) == is_nan).all()
    wanted = np.zeros((4, 8), bool)
    wanted[0, 3:8] = wanted[1, :6] = True
    np.testing.assert_array_equal(is_nan, wanted)


DECODINGS = [f"{variant}: {layout}" for variant in VARIANTS for layout in DECODED]


@pytest.mark.parametrize("case", some(DECODINGS, "relative, unrolled, words of their own: memory"))
def test_the_engine_writes_what_the_whole_model_says(case):
    """Five sources of different lengths, two at a time."""
    variant, layout = case.split(": ")
    config = replace(SMALL, **VARIANTS[variant])
    engine = Engine(
        model_of(config), mx.Mesh(DECODED[layout][0]), DECODED[layout][1],
        slots=2, places=8, page=4, chunk=3, source_places=10,
    )  # fmt: skip
    assert [written.tokens for written in engine.generate(REQUESTS)] == reread(config)


@pytest.mark.exhaustive
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_text_that_has_begun_goes_on_as_it_would(variant):
    """The beginning is read with its source, not written token by token."""
    config = replace(SMALL, **VARIANTS[variant])
    engine = Engine(model_of(config), mx.Mesh("x:1"), "", slots=2, places=8, page=4, chunk=3, source_places=10)
    texts = [text for text in reread(config) if len(text) > 3]
    assert texts
    sources = [one.source for one, text in zip(REQUESTS, reread(config), strict=True) if len(text) > 3]
    requests = [
        Request((1, *text[:3]), tokens=3, stop=(1,), source=source) for source, text in zip(sources, texts, strict=True)
    ]
    assert [written.tokens for written in engine.generate(requests)] == [text[3:] for text in texts]


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


def test_what_is_kept_of_a_prefix_has_no_beams():
    model = model_of(SMALL)
    cache = jax.eval_shape(lambda: model.empty_cache(mx.dims(batch=4, beam=5), 8, 4, 10))
    assert "beam" in [d.name for d in cache.texts.keys.dims]
    assert [d.name for d in cache.sources.keys.dims] == ["layers", "batch", "heads", "memory", "d_kv"]


test_messages = pinned(
    {
        "more tokens than positions": (
            mx.ArgumentError,
            lambda: Engine(model_of(SMALL), mx.Mesh("x:1"), "", places=11, source_places=10).submit(REQUESTS[0]),
            """
            there are 20 learned positions, for 21 tokens.
              fix: choose a greater max_length, or shorter examples.
            """,
        ),
    }
)
