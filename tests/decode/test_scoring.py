"""Scores of texts: sums of log-probabilities, whatever the lengths, batches and layouts."""

import re

import jax
import numpy as np
import pytest

import meshax as mx
from meshax.decode import scoring
from meshax.decode.scoring import score
from meshax.errors import ArgumentError
from meshax.models.decoder import Decoder, DecoderConfig

CONFIG = DecoderConfig(d_model=16, heads=4, d_kv=6, d_ff=24, layers=1, vocab=21, dtype="float32", positions="rotary")
MODEL = Decoder.init(jax.random.key(0), CONFIG)
TEXTS = [np.random.RandomState(n).randint(0, 21, n).tolist() for n in (5, 1, 20, 17, 2)]


def test_texts_of_any_length():
    scores = score(MODEL, mx.Mesh("data:2 model:4"), "batch:data vocab:model heads:model", TEXTS, batch=2)
    padded = np.zeros((len(TEXTS), 20), np.int32)
    for row, text in zip(padded, TEXTS, strict=True):
        row[: len(text)] = text
    whole = mx.spmd(lambda model, tokens: model(tokens), mx.Mesh("x:1"), "")(MODEL, mx.tensor(padded, "batch length"))
    logits = whole.numpy().astype(np.float64)
    likely = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    for row, text, value in zip(likely, TEXTS, scores, strict=True):
        assert value == pytest.approx(sum(row[i, token] for i, token in enumerate(text[1:])), abs=2e-5)
    assert scores[1] == 0  # nothing comes after the first


def test_long_texts_are_read_one_by_one(monkeypatch):
    mesh, layout = mx.Mesh("data:2 model:4"), "batch:data vocab:model heads:model"
    together = score(MODEL, mesh, layout, TEXTS, batch=2)
    monkeypatch.setattr(scoring, "_AT_ONCE", 16)
    np.testing.assert_allclose(score(MODEL, mesh, layout, TEXTS, batch=2), together, rtol=1e-5)


def test_a_text_that_does_not_fit(monkeypatch):
    monkeypatch.setattr(scoring, "_AT_ONCE", 16)
    monkeypatch.setattr(scoring, "memory_there", lambda mesh: 1000.0)
    with pytest.raises(ArgumentError) as raised:
        score(MODEL, mx.Mesh("x:1"), "", TEXTS)
    first, values, *others = str(raised.value).splitlines()
    assert first == "a text of 20 tokens is too long to be read at once."
    assert re.fullmatch(r"  values: [\d.]+ kB predicted, of 1 kB on each processor", values)
    assert others == [
        "  rule: attention compares all tokens of a text with each other.",
        "  fix: score it in parts, or on more processors.",
    ]


def test_no_text():
    with pytest.raises(ArgumentError, match=r"^a text without tokens has no probability\.\n  fix: leave it out\."):
        score(MODEL, mx.Mesh("x:1"), "", [[1], []])
