"""The cache: with it a model says what it says without it, under every layout, and nothing of its size is copied."""

import jax
import numpy as np
import pytest

import meshax as mx
from extent import some
from meshax.errors import ArgumentError
from meshax.models.decoder import Decoder, DecoderConfig
from meshax.nn.cache import KeyValues, Stepping, positions_held

SIZES = dict(d_model=16, heads=4, d_kv=6, d_ff=20, layers=3, vocab=21, dtype="float32")
KINDS = {
    "rotary": dict(positions="rotary"),
    "grouped": dict(positions="rotary", kv_heads=2, layers_as="unrolled"),
    "single": dict(positions="relative", kv_heads=1),
    "window": dict(positions="sinusoidal", window=3),
    "window, unrolled": dict(positions="learned", window=6, kv_heads=2, layers_as="unrolled"),
    "learned": dict(positions="learned", tied=True, norm="layer", layers_as="unrolled"),
}
HEADS = "d_ff:model vocab:model heads:model"
LAYOUTS = {
    "none": ("x:1", ""),
    "batch": ("data:4", "batch:data"),
    "heads": ("data:2 model:4", HEADS),
    "groups": ("data:2 model:2", "batch:data kv_heads:model d_ff:model vocab:model"),
    "uneven": ("model:3", HEADS),
    "memory": ("data:2 model:4", "batch:data memory:model"),
    "heads and memory": ("model:2 more:3", "heads:model memory:more d_ff:model+more"),
    "width": ("model:4", "d_model:model"),
    "stored": ("data:4", mx.Layout("batch:data", params="d_model:data")),
    "sequence": ("data:2 model:2", "batch:data length:model"),
    "ring": ("model:2", "length:model positions:model"),
}
BATCH, LENGTH, BUCKET, STEPS, PAGE = 3, 13, 6, 7, 4
batch, d_kv = mx.dims(batch=BATCH, d_kv=6)
LENGTHS = np.array([1, 5, 0], np.int32)
TOKENS = np.random.RandomState(0).randint(0, 21, (BATCH, LENGTH)).astype(np.int32)
HERE = LENGTHS[:, None] + np.arange(STEPS)


def decode(model, tokens, lengths, inputs):
    """Beginnings of different lengths at once, then one token after the other: the logits of each."""
    cache = model.prefill(tokens, lengths, model.empty_cache((batch,), LENGTH, PAGE))

    def step(carry, token):
        cache, at = carry
        logits, cache = model.step(token, at, cache, 3)
        return (cache, at + 1), logits

    return mx.scan(step, (cache, lengths), inputs, over="steps")[1]


def arguments():
    inputs = np.take_along_axis(TOKENS, HERE, 1).T
    named = ((TOKENS[:, :BUCKET], "batch length"), (LENGTHS, "batch"), (inputs, "steps batch"))
    return [mx.tensor(array, dims) for array, dims in named]


def make(kind, max_length=LENGTH):
    return Decoder.init(jax.random.key(0), DecoderConfig(**SIZES, **KINDS[kind], max_length=max_length))


@pytest.fixture(scope="module")
def without_cache():
    known = {}

    def logits(kind):
        if kind not in known:
            program = mx.spmd(lambda model, tokens: model(tokens), mx.Mesh("x:1"), "")
            whole = program(make(kind), mx.tensor(TOKENS, "batch length")).numpy()
            known[kind] = np.take_along_axis(whole, HERE[..., None], 1).transpose(1, 0, 2)
        return known[kind]

    return logits


EVERY = [(kind, layout) for kind in KINDS for layout in LAYOUTS]


@pytest.mark.parametrize("case", some(EVERY, ("window, unrolled", "heads and memory")))
def test_with_the_cache_equals_without_it(case, without_cache):
    kind, layout = case
    mesh, rules = LAYOUTS[layout]
    cached = mx.spmd(decode, mx.Mesh(mesh), rules)(make(kind), *arguments()).numpy()
    np.testing.assert_allclose(cached, without_cache(kind), atol=1e-5)
    np.testing.assert_array_equal(cached.argmax(-1), without_cache(kind).argmax(-1))


def test_only_the_window_is_kept():
    cache = jax.eval_shape(lambda: make("window").empty_cache((batch,), 100, 2))
    assert cache.keys.dims == mx.dims("layers:3 batch:3 heads:4 pages:2 memory:2 d_kv:6")
    cache = jax.eval_shape(lambda: make("window, unrolled", 100).empty_cache((batch,), 100, 4))
    assert len(cache) == 3 and cache[0].values.dims == mx.dims("batch:3 kv_heads:2 pages:2 memory:4 d_kv:6")


def test_no_cache_is_longer_than_there_are_positions():
    with pytest.raises(ArgumentError, match=r"^there are 13 learned positions, for 14 tokens\."):
        jax.eval_shape(lambda: make("learned").empty_cache((batch,), 14, 4))


def test_positions_held():
    keys = KeyValues.empty((batch,), (), mx.Dim("d_kv", 2), 5, 3, "float32").keys
    held = positions_held(keys, mx.tensor([-1, 2, 7], "batch")).numpy().reshape(3, 6)
    np.testing.assert_array_equal(held[1:], [[0, 1, 2, -3, -2, -1], [6, 7, 2, 3, 4, 5]])
    assert (held[0] < 0).all()


def test_what_later_pages_hold_is_not_read():
    def step(q, k, v, at):
        empty = KeyValues.empty((batch,), (), d_kv, 12, 4, "float32")
        nowhere = mx.where(mx.arange(empty.keys.dim("pages")) >= 1, np.nan, 0.5)
        store = KeyValues(*(x + nowhere for x in (empty.keys, empty.values)))
        return Stepping(store, at, 1).attend(q, k, v, at, d_kv="d_kv", window=None, bias=None)

    draw = np.random.RandomState(0).normal
    operands = [mx.tensor(draw(size=(3, 1, 6)).astype(np.float32), "batch positions d_kv") for _ in range(3)]
    mixed, kept = mx.spmd(step, mx.Mesh("x:1"), "")(*operands, mx.tensor([3, 0, 1], "batch"))
    assert np.isfinite(mixed.numpy()).all()
    assert np.isfinite(kept.keys.numpy()[:, 0]).all() and np.isnan(kept.keys.numpy()[:, 1:]).all()


@pytest.mark.parametrize("kind", some(["rotary", "grouped"], "grouped"))
@pytest.mark.parametrize("layout", some(["none", "alone", "heads", "memory"], "none"))
def test_nothing_of_its_size_is_copied(kind, layout):
    """The donated cache is updated where it is, by several steps of one program."""
    mesh, rules = LAYOUTS["none" if layout == "alone" else layout]
    slots = (mx.Dim("batch", 1 if layout == "alone" else 2),)

    def steps(model, cache, token, at):
        def step(carry, _):
            cache, token, at = carry
            logits, cache = model.step(token, at, cache, 1024)
            return (cache, mx.argmax(logits, "vocab"), at + 1), token

        return mx.scan(step, (cache, token, at), over=mx.Dim("steps", 3))

    model = Decoder.init(jax.random.key(0), DecoderConfig(**SIZES | {"d_kv": 48} | KINDS[kind]))
    cache = jax.eval_shape(lambda: model.empty_cache(slots, 4096, 512))
    number = mx.tensor(np.zeros(slots[0].size, np.int32), slots)
    program = mx.spmd(steps, mx.Mesh(mesh), rules, donate=1)
    memory = program.compile(model, cache, number, number).memory_analysis()
    one_tensor = 2 * (4 if kind == "rotary" else 2) * 4096 * 48 * 4  # the keys of a layer
    one_tensor //= {"none": 1, "alone": 2, "heads": 1 if kind == "grouped" else 4, "memory": 2 * 4}[layout]
    assert memory.alias_size_in_bytes >= 6 * one_tensor
    # one layer of a stack is taken out at a time; a layer of its own stays where it is
    assert memory.temp_size_in_bytes < one_tensor * (2.5 if kind == "rotary" else 0.5)
