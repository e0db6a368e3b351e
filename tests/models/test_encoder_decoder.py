"""The model that translates: the same under every layout, packed or alone, with a cache or without."""

import functools
from dataclasses import replace

import equinox as eqx
import jax
import numpy as np
import pytest

import meshax as mx
from extent import some
from meshax.decode import BeamSearch, Engine, Request
from meshax.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from meshax.plan.search.named_layouts import find_layout
from messages import pinned

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
    "sinusoidal, unrolled, not scaled": {
        "positions": "sinusoidal", "layers_as": "unrolled", "attention_scale": 1.0, "keep": "all products",
    },
    "no positions, one head of keys, biases": {"positions": "none", "kv_heads": 1, "biases": "all", "dropout": 0.1},
}  # fmt: skip
LAYOUTS = {
    "data": ("data:2 model:2", "data"),
    "model": ("data:2 model:2", "model"),
    "data+model": ("data:2 model:4", "data+model"),
    "fsdp": ("data:2 model:2", "fsdp"),
    "sequence": ("data:2 model:4", "sequence"),
    "uneven": ("data:2 model:3", "data+model"),
    "ring": ("data:2 model:2", "batch:data length:model positions:model"),
    "memory": ("data:2 model:2", "batch:data memory:model"),
    "width": ("model:4", "d_model:model"),
}
batch, source_length, length = mx.dims(batch=4, source_length=10, length=8)
KEY = jax.random.key(0)
PAIRS = [  # lengths of (source, text) in each row, packed
    [(4, 3), (5, 5)],
    [(10, 6)],
    [(3, 2), (3, 3), (4, 3)],
    [(7, 8)],
]


def examples(pairs=PAIRS, sizes=(10, 8)):
    """Packed pairs; a pair has the tokens that it has in any packing."""
    rows = {name: [] for name in ("inputs", "inputs_segments", "inputs_positions")}
    rows |= {name: [] for name in ("tokens", "targets", "segments", "positions", "weights")}

    def padded(parts, size):
        joined = [value for part in parts for value in part]
        return joined + [0] * (size - len(joined))

    def tokens(count, seed):
        return [2 + (seed * 7 + i * 5 + i * i) % 20 for i in range(count)]

    for row in pairs:
        texts = [[*tokens(text - 1, source * 3 + text), 1] for source, text in row]
        for name, size, which in (("inputs_", sizes[0], 0), ("", sizes[1], 1)):
            rows[f"{name}segments"].append(padded([[i + 1] * pair[which] for i, pair in enumerate(row)], size))
            rows[f"{name}positions"].append(padded([range(pair[which]) for pair in row], size))
        rows["inputs"].append(padded([tokens(source, source + 2 * text) for source, text in row], sizes[0]))
        rows["targets"].append(padded(texts, sizes[1]))
        rows["tokens"].append(padded([[1, *text[:-1]] for text in texts], sizes[1]))
        rows["weights"].append(padded([[1] * len(text) for text in texts], sizes[1]))
    dims = {True: ("source_length", sizes[0]), False: ("length", sizes[1])}
    return {
        name: mx.tensor(
            np.array(values, np.int32), (mx.Dim("batch", len(pairs)), mx.Dim(*dims[name.startswith("inputs")]))
        )
        for name, values in rows.items()
    }


@functools.cache
def model_of(config):
    """A model of numbers that differ from place to place."""
    shapes, treedef = jax.tree.flatten(jax.eval_shape(lambda: EncoderDecoder.init(KEY, config)))
    draw = np.random.default_rng(0)
    return jax.tree.unflatten(treedef, [draw.normal(0.1, 0.3, x.shape).astype(x.dtype) for x in shapes])


def loss(model, batch):
    total, count = model.loss(batch, KEY)
    return total / count


@functools.cache
def trained(config, mesh="x:1", layout="none"):
    """The loss and the gradients of a model on a mesh."""
    place = mx.Mesh(mesh)
    where = find_layout(layout, place, known=config.glossary, sizes=config.sizes())
    value, grads = mx.spmd(mx.value_and_grad(loss), place, where)(model_of(config), examples())
    return float(value), [x.numpy() for x in jax.tree.leaves(grads, is_leaf=lambda x: isinstance(x, mx.Tensor))]


CASES = [f"{variant}: {layout}" for variant in VARIANTS for layout in LAYOUTS]
CHOSEN = [
    "as in the paper: data+model",
    "sinusoidal, unrolled, not scaled: fsdp",
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


def evaluated(config, given):
    return mx.spmd(lambda model, batch: model.loss(batch), mx.Mesh("x:1"), "")(model_of(config), given)


@pytest.mark.parametrize("variant", some(VARIANTS, "as in the paper"))
def test_packed_pairs_lose_what_they_lose_alone(variant):
    config = replace(SMALL, **VARIANTS[variant])
    packed, count = map(float, evaluated(config, examples()))
    alone = sum(float(evaluated(config, examples([[pair]]))[0]) for row in PAIRS for pair in row)
    assert packed == pytest.approx(alone, rel=1e-6) and count == 30


def call(model, given):
    names = ("inputs", "tokens", "inputs_segments", "inputs_positions", "segments", "positions")
    return model(**{name: given[name] for name in names})


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


SOURCES = [(2, 5, 8), (3, 9, 4, 20, 6, 11, 7), (12, 13, 14, 2, 2), (21, 3, 5, 7, 9, 11, 13, 15, 17, 19), (4,)]
REQUESTS = [Request((1,), tokens=6, stop=(1,), source=source) for source in SOURCES]
DECODED = {
    "none": ("x:1", ""),
    "data+model": ("data:2 model:4", "batch:data heads:model d_ff:model vocab:model"),
    "sequence": ("data:2 model:2", "batch:data heads:model d_ff:model vocab:model length:model"),
    "fsdp": ("data:2", mx.Layout("batch:data", params="d_model:data")),
    "memory": ("model:2", "memory:model"),
    "uneven": ("model:3", "heads:model vocab:model"),
}


@functools.cache
def reread(config):
    """Greedy texts by reading everything again for each token, one source at a time, and how near a choice was."""
    run = mx.spmd(lambda model, source, text: model(source, text), mx.Mesh("x:1"), "")
    texts, nearest = [], np.inf
    for source in SOURCES:
        text = [1]
        while len(text) < 7:
            padded = np.array([[*text, *[0] * (7 - len(text))]], np.int32)
            given = mx.tensor(np.array([source], np.int32), "batch source_length"), mx.tensor(padded, "batch length")
            logits = run(model_of(config), *given).numpy()[0, len(text) - 1]
            second, first = np.sort(logits)[-2:]
            nearest = min(nearest, first - second)
            if logits.argmax() == 1:
                break
            text.append(int(logits.argmax()))
        texts.append(text[1:])
    assert nearest > 1e-4
    return texts


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
              rule: a model with an encoder reads a source for each text; a language model reads none.
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
