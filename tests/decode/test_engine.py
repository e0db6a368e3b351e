"""The engine: what it writes follows from the request alone: not from the slot, the batch, or the layout."""

import math
from collections import Counter
from dataclasses import replace

import jax
import numpy as np
import pytest

import meshax as mx
from extent import some
from meshax.decode import Engine, Request
from meshax.errors import ArgumentError
from meshax.models.decoder import Decoder, DecoderConfig

CONFIG = DecoderConfig(
    d_model=16, heads=4, d_kv=6, d_ff=24, layers=2, vocab=21, dtype="float32", positions="rotary", layers_as="unrolled"
)
HEADS = "heads:model d_ff:model vocab:model"
LAYOUTS = {
    "none": ("x:1", "", 3),
    "one slot": ("x:1", "", 1),
    "batch": ("data:4", "batch:data", 4),
    "heads": ("data:2 model:4", f"batch:data {HEADS}", 5),
    "uneven": ("model:3", HEADS, 5),
    "memory": ("data:2 model:4", "batch:data memory:model vocab:model", 2),
    "width": ("model:2 more:2", "d_model:model vocab:more", 3),
    "stored": ("data:4", mx.Layout("batch:data", params="d_model:data"), 4),
    "sequence": ("model:2", "length:model positions:model", 3),
}
RANDOM = np.random.RandomState(1)


def prompt(length):
    return tuple(RANDOM.randint(0, 21, length).tolist())


REQUESTS = [
    Request(prompt(1), 9),
    Request(prompt(7), 12, temperature=1.5, top_k=5, seed=1),
    Request(prompt(20), 6, temperature=1.0, top_p=0.8, seed=2**32 - 1),
    Request(prompt(3), 11, temperature=1.2, min_p=0.1, repetition_penalty=1.3, seed=3, candidates=3),
    Request(prompt(9), 0),
    Request(prompt(5), 10, banned=(3, 12), forced=(7, 7)),
]


def model(**changes):
    return Decoder.init(jax.random.key(0), DecoderConfig(**{**vars(CONFIG), **changes}))


def engine(layout="none", slots=None, **options):
    mesh, rules, usual = LAYOUTS[layout]
    sizes = dict(places=40, page=8, chunk=4) | options
    return Engine(sizes.pop("model", None) or model(), mx.Mesh(mesh), rules, slots=slots or usual, **sizes)


@pytest.fixture(scope="module")
def alone():
    """What is written in one slot, one request after the other."""
    return list(engine("one slot").generate(REQUESTS))


@pytest.mark.parametrize("layout", some([name for name in LAYOUTS if name != "one slot"], "heads"))
def test_every_layout_writes_the_same(layout, alone):
    written = list(engine(layout).generate(REQUESTS))
    assert [one.tokens for one in written] == [one.tokens for one in alone]
    assert [one.ended_by for one in written] == ["length"] * 6 and [len(one.tokens) for one in written] == [
        9,
        12,
        6,
        11,
        0,
        10,
    ]
    for one, other in zip(written, alone, strict=True):
        np.testing.assert_allclose(one.log_probabilities, other.log_probabilities, atol=1e-5)
    (ours, others) = (dict(sum(one[3].candidates, [])) for one in (written, alone))
    assert ours.keys() == others.keys() and len(written[3].candidates) == 11
    np.testing.assert_allclose([*ours.values()], [*others.values()], atol=1e-5)


def test_candidates_are_told_to_whom_asks(alone):
    """As the model predicts them, before any penalty: the chosen one has the same log-probability there."""
    assert [len(one.candidates) for one in alone] == [0, 0, 0, 11, 0, 0]
    assert {len(told) for told in alone[3].candidates} == {3}
    for token, log_p, told in zip(alone[3].tokens, alone[3].log_probabilities, alone[3].candidates, strict=True):
        assert dict(told).get(token, log_p) == log_p and [x for _, x in told] == sorted((x for _, x in told))[::-1]
        assert log_p <= told[0][1]


def test_log_probabilities_are_told_to_whom_asks(two_slots, alone):
    silent = [replace(request, log_probabilities=False) for request in REQUESTS[:2]]
    written = list(two_slots.generate([*silent, REQUESTS[0]]))
    assert [one.tokens for one in written] == [alone[i].tokens for i in (0, 1, 0)]
    assert not written[0].log_probabilities and math.isnan(written[0].log_probability)
    assert written[2].log_probability == pytest.approx(alone[0].log_probability, abs=1e-5)


def without_cache(request, count):
    """The likeliest tokens, the whole text read again for each, and how near the second came."""
    text, gaps, read = list(request.prompt), [], jax.jit(lambda m, t: m(t))
    for _ in range(count):
        tokens = np.zeros((1, 32), np.int32)
        tokens[0, : len(text)] = text
        logits = np.sort(read(model(), mx.tensor(tokens, "batch length")).numpy()[0, len(text) - 1])
        gaps.append(logits[-1] - logits[-2])
        text.append(int(read(model(), mx.tensor(tokens, "batch length")).numpy()[0, len(text) - 1].argmax()))
    return text[len(request.prompt) :], min(gaps)


def test_the_likeliest_is_what_a_model_without_cache_predicts(alone):
    tokens, gap = without_cache(REQUESTS[0], 9)
    difference = 1e-5  # of the logits of two layouts, at most: tests/nn/test_cache.py
    print(f"the nearest rival came to {gap:.2g}, {gap / difference:.0f} times the difference between layouts")
    assert gap > 100 * difference and alone[0].tokens == tokens


def test_forced_and_banned_tokens(alone):
    assert alone[5].tokens[:2] == [7, 7] and not {3, 12} & set(alone[5].tokens)


def test_one_program_for_all_lengths_of_a_bucket():
    one = engine(places=72, page=72)
    written = list(one.generate([Request(prompt(34 + length % 32), 4) for length in range(50)]))
    assert len(written) == 50 and {len(text.tokens) for text in written} == {4}
    programs = [*one.room.filling.values(), *one.steps.values()]
    assert [program._jitted._cache_size() for program in programs] == [1, 1]


@pytest.fixture(scope="module")
def two_slots():
    return engine(slots=2, decode=lambda tokens, after: "".join(f"{token} " for token in tokens))


def test_a_free_slot_takes_the_next_prompt(two_slots):
    """One long text and four short ones beside it: as many turns as the long one has chunks."""
    one = two_slots
    numbers = [one.submit(Request(prompt(3), tokens)) for tokens in (16, 4, 4, 4, 4)]
    turns = []
    while one.is_busy:
        turns.append([(number - numbers[0], len(written.tokens), written.ended_by) for number, written in one.turn()])
    assert turns == [[(0, 4 * n, "length" * (n == 4)), (n, 4, "length")] for n in (1, 2, 3, 4)]


def test_what_ends_a_text(alone, two_slots):
    tokens = alone[0].tokens
    third = tokens[2]
    request = REQUESTS[0]
    by_token = Request(request.prompt, 9, stop=(third, 99))
    by_string = Request(request.prompt, 9, stop_strings=(f"{tokens[1]} {tokens[2]}",))
    first, second = two_slots.generate([by_token, by_string])
    assert first.tokens == tokens[: tokens.index(third)] and first.ended_by == "stop"
    assert len(first.log_probabilities) == len(first.tokens) + 1  # that of the token that ended it
    assert second.text == f"{tokens[0]} " and second.tokens == tokens[:3] and second.ended_by == "stop"


def test_a_request_can_be_cancelled(two_slots):
    one = two_slots
    first, _, third = (one.submit(request) for request in (Request(prompt(3), 12), Request(prompt(3), 12), REQUESTS[0]))
    one.turn()
    one.cancel(first)
    assert {number: len(written.tokens) for number, written in one.turn()} == {first + 1: 8, third: 4}
    waiting = one.submit(Request(prompt(3), 12))
    for number in (waiting, third, first + 1):
        one.cancel(number)
    assert not one.is_busy and one.turn() == []


@pytest.fixture
def watched(two_slots, monkeypatch):
    """An engine, and in which order its chunks are queued and read."""
    calls, queue, collect = [], two_slots._queue_chunk, two_slots._collect
    monkeypatch.setattr(two_slots, "_queue_chunk", lambda: (calls.append("queued"), queue()))
    monkeypatch.setattr(two_slots, "_collect", lambda chunk: (calls.append("read"), collect(chunk))[1])
    return two_slots, calls


def test_the_next_chunk_is_queued_before_one_is_read(watched):
    """As long as somebody has a use for it: 10 tokens are three chunks."""
    one, calls = watched
    list(one.generate([Request(prompt(3), 10)]))  # compiles
    calls.clear()
    list(one.generate([Request(prompt(3), 10)]))
    assert calls == ["queued", "queued", "read", "queued", "read", "read"]
    calls.clear()
    one.submit(Request(prompt(3), 10))
    while one.is_busy:
        one.turn(ahead=False)
    assert calls == ["queued", "read"] * 3


def test_nobody_waits_for_a_slot_because_of_a_chunk_that_is_queued(watched):
    one, calls = watched
    for tokens in (8, 4, 4):
        one.submit(Request(prompt(3), tokens))
    while one.is_busy:
        one.turn()
    assert calls == ["queued", "read"] * 2


def test_a_chunk_that_is_queued_changes_no_text(two_slots, alone):
    """Texts that end by a token or a string, one that is cancelled, one that comes: with a chunk queued, or none."""
    tokens, first = alone[1].tokens, REQUESTS[1]
    drawn = dict(temperature=first.temperature, top_k=first.top_k, seed=first.seed)
    by_token = Request(first.prompt, 12, stop=(tokens[5],), **drawn)
    by_string = Request(first.prompt, 12, stop_strings=(f" {tokens[1]} {tokens[2]} ",), **drawn)

    def written(ahead):
        done, begin = {}, two_slots.submit(by_token)
        third = [two_slots.submit(request) for request in (by_string, REQUESTS[0], REQUESTS[0])][1]
        for last in ((first, by_string), ()):
            for turn in range(99):
                done |= {number - begin: (text.tokens, text.text) for number, text in two_slots.turn(ahead)}
                if last and turn == 2:
                    two_slots.cancel(third)
                if not two_slots.is_busy:
                    break
            for request in last:
                two_slots.submit(request)
        assert two_slots.turn(ahead) == []
        return done

    ours, others = written(True), written(False)
    del ours[2], others[2]  # how much there was of it when it was cancelled depends on the turn
    assert ours == others and ours[0][0] == tokens[: tokens.index(tokens[5])] and ours[3] == (alone[0].tokens, None)
    assert ours[4] == (tokens, None) and ours[5] == ours[1] and ours[1][1] is not None


def test_weights_are_stored_as_they_are_used():
    """Half as much is read for each token, and the logits are the same."""
    wide, tokens = model(dtype="bfloat16", tied=True), mx.tensor(np.array([prompt(9)], np.int32), "batch length")
    narrow = engine("heads", model=wide).room.model
    assert narrow.embedding.weight.dtype == "bfloat16" == narrow.layers[0].attention.q.weight.dtype
    assert narrow.norm.scale.dtype == "float32" and engine().room.model.embedding.weight.dtype == "float32"
    read = mx.spmd(lambda model, tokens: model(tokens), mx.Mesh("data:2 model:4"), LAYOUTS["heads"][1])
    np.testing.assert_array_equal(read(wide, tokens).numpy(), read(narrow, tokens).numpy())


def test_what_does_not_fit():
    one = engine()
    with pytest.raises(
        ArgumentError, match=r"^a text of 30 tokens and 11 more does not fit\.\n  values: 40 places\n  fix: give the"
    ):
        one.submit(Request((1,) * 30, 11))
    with pytest.raises(
        ArgumentError, match=r"^there is no token 21\.\n  values: 21 tokens\n  fix: encode with its vocab"
    ):
        one.submit(Request((1, 21), 1))
    with pytest.raises(
        ArgumentError, match=r"^strings can stop a text only where tokens can be read\.\n  fix: give the"
    ):
        one.submit(Request((1,), 1, stop_strings=("a",)))


def test_what_a_step_sends():
    """Model parallel: the activations of a token for each part of a layer and the embedding; numbers for the choice."""
    one = engine("heads", slots=2)
    activations, number = 1 * 16 * 4, 1 * 4
    for numbers in (2, 5):  # the likeliest; then how likely it is, too
        sent = Counter()
        for record in one.explain().collectives:
            sent[record.kind, record.axes, record.bytes] += record.count
        assert sent == {
            ("all-reduce", ("model",), activations): 4 * (1 + 2 * 2),
            ("all-reduce", ("model",), number): 4 * numbers,
        }
        one.submit(Request((1,), 1))
