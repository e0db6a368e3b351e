"""The bigram model, against one that counts in dictionaries."""

import math
from collections import Counter

import numpy as np
import pytest

from meshax.data import END, Bigram


class Tokens:
    """A token file without the file."""

    def __init__(self, tokens, size, num_bytes=None):
        self.tokens = np.array(tokens, np.uint16)
        self.vocabulary_size, self.num_bytes = size, num_bytes or len(tokens)

    def __len__(self):
        return len(self.tokens)


def walk(seed, count, size=50):
    """Tokens that mostly follow from the one before."""
    numbers = np.random.default_rng(seed)
    tokens = [END]
    for jump in numbers.random(count) < 0.2:
        tokens.append(int(numbers.integers(1, size)) if jump else (tokens[-1] * 7 + 3) % (size - 1) + 1)
    return Tokens(tokens[1:], size)


def test_it_mixes_counts_as_it_should():
    train, held_out = walk(1, 3000), walk(2, 500)
    model = Bigram.fit(train)
    stretch = len(train) // 20
    parts = [train.tokens[begin : begin + stretch].tolist() for begin in range(0, len(train), stretch)]
    befores = [END, *train.tokens.tolist()]
    pairs, unigrams, contexts = Counter(), Counter(), Counter()
    for number, part in enumerate(parts):
        if number % 10:
            for place, after in enumerate(part):
                before = befores[number * stretch + place]
                pairs[before, after] += 1
                unigrams[after] += 1
                contexts[before] += 1

    nats = 0.0
    for before, after in zip([END, *held_out.tokens.tolist()], held_out.tokens.tolist(), strict=False):
        bigram = pairs[before, after] / max(contexts[before], 1)
        nats -= math.log(model.weights @ [bigram, unigrams[after] / unigrams.total(), 1 / 50])
    assert model.evaluate(held_out).perplexity == pytest.approx(math.exp(nats / len(held_out)))


def test_it_finds_what_there_is_to_find():
    """The tokens follow a rule 4 times in 5, and otherwise are any of 49."""
    score = Bigram.fit(walk(1, 50_000)).evaluate(walk(2, 20_000))
    entropy = -(0.8 + 0.2 / 49) * math.log(0.8 + 0.2 / 49) - 48 * 0.2 / 49 * math.log(0.2 / 49)
    assert math.exp(entropy) < score.perplexity < 1.05 * math.exp(entropy)


def test_the_weights_are_the_best_for_what_was_not_counted():
    model, rest = Bigram.fit(walk(1, 50_000)), walk(2, 50_000)
    assert model.weights.sum() == pytest.approx(1)
    best = model.evaluate(rest).perplexity
    for others in ([1 / 3, 1 / 3, 1 / 3], [0.999, 0.0005, 0.0005], [0.5, 0.5, 1e-9]):
        model.weights = np.array(others)
        assert model.evaluate(rest).perplexity > best


def test_what_was_never_seen_is_possible():
    model = Bigram.fit(Tokens([5, 6] * 500, 100))
    assert math.isfinite(model.evaluate(Tokens([7, 99, 8], 100)).perplexity)


@pytest.mark.parametrize("count", [1, 2, 25])
def test_very_short_texts_will_do(count):
    score = Bigram.fit(Tokens([5] * count, 10)).evaluate(Tokens([5], 10))
    assert 1 <= score.perplexity < 10


def test_bits_per_byte_do_not_depend_on_the_tokens():
    tokens = walk(2, 1000).tokens
    score = Bigram.fit(walk(1, 3000)).evaluate(Tokens(tokens, 50, num_bytes=4000))
    assert score.bits_per_byte == pytest.approx(math.log2(score.perplexity) / 4)


def test_some_of_a_long_text_will_do():
    whole, some = (Bigram.fit(walk(1, 60_000), max_tokens) for max_tokens in (10**6, 20_000))
    assert some._counts.sum() < 20_000 < whole._counts.sum()
    scores = [
        model.evaluate(walk(2, 20_000), max_tokens).perplexity for model, max_tokens in [(whole, 10**6), (some, 5000)]
    ]
    assert scores[0] == pytest.approx(scores[1], rel=0.2)
