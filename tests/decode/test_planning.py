"""Writing a token, explained and predicted: what is sent, what is read, how long it takes."""

from collections import Counter

import jax
import pytest

import meshax as mx
from meshax.decode import Engine, Request
from meshax.decode.planning import decode_target, usual_context
from meshax.models.presets import preset
from meshax.plan.explain.report import explain
from meshax.plan.search.layout_search import search
from meshax.tensors import is_tensor

SMALL = {"d_model": 32, "heads": 8, "d_kv": 4, "d_ff": 48, "layers": 2, "vocab": 64}


def report(name, mesh, layout, **options):
    target = decode_target(name, **options)
    explained = explain(target.build(mesh, layout), *target.args)
    explained.replays = True
    return explained


@pytest.mark.parametrize("name", ["lm-0.14b", "modern-0.1b"])
def test_model_parallel_a_token_sends_its_activations_and_a_few_numbers(name):
    fields = SMALL | ({"kv_heads": 8} if name.startswith("modern") else {})
    sent = report(name, "model:8", "heads:model d_ff:model vocab:model", model=fields, slots=3, context=16)
    sizes = Counter()
    for record in sent.collectives:
        assert record.kind == "all-reduce"
        sizes[record.bytes] += record.count
    assert sizes == {2 * 3 * 32: 2 * 2 + 1, 4 * 3: 5}  # two for each layer, one for the embedding; the choice


def test_a_model_that_reads_sources_attends_to_them_too():
    """One all-reduce more for each layer of the decoder; the encoder is no part of a step."""
    sent = report("wmt-0.15b", "model:8", "heads:model d_ff:model vocab:model", model=SMALL, slots=3, context=16)
    sizes = Counter()
    for record in sent.collectives:
        assert record.kind == "all-reduce"
        sizes[record.bytes] += record.count
    assert sizes == {2 * 3 * 32: 3 * 2 + 1, 4 * 3: 5}
    alone = report("wmt-0.15b", "one:1", "", model=SMALL, context=16)
    deeper = report("wmt-0.15b", "one:1", "", model=SMALL | {"encoder_layers": 9}, context=16)
    assert deeper.memory == alone.memory and deeper.seconds("h200") == alone.seconds("h200")


@pytest.mark.parametrize("name", ["wmt-tiny", "prefix-tiny"])
def test_half_of_the_learned_positions_are_for_sources(name):
    kept = decode_target(name).args[1]
    assert usual_context(preset(name).model) == 128
    assert {leaf.dim("memory").size for leaf in jax.tree.leaves(kept.sources, is_leaf=is_tensor)} == {128}


@pytest.mark.exhaustive
def test_it_is_what_the_engine_does():
    """But that the engine writes several tokens in one program."""
    model = {**SMALL, "dtype": "float32", "positions": "rotary"}
    planned = report("lm-0.14b", "model:4", "heads:model vocab:model", model=model, slots=2, context=32)
    config = preset("lm-0.14b").model
    config = type(config)(**{**vars(config), **model, "layers_as": "unrolled"})
    sizes = {"slots": 2, "places": 32, "page": 32, "chunk": 4}
    engine = Engine(config.make(jax.random.key(0)), mx.Mesh("model:4"), "heads:model vocab:model", **sizes)
    engine.submit(Request((1,), 3))  # asks for as much as is planned for
    done = engine.explain()
    assert planned.wire_bytes * 4 == done.wire_bytes and planned.flops * 4 == done.flops
    assert planned.memory["parameters"] == done.memory["parameters"]


@pytest.mark.parametrize(
    ("name", "slots", "measured"), [("lm-1.28b", 1, 0.833e-3), ("lm-1.28b", 8, 1.588e-3), ("lm-4.90b", 1, 2.734e-3)]
)
def test_reading_is_what_takes_time(name, slots, measured):
    """As a program by hand was measured on one H200, with 1,088 positions of context."""
    predicted = report(name, "one:1", "", slots=slots, context=1088, model={"max_length": 1088})
    assert predicted.seconds("h200") == pytest.approx(measured, rel=0.1)
    spent = predicted.time("h200")
    assert spent.compute == spent.communication == 0
    read = predicted.memory["parameters"] - 2 * (32768 + 1088) * 1024 + predicted.memory["inputs"]
    assert 0.7 < read / 4.8e12 / predicted.seconds("h200") < 0.95


@pytest.mark.exhaustive
def test_the_best_layout_for_one_text_is_model_parallel():
    target = decode_target("lm-1.28b", context=128, model={"layers": 1})
    best = search(
        target.fn, target.args, [mx.Mesh("x:8", abstract=True)], hardware="tpu-v2", exclude=target.unsplit,
        donate=target.donate,
    )[0]  # fmt: skip
    assert {"heads", "d_ff"} <= dict(best.layout.rules).keys()
    alone = report("lm-1.28b", "x:8", "", context=128, model={"layers": 1})
    assert best.seconds < alone.seconds("tpu-v2") / 4


def test_what_cannot_be_written():
    with pytest.raises(mx.ArgumentError, match="there are no such texts"):
        decode_target("tiny", slots=0)
    with pytest.raises(mx.ArgumentError, match="the model has 256 learned positions, for 257 tokens"):
        decode_target("lm-1.28b", context=257)
    with pytest.raises(
        mx.ArgumentError, match=r"^'unet-tiny' writes no text\.\n  fix: choose a language model, or one"
    ):
        decode_target("unet-tiny")
    with pytest.raises(mx.ArgumentError, match="there is no preset 'tinny'"):
        decode_target("tinny")


def test_texts_are_no_longer_than_there_are_learned_positions():
    assert usual_context(preset("tiny").model) == 1024  # rotary
    learned = preset("lm-0.14b").model
    assert learned.positions == "learned" and usual_context(learned) == learned.max_length == 256
