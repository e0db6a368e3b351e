"""Beam search: a search through everything where beams cover it, a plain one where they do not, Mesh-TensorFlow's."""

import itertools
import json
import math
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import pytest

import meshax as mx
from extent import some
from meshax.decode import Request
from meshax.decode.beams import BeamSearch
from meshax.errors import ArgumentError
from meshax.models.decoder import Decoder, DecoderConfig

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "beams.json").read_text())


class Chain(eqx.Module):
    """Logits that depend on the row of the batch, the token before and the place: no model, but one to search with."""

    follows: mx.Tensor  # [batch, before, vocab]
    stands: mx.Tensor  # [places, vocab]

    def __call__(self, tokens):
        return mx.zeros((*tokens.dims, self.stands.dim("vocab")))

    def narrowed(self):
        return self

    def empty_cache(self, slots, places, page):
        return mx.zeros(slots, "int32")

    def prefill(self, tokens, lengths, cache):
        return cache

    def step(self, tokens, at, cache, num_pages):
        return mx.gather(self.follows, tokens, "before") + mx.gather(self.stands, at, "places"), cache


def penalty(kind, alpha, length):
    return ((5 + length) / 6 if kind == "paper" else length) ** alpha


def log_softmax(logits):
    logits = np.asarray(logits, np.float64)
    return logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())


def plain(logits_of, beams, limit, end, kind="paper", alpha=0.6, forced=(), banned=(), penalty_of=1.0, prompt=()):
    """Beam search in lists: [(score, tokens)], finished ones first, then live ones."""
    live, done = [(0.0, ())], []
    for number in range(limit):
        every = []
        for rank, (likely, text) in enumerate(live):
            logits = np.array(logits_of(text))
            seen = list({*prompt, *text}) if penalty_of != 1 else []
            logits[seen] = np.where(logits[seen] > 0, logits[seen] / penalty_of, logits[seen] * penalty_of)
            own = log_softmax(logits)
            for token in range(len(own)):
                if token == forced[number] if number < len(forced) else token not in banned:
                    every.append((likely + own[token], rank, token, text))
        every.sort(key=lambda one: (-one[0], one[1], one[2]))
        best = every if 2 * beams >= len(own) else every[: 2 * beams]
        ended = [(likely / penalty(kind, alpha, number + 1), text) for likely, _, token, text in best if token == end]
        done = sorted(done + ended, key=lambda one: -one[0])[:beams]
        live = [(likely, (*text, token)) for likely, _, token, text in best if token != end][:beams]
    return (done + [(likely / penalty(kind, alpha, limit), text) for likely, text in live])[:beams]


def check(found, wanted, atol=1e-5):
    assert [tuple(text.tokens) for text in found] == [text for _, text in wanted]
    np.testing.assert_allclose([text.score for text in found], [score for score, _ in wanted], atol=atol)


def values(number, shape, deviation):
    """The numbers that both programs were given."""
    i = np.arange(np.prod(shape), dtype=np.float64)
    return (deviation * math.sqrt(2) * np.sin(number + 1.7 * i + (0.013 + 0.0007 * number) * i * i)).reshape(shape)


@pytest.mark.parametrize("case", some(range(len(GOLDEN)), 9))
@pytest.mark.parametrize("layout", some(["", "vocab:all"], "vocab:all"))
def test_equals_mesh_tensorflow_where_it_is_right(case, layout):
    """Its early stop leaves places empty that ours fills; texts that reach the longest length it scores unpenalised."""
    wanted = GOLDEN[case]
    follows = values(5, [2, 12, 12], 1.5)
    follows[:, :, 0] -= 20
    follows[:, :, 1] += wanted["eos_bias"]
    chain = Chain(
        mx.tensor(follows.astype(np.float32), "batch before vocab"),
        mx.tensor(values(6, [8, 12], 0.3).astype(np.float32), "places vocab"),
    )
    search = BeamSearch(
        chain, mx.Mesh("all:4"), layout, beams=wanted["beam"], alpha=wanted["alpha"], slots=2, places=16, chunk=4
    )
    rows = search.search([Request((0,), wanted["decode_length"], stop=(1,))] * 2)
    for found, sequences, scores in zip(rows, wanted["sequences"], wanted["scores"], strict=True):
        theirs = [(text, score) for text, score in zip(sequences, scores, strict=True) if score > -1e6]
        if any(text.is_finished for text in found):
            ours = ["".join(f"{token:x}" for token in [*text.tokens, 1]) for text in found if text.is_finished]
            numbers = [text.score for text in found]
        else:
            ours = ["".join(f"{token:x}" for token in text.tokens) for text in found]
            numbers = [text.log_probability for text in found]
        assert ours[: len(theirs)] == [text.rstrip("0") for text, _ in theirs]
        np.testing.assert_allclose(numbers[: len(theirs)], [score for _, score in theirs], atol=1e-5)


SMALL = Chain(
    mx.tensor(np.random.RandomState(0).normal(0, 1, (1, 4, 4)).astype(np.float32), "batch before vocab"),
    mx.tensor(np.random.RandomState(1).normal(0, 1, (5, 4)).astype(np.float32), "places vocab"),
)


def small_logits(text):
    return SMALL.follows.numpy()[0, text[-1] if text else 0] + SMALL.stands.numpy()[len(text)]


@pytest.mark.parametrize("kind", some(["paper", "power"], "paper"))
@pytest.mark.parametrize("alpha", some([0.0, 0.6, 1.0], 0.6))
def test_beams_that_cover_everything_find_everything(alpha, kind):
    """Four tokens, texts of four: 27 beginnings live on, and 40 texts end; the 27 best of them are found."""
    search = BeamSearch(
        SMALL, mx.Mesh("x:3"), "vocab:x", beams=27, length_penalty=kind, alpha=alpha, slots=1, places=8, chunk=2
    )
    (found,) = search.search([Request((0,), 4, stop=(3,))])
    every = []
    for length in range(4):
        for text in itertools.product(range(3), repeat=length):
            likely = sum(log_softmax(small_logits((*text, 3)[:i]))[token] for i, token in enumerate((*text, 3)))
            every.append((likely / penalty(kind, alpha, length + 1), text))
    assert len(every) == 40 and all(text.is_finished for text in found)
    check(found, sorted(every, reverse=True)[:27])


CONFIG = DecoderConfig(d_model=16, heads=4, d_kv=6, d_ff=24, layers=2, vocab=21, dtype="float32", positions="rotary")
MODEL = Decoder.init(jax.random.key(0), CONFIG)
REQUESTS = [
    Request((3, 4, 5), 7, stop=(1,)),
    Request((9,), 5, stop=(1, 2), forced=(7, 8)),
    Request(tuple(range(2, 20)), 4, stop=(6,)),
]
LAYOUTS = {
    "none": ("x:1", "", 1),
    "heads": ("data:2 model:4", "batch:data heads:model d_ff:model vocab:model", 3),
    "vocab": ("model:8", "vocab:model", 2),
    "memory": ("data:2 model:2", "batch:data memory:model", 2),
    "width": ("model:4", "d_model:model", 3),
    "stored": ("data:2", mx.Layout("batch:data", params="d_model:data"), 2),
}


@pytest.fixture(scope="module")
def by_lists():
    """What a plain search finds, with a model that reads everything again."""
    program = mx.spmd(lambda model, tokens: model(tokens), mx.Mesh("x:1"), "")

    def found(request):
        def logits(text):
            tokens = np.zeros((1, 32), np.int32)
            whole = [*request.prompt, *text]
            tokens[0, : len(whole)] = whole
            return program(MODEL, mx.tensor(tokens, "batch length")).numpy()[0, len(whole) - 1]

        return plain(logits, 3, request.tokens, request.stop[0], forced=request.forced)

    return {i: found(REQUESTS[i]) for i in (0, 2)}


@pytest.mark.parametrize("layout", some(LAYOUTS, "heads"))
def test_equals_a_plain_search_under_every_layout(layout, by_lists):
    mesh, rules, slots = LAYOUTS[layout]
    search = BeamSearch(MODEL, mx.Mesh(mesh), rules, beams=3, slots=slots, places=32, page=8, chunk=3)
    found = list(search.search(REQUESTS))
    for i, wanted in by_lists.items():
        check(found[i], wanted)
    assert all(text.tokens[:2] == [7, 8] for text in found[1]) and len(found[1]) == 3


@pytest.mark.parametrize("layout", some(LAYOUTS, "heads"))
def test_64_bits_find_the_same(layout, by_lists):
    with jax.enable_x64(True):
        test_equals_a_plain_search_under_every_layout(layout, by_lists)


def test_banned_tokens_and_a_penalty_of_what_is_there():
    """Each for its own prompt: the other one in the batch is searched for as before."""
    wishes = [dict(banned=(2,), forced=(2, 0)), dict(repetition_penalty=1.7)]
    both = Chain(
        mx.tensor(np.repeat(SMALL.follows.numpy(), 2, 0), "batch before vocab"),
        mx.tensor(SMALL.stands.numpy(), "places vocab"),
    )
    search = BeamSearch(both, mx.Mesh("x:2"), "vocab:x", beams=2, slots=2, places=8, chunk=5)
    first, second = search.search([Request((0,), 5, stop=(3,), **wish) for wish in wishes])
    check(first, plain(small_logits, 2, 5, 3, banned=(2,), forced=(2, 0)))
    check(second, plain(small_logits, 2, 5, 3, penalty_of=1.7, prompt=(0,)))


def test_a_search_that_is_done_would_find_nothing_else():
    """In chunks of one token it stops as soon as it may; in one chunk it goes to the end."""
    texts = []
    for chunk in (1, 5):
        search = BeamSearch(SMALL, mx.Mesh("x:1"), "", beams=2, slots=1, places=8, chunk=chunk)
        texts.append(list(search.search([Request((0,), 5, stop=(3,))])))
    assert texts[0] == texts[1]
    check(texts[0][0], plain(small_logits, 2, 5, 3))


def test_wrong_options():
    with pytest.raises(ArgumentError, match=r"^there is no length penalty 'papr'\.\n  fix: did you mean \"paper\"\?"):
        BeamSearch(SMALL, mx.Mesh("x:1"), "", length_penalty="papr")
    with pytest.raises(ArgumentError) as error:
        BeamSearch(SMALL, mx.Mesh("x:1"), "", alpha=-0.5)
    assert str(error.value).startswith(
        "beams are 1 or more, and the exponent of the length penalty is a number, not negative.\n"
        "  values: beams 4, alpha -0.5\n"
        "  rule: a search is done when no longer text can score higher.\n  fix: for example beams=4, alpha=0.6."
    )
    search = BeamSearch(SMALL, mx.Mesh("x:1"), "", slots=1, places=8)
    with pytest.raises(ArgumentError) as error:
        list(search.search([Request((0,), 2, stop_strings=("end",))]))
    assert str(error.value) == (
        "no string stops a search.\n  values: 'end'\n  rule: whether a text ends is known by its last token.\n"
        "  fix: stop by tokens, or draw."
    )
