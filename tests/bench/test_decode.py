"""Writing, measured; and the programs by hand write what ours writes."""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshax as mx
from meshax.bench.decode import Decoding, measure
from meshax.bench.decode_beside import in_turns, measure_program, read, together
from meshax.bench.plain_jax_decode import decoder_like, of_model
from meshax.decode import Engine, Request
from meshax.models.decoder import DecoderConfig

GOLDEN = Path(__file__).parents[1] / "golden" / "hugging_face"
TINY = Decoding(context=16, tokens=4, page=4, fields={"layers": "1", "vocab": "64", "d_ff": "64"})
PAPER = DecoderConfig(d_model=32, heads=4, d_kv=8, d_ff=48, layers=1, vocab=60, layers_as="unrolled", dtype="float32")
MODERN = dataclasses.replace(PAPER, kv_heads=2, activation="silu", gated=True, positions="rotary")


@pytest.fixture(scope="module")
def ours():
    return measure(dataclasses.replace(TINY, slots=2, mesh="model:2"), rounds=2)


@pytest.mark.exhaustive
def test_a_measurement(ours):
    assert ours.slots == 2 and len(ours.rounds) == 2 and min(ours.rounds) <= ours.seconds <= max(ours.rounds)
    assert ours.kernels["products"] > 0 and ours.kernels["collectives"] > 0
    assert ours.longest[0].seconds >= ours.longest[-1].seconds and any("layers.py" in one.op for one in ours.longest)
    assert ours.first_token_seconds > ours.seconds
    data = json.loads(json.dumps(ours.as_dict()))
    assert data["share"] is data["bound"] is None  # processors that share cores
    assert data["tokens_per_second"] == pytest.approx(2 / ours.seconds)


@pytest.mark.exhaustive
def test_the_bound(ours):
    """By hand, on each of two processors: half of the matrices, all of the norms, half of the keys and values."""
    matrices = 4 * 128 * 8 * 16 + 2 * 128 * 64 + 128 * 64
    assert ours.weight_bytes == 4 * (matrices / 2 + 3 * 128)
    assert ours.cache_bytes == 4 * 2 * 2 * 20 * 8 * 16 / 2
    known = dataclasses.replace(ours, bandwidth=2e9)
    assert known.bound == pytest.approx((ours.weight_bytes + ours.cache_bytes) / 2e9)
    assert known.share == pytest.approx(known.bound / ours.seconds)


@pytest.mark.exhaustive
@pytest.mark.parametrize("config", [MODERN, PAPER], ids=["modern", "paper"])
def test_by_hand_the_same_is_written(config):
    model = config.make(jax.random.key(3))
    prompts = [(7, 8, 9, 11, 2), (30, 1, 2, 5, 50)]
    engine = Engine(model, mx.Mesh("one:1"), "", slots=2, places=16, page=4, chunk=4)
    ours = [text.tokens for text in engine.generate([Request(prompt, 8) for prompt in prompts])]

    plain, w = decoder_like(config), of_model(model)
    cache, tokens = plain.empty_cache(2, 16), np.int32(prompts).T
    step = jax.jit(plain.step)
    for at, token in enumerate(tokens[:-1]):
        cache, _ = step(w, cache, token, at)
    _, written = jax.jit(lambda w, cache: plain.write(w, cache, jnp.asarray(tokens[-1]), 4, 8))(w, cache)
    assert np.asarray(written).T.tolist() == ours


@pytest.mark.exhaustive
def test_by_hand_it_reads_as_much(ours):
    theirs = measure_program("jax", dataclasses.replace(TINY, slots=2), 1, profile=True)
    assert theirs.kernels["products"] > 0 and theirs.prompt_seconds == theirs.first_token_seconds == 0
    assert theirs.weight_bytes + theirs.cache_bytes == 2 * (ours.weight_bytes + ours.cache_bytes) - 4 * 3 * 128
    assert read(json.loads(json.dumps(dataclasses.asdict(theirs)))) == theirs


@pytest.mark.exhaustive
def test_in_turns_in_processes_of_their_own():
    measured = list(in_turns(("meshax", "jax"), TINY, turns=2, rounds=1, profile=False))
    assert [one.program for one in measured] == ["meshax", "jax"] * 2
    whole = together(measured[::2])
    assert len(whole.rounds) == 2 and whole.seconds == pytest.approx(np.median(whole.rounds))


@pytest.mark.exhaustive
def test_a_run(tmp_path):
    from meshax.cli import main

    assert main(["import", "--from", str(GOLDEN / "llama"), "--out", str(tmp_path / "run"), "--json"]) == 0
    asked = Decoding(run=str(tmp_path / "run"), context=16, tokens=4, page=4, mesh="model:2", layout="kv_heads:model")
    measured = measure(asked, rounds=1, profile=False)
    assert measured.name == str(tmp_path / "run") and measured.parameters == 5872 and measured.seconds > 0


def test_what_cannot_be_measured(capfd):
    with pytest.raises(mx.ArgumentError, match="no program by hand has such parts"):
        decoder_like(dataclasses.replace(PAPER, window=4))
    with pytest.raises(mx.ArgumentError, match="20 tokens are written in texts of 16"):
        dataclasses.replace(TINY, tokens=20)
    with pytest.raises(mx.ArgumentError, match="slots is 0"):
        dataclasses.replace(TINY, slots=0)
    with pytest.raises(mx.ArgumentError, match="PyTorch"):
        measure_program("torch", TINY, 1, profile=False)
