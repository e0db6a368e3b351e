"""The kernel of a decoding step equals attention in float64 to what is kept, and keeps the token; where it is called.

It is written for Hopper GPUs; without one Pallas's interpreter runs it.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshax as mx
from extent import some
from meshax.models.decoder import DecoderConfig
from meshax.nn import step_attention
from meshax.nn.step_attention import kernel
from meshax.nn.step_attention.kernel import Tiling, takes, tiling
from meshax.plan.explain.report import explain

interpreted = functools.partial(kernel.step_attention, interpret=True)
deprecated = pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")


def in_float64(asked, keys, values, at, window, scale):
    """What is visible is told by position, not by place."""
    asked, keys, values = (np.array(x, np.float64) for x in (asked, keys, values))
    places = keys.shape[2]
    mixed = np.zeros((*keys.shape[:2], asked.shape[1] - 2, keys.shape[3]))
    for text, newest in enumerate(np.asarray(at)):
        keys[text, :, newest % places], values[text, :, newest % places] = asked[text, -2], asked[text, -1]
        first = max(0, newest - (places if window is None else min(window, places)) + 1)
        seen = np.arange(first, newest + 1) % places
        scores = np.einsum("qhd,hpd->hqp", asked[text, :-2], keys[text][:, seen]) * scale
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        mixed[text] = np.einsum("hqp,hpd->hqd", weights, values[text][:, seen])
    return mixed, keys, values


def drawn(seed, texts, queries, heads, places, d, dtype="bfloat16"):
    draw = np.random.default_rng(seed)
    shapes = (texts, queries + 2, heads, d), (texts, heads, places, d), (texts, heads, places, d)
    return [jnp.asarray(draw.normal(size=shape), dtype) for shape in shapes]


def random_cases(count):
    draw = np.random.default_rng(1)
    for seed in range(count):
        queries, places = int(draw.choice((1, 1, 2, 3, 4, 7, 20))), 16 * int(draw.integers(1, 12))
        texts, d = int(draw.integers(1, 4)), int(draw.choice((16, 64, 128, 256)))
        at = tuple(int(n) for n in draw.integers(0, draw.choice((places, 3 * places)), texts))
        window = None if draw.integers(2) else int(draw.integers(1, places + 9))
        parts = int(draw.choice((1, 2, 4, 8)))
        sizes = (seed, texts, queries, int(draw.integers(1, 4)), places, d, str(draw.choice(("bfloat16", "float16"))))
        yield sizes, at, window, Tiling(parts, 16)


OFTEN = [
    ((0, 3, 1, 2, 64, 32), (0, 5, 63), None, None),
    ((1, 2, 1, 3, 48, 16), (100, 47), 20, Tiling(2, 16)),
    ((2, 2, 3, 2, 48, 64), (130, 20), None, Tiling(4, 16)),
]


def check(case, attend):
    sizes, at, window, tiles = case
    asked, keys, values = drawn(*sizes)
    scale, newest = 0.7 * sizes[5] ** -0.5, jnp.asarray(at, jnp.int32)
    how = dict(read=sizes[4], window=window, scale=scale, tiles=tiles)
    got = jax.jit(functools.partial(attend, **how))(asked, keys, values, newest)
    for result, right in zip(got, in_float64(asked, keys, values, at, window, scale), strict=True):
        assert result.dtype == asked.dtype
        np.testing.assert_allclose(np.asarray(result, np.float64), right, atol=0.01 * np.abs(right).max())


@pytest.mark.parametrize("case", some([*OFTEN, *random_cases(60)], *OFTEN), ids=str)
def test_equals_attention_in_float64(case):
    check(case, interpreted)


LARGE = [
    ((3, 8, 1, 64, 1088, 256), (1087, 1056, 0, 17, 500, 64, 1000, 2000), None, None),
    ((4, 1, 1, 64, 1088, 256), (1056,), None, None),
    ((5, 2, 4, 8, 1024, 64), (1023, 700), None, None),
    ((6, 2, 8, 4, 2048, 128), (5000, 2047), 1000, None),
]


@deprecated
@pytest.mark.gpu
@pytest.mark.parametrize("case", [*OFTEN, *LARGE, *random_cases(20)], ids=str)
def test_equals_attention_in_float64_on_a_gpu(case):
    check(case, kernel.step_attention)


def test_what_is_not_read_or_seen_may_be_anything():
    """Places that hold nothing yet, and those of an earlier text, have what was there."""
    asked, keys, values = drawn(0, 2, 1, 2, 96, 32)
    at = np.array([3, 20])
    expected = in_float64(asked, keys, values, at, None, 1.0)[0]
    stale = np.arange(96)[None, :] > at[:, None]
    keys, values = (jnp.where(stale[:, None, :, None], jnp.nan, x) for x in (keys, values))
    mixed, kept, _ = interpreted(asked, keys, values, jnp.asarray(at), read=32, window=None, scale=1.0)
    np.testing.assert_allclose(np.asarray(mixed, np.float64), expected, atol=0.02)
    np.testing.assert_array_equal(jnp.isnan(kept), jnp.isnan(keys))


def test_a_position_that_is_padding_changes_no_other_text():
    asked, keys, values = drawn(0, 3, 1, 2, 32, 16)
    kept = interpreted(asked, keys, values, jnp.asarray([4, -7, 9]), read=32, window=None, scale=1.0)[1:]
    for before, after in zip((keys, values), kept, strict=True):
        changed = {tuple(place) for place in np.argwhere((before != after).any(-1)).tolist()}
        assert {(text, place) for text, _, place in changed if text != 1} == {(0, 4), (2, 9)}


@pytest.mark.parametrize(("texts", "read"), [(64, 1088), (512, 1088), (8, 1024), (1, 16), (3, 48)])
def test_work_is_dealt_out_in_powers_of_two_and_whole_blocks(texts, read):
    tiles = tiling(texts, read, 64)
    assert read % tiles.block == 0 and tiles.parts & (tiles.parts - 1) == 0
    assert tiles.parts <= max(1, read // 64)


@pytest.mark.parametrize(
    ("sizes", "tiles"),
    [
        ((64, 1088, 256), Tiling(4, 32, warps=2)),
        ((256, 1088, 256), Tiling(1, 32, warps=2)),
        ((512, 1088, 256), Tiling(2, 32, warps=2)),
        ((8, 1088, 64), Tiling(16, 32)),
    ],
)
def test_work_is_dealt_out_as_it_was_measured(sizes, tiles):
    assert tiling(*sizes) == tiles


def test_which_sizes_it_takes():
    assert takes(64, 128, jnp.bfloat16) and takes(16, 16, jnp.float16)
    assert not takes(64, 96, jnp.bfloat16)
    assert not takes(64, 512, jnp.bfloat16)
    assert not takes(24, 64, jnp.bfloat16)
    assert not takes(64, 64, jnp.float32)


def by_hand(asked, keys, values, at, *, read, window, scale):
    """What the kernel gives, in JAX: its interpreter knows no mesh."""
    places = keys.shape[2]
    texts, place = jnp.arange(len(at)), jnp.arange(places)
    keys, values = (x.at[texts, :, at % places].set(asked[:, n]) for x, n in ((keys, -2), (values, -1)))
    back = (at[:, None] - place) % places
    seen = (back <= at[:, None]) & (back < (window or places)) & (place < read)
    scores = jnp.einsum("tqhd,thpd->thqp", asked[:, :-2], keys).astype(jnp.float32) * scale
    weights = jax.nn.softmax(jnp.where(seen[:, None, None], scores, -jnp.inf))
    return jnp.einsum("thqp,thpd->thqd", weights.astype(values.dtype), values), keys, values


SIZES = dict(d_model=16, heads=4, d_kv=16, d_ff=20, layers=2, vocab=21, layers_as="unrolled", dtype="bfloat16")
KINDS = {
    "plain": dict(positions="sinusoidal"),
    "grouped": dict(positions="rotary", kv_heads=2),
    "single": dict(positions="rotary", kv_heads=1),
    "window": dict(positions="sinusoidal", window=20),
}
LAYOUTS = {
    "none": ("x:1", ""),
    "batch": ("data:2", "batch:data"),
    "heads": ("data:2 model:2", "batch:data heads:model d_ff:model vocab:model"),
    "groups": ("model:2", "kv_heads:model d_ff:model"),
    "uneven": ("model:3", "heads:model"),
    "memory": ("model:2", "memory:model"),
}
batch = mx.Dim("batch", 3)
PLACES, PAGE, STEPS = 32, 16, 5


def written(kind, mesh, layout):
    """The logits of a few tokens after one another, each text from a position of its own, beyond all places too."""
    config = DecoderConfig(**SIZES, **KINDS[kind])

    def run(model, tokens, at):
        def step(carry, token):
            cache, at = carry
            logits, cache = model.step(token, at, cache, PLACES // PAGE)
            return (cache, at + 1), logits.astype(jnp.float32)

        cache = model.empty_cache((batch,), PLACES, PAGE)
        return mx.scan(step, (cache, at), tokens, over="steps")[1]

    tokens = mx.tensor(np.arange(STEPS * 3).reshape(STEPS, 3) % 21, "steps batch")
    model = config.make(jax.random.key(0)).narrowed()
    arguments = model, tokens, mx.tensor(np.array([0, 13, 30], np.int32), "batch")
    return mx.spmd(run, mx.Mesh(mesh), layout), arguments


@pytest.mark.parametrize(
    "case", some(itertools.product(KINDS, LAYOUTS), ("plain", "heads"), ("grouped", "groups")), ids=str
)
def test_a_model_says_the_same_with_it(monkeypatch, case):
    kind, layout = case
    program, arguments = written(kind, "x:1", "")
    expected = program(*arguments).numpy()
    called = []

    def counted(*args, **options):
        called.append(options)
        return by_hand(*args, **options)

    monkeypatch.setattr(step_attention, "on_hopper", lambda: True)
    monkeypatch.setattr(kernel, "step_attention", counted)
    mesh, rules = LAYOUTS[layout]
    program, arguments = written(kind, mesh, rules)
    got = program(*arguments).numpy()
    shares_keys = kind in ("grouped", "single")  # the heads that share them are not to be split, nor are places
    assert bool(called) is not ("memory" in rules or ("heads:model" in rules.split() and shares_keys))
    np.testing.assert_allclose(got, expected, atol=0.03 * np.abs(expected).max())


@deprecated
@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_says_the_same_with_it_on_a_gpu(monkeypatch, kind):
    said = []
    for is_hopper in (True, False):
        monkeypatch.setattr(step_attention, "on_hopper", lambda is_hopper=is_hopper: is_hopper)
        program, arguments = written(kind, "x:1", "")
        said.append(program(*arguments).numpy())
        assert ('custom_call_target="__gpu$xla.gpu.triton"' in program.compile(*arguments).as_text()) is is_hopper
    np.testing.assert_allclose(*said, atol=0.03 * np.abs(said[1]).max())


@pytest.mark.parametrize("layout", ["", "batch:data heads:model d_ff:model vocab:model"])
def test_a_step_calls_it_and_moves_what_is_kept_once(monkeypatch, layout):
    """Types over the mesh are right, or JAX would refuse; the plan knows that the cache stays where it is."""
    monkeypatch.setattr(mx.Mesh, "platform", "gpu")
    monkeypatch.setattr(mx.Mesh, "device_kind", "NVIDIA H200")
    program, arguments = written("plain", "data:1 model:2", layout)
    report = explain(program, *arguments)
    kernels = [k for k in report.kernels.all() if k.step.name == "pallas_call"]
    names = [k.step.params["name"] for k in kernels]
    assert names == ["step_attention"] * 2
    heads = 2 if layout else 4
    kept = 2 * 3 * heads * PLACES * 16 * 2
    assert kernels[0].bytes == kept
    assert kernels[0].flops == 2 * 2 * 3 * heads * PLACES * 16


def test_programs_for_other_versions_of_jax_do_without(monkeypatch):
    monkeypatch.setattr(mx.Mesh, "platform", "gpu")
    monkeypatch.setattr(mx.Mesh, "device_kind", "NVIDIA H200")
    program, arguments = written("plain", "data:1 model:2", "")
    with step_attention.lasting():
        assert "pallas_call" not in [k.step.name for k in explain(program, *arguments).kernels.all()]
