"""Sampling: among the likeliest, the same draw under every layout, until the end of the document."""

import jax
import numpy as np
import pytest

import meshax as mx
from extent import some
from meshax.decode.sampling import generate, next_token, sampler
from meshax.models.decoder import Decoder, DecoderConfig
from meshax.plan.search.named_layouts import find_layout

draws, vocab = mx.dims(draws=2000, vocab=6)
LOGITS = np.log(np.array([0.3, 0.05, 0.4, 0.1, 0.05, 0.1], np.float32))
KEY = jax.random.key(0)


def drawn(temperature=1.0, among=None):
    """How often each token was drawn."""
    logits = mx.broadcast(mx.tensor(LOGITS, (vocab,)), (draws, vocab))
    return np.bincount(next_token(logits, KEY, temperature, among).numpy(), minlength=6) / draws.size


def test_draws_follow_the_probabilities():
    np.testing.assert_allclose(drawn(), np.exp(LOGITS), atol=0.04)


def test_top_k():
    found = drawn(among=2)
    np.testing.assert_allclose(found, [3 / 7, 0, 4 / 7, 0, 0, 0], atol=0.04)
    np.testing.assert_array_equal(drawn(among=1), [0, 0, 1, 0, 0, 0])
    assert (drawn(temperature=1e30, among=2) > 0).sum() == 2  # however hot it is
    np.testing.assert_array_equal(drawn(among=6), drawn())  # all there are
    np.testing.assert_array_equal(drawn(among=99), drawn())


def test_temperature():
    sharp = np.exp(LOGITS * 2) / np.exp(LOGITS * 2).sum()
    np.testing.assert_allclose(drawn(0.5), sharp, atol=0.04)
    np.testing.assert_array_equal(drawn(1e-4), [0, 0, 1, 0, 0, 0])


CONFIG = DecoderConfig(
    d_model=16, heads=4, d_kv=4, d_ff=24, layers=1, vocab=21, positions="rotary", dtype="float32", keep="everything"
)
LAYOUTS = {"none": "x:1", "model": "data:2 model:4", "data+model": "data:2 model:4", "fsdp": "data:8"}


def written(layout):
    """12 tokens after a beginning, in a window of 8."""
    mesh = mx.Mesh(LAYOUTS[layout])
    draw = sampler(Decoder.init(KEY, CONFIG), mesh, find_layout(layout, mesh), 8, 5)
    return list(generate(draw, [3, 4, 5], 12, end=-1, seed=1, temperature=1.5))


@pytest.fixture(scope="module")
def alone():
    found = written("none")
    assert len(found) == 12 and len(set(found)) > 3 and max(found) < 21
    return found


@pytest.mark.parametrize("layout", some([name for name in LAYOUTS if name != "none"], "data+model"))
def test_every_layout_draws_the_same(layout, alone):
    assert written(layout) == alone


def test_what_comes_after_the_text_is_not_seen():
    """The window is filled up, and the prediction is that of the last token."""
    mesh = mx.Mesh("x:1")
    draw = [sampler(Decoder.init(KEY, CONFIG), mesh, "", length, 1) for length in (4, 8)]
    assert draw[0]([1, 2, 3, 4], KEY, 1.0) == draw[1]([1, 2, 3, 4], KEY, 1.0)


def test_the_end_of_the_document():
    seen = []

    def draw(tokens, key, temperature):
        seen.append(list(tokens))
        return [7, 8, 1, 9][len(seen) - 1]

    assert list(generate(draw, [5], 10, end=1, seed=0, temperature=1.0)) == [7, 8]
    assert seen == [[1, 5], [1, 5, 7], [1, 5, 7, 8]]
    assert list(generate(draw, [5], 0, end=1, seed=0, temperature=1.0)) == []
