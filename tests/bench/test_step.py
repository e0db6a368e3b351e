"""A step, measured: what is counted, and what cannot be."""

import dataclasses
import json
import math

import jax
import pytest

import meshax as mx
from meshax.bench import plain_jax
from meshax.bench import step as module
from meshax.bench.beside import in_turns, measure_program, together
from meshax.bench.step import Step, measure, needed_flops
from meshax.models.contract import parameter_count
from meshax.models.presets import PRESETS, preset

TINY = Step(batch=8, length=16, keep="nothing", layers_as="unrolled", fields={"positions": "sinusoidal"})
OURS = dataclasses.replace(TINY, layers_as="loop", mesh="data:2", layout="data")


@pytest.fixture(scope="module")
def ours():
    return measure(OURS, rounds=2, steps=1)


def test_a_measurement(ours):
    assert ours.tokens == 128 and len(ours.rounds) == 2 and min(ours.rounds) <= ours.seconds <= max(ours.rounds)
    assert ours.compile_seconds > 0 and ours.trace_seconds > 0 and 5 < ours.loss < 9
    assert ours.kernels["products"] > 0 and ours.kernels["collectives"] > 0
    assert json.loads(json.dumps(ours.as_dict()))["utilization"] is None  # of processors that share cores
    known = dataclasses.replace(ours, peak_flops=2e9)
    assert known.as_dict()["utilization"] == pytest.approx(ours.flops / ours.seconds / 2e9)


@pytest.mark.exhaustive
def test_packed_examples_are_kept_apart(ours):
    packed = measure(dataclasses.replace(OURS, packed=True), rounds=1, steps=1, profile=False)
    assert packed.loss != ours.loss and packed.loss == pytest.approx(ours.loss, rel=0.1)


def test_needed_flops():
    """Of the paper's largest model at 32 x 256 tokens, by hand: 4.86 B parameters beside the embedding."""
    model = preset("lm-4.90b").model
    products = 6 * (parameter_count(model) - (32768 + 256) * 1024) * 8192
    assert needed_flops(model, 32, 256) == products + 6 * 6 * 256 * 256 * 256 * 8192
    assert needed_flops(model, 32, 256) / 8192 == pytest.approx(6 * 4.964e9, rel=1e-3)


def test_a_table_that_is_multiplied_counts_and_what_attention_does_not_see_does_not():
    """By hand: tying the tables takes no product away; a window of 4 of 16 tokens sees 4 x (2 - 1/4) / 2 of 8."""
    model = dataclasses.replace(TINY).model()
    tied, learned, window = (
        dataclasses.replace(model, **change)
        for change in ({"tied": True}, {"positions": "learned", "max_length": 64}, {"window": 4})
    )
    plain = needed_flops(model, 8, 16)
    assert needed_flops(tied, 8, 16) == needed_flops(learned, 8, 16) == plain
    attention = 6 * model.layers * 16 * model.heads * model.d_kv * 128
    assert needed_flops(window, 8, 16) == plain - attention + attention * 7 / 16


@pytest.mark.parametrize(("limit", "keeps"), [(1e12, "everything"), (1.0, "nothing")])
def test_what_is_kept_is_what_fits(limit, keeps, monkeypatch):
    monkeypatch.setattr(module, "memory_of_device", lambda device: limit)
    mesh = mx.Mesh("data:1")
    for step in (
        dataclasses.replace(TINY, keep="auto"),
        dataclasses.replace(TINY, keep="", fields={"keep": "auto"}),
    ):
        assert step.fitted(mesh, step.placed(mesh)).keep == keeps
    as_told = dataclasses.replace(TINY, keep="products")
    assert as_told.fitted(mesh, as_told.placed(mesh)).keep == "products"


@pytest.mark.parametrize("name", sorted(name for name in PRESETS if name.startswith("lm-")))
def test_the_papers_models_are_there_by_hand(name):
    config = Step(name).model()
    weights = jax.eval_shape(plain_jax.like(config).init, jax.random.key(0))
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(weights)) == parameter_count(config)


@pytest.mark.exhaustive
def test_by_hand_in_turns_in_processes_of_their_own():
    measured = list(in_turns(("jax",), TINY, turns=2, steps=1, profile=False))
    whole = together(measured)
    assert whole.program == "jax" and len(whole.rounds) == 2 and 5 < whole.loss < 9
    here = measure_program("jax", TINY, 1, 1, profile=True)
    assert here.loss == pytest.approx(whole.loss, rel=1e-4) and here.kernels["products"] > 0


def test_what_cannot_be_measured(capfd):
    with pytest.raises(mx.ArgumentError, match="'torch' failed"):
        list(in_turns(("torch",), TINY, turns=1, steps=1, profile=False))
    assert "PyTorch" in capfd.readouterr().err
    with pytest.raises(mx.ArgumentError, match="there is no preset 'tinny'"):
        Step(preset="tinny").model()
