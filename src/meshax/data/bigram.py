"""A bigram language model: what a model has to beat before it has learned anything worth its cost.

The probability of a token is a mixture of three: how often it came after the one before it, how often it came at all,
and one over the number of tokens. How much of each is fitted (by expectation maximization) to training tokens that were
not counted.
"""

import math
from dataclasses import dataclass

import numpy as np

from .tokens import Tokens
from .vocabulary import END

_STRETCH = 1 << 14  # tokens, at most
_FITTED = 10  # of ten stretches, one is not counted but fitted to


@dataclass(frozen=True)
class Score:
    """How well a model predicts a text: the lower the better."""

    perplexity: float  # per token
    bits_per_byte: float  # of the text, whatever the tokens


class Bigram:
    """An interpolated bigram model. Make one with `Bigram.fit`."""

    def __init__(self, size: int, before: np.ndarray, after: np.ndarray):
        self._size = size
        self._pairs, self._counts = np.unique(before * size + after, return_counts=True)
        self._contexts = np.bincount(before, minlength=size)
        self._unigram = np.bincount(after, minlength=size) / len(after)
        self.weights = np.full(3, 1 / 3)  # of the three models

    @classmethod
    def fit(cls, train: Tokens, max_tokens: int = 20_000_000) -> "Bigram":
        """Makes a model of a text, or of some of it, taken evenly."""
        stretches = _stretches(train, max_tokens)
        counted = [stretch for number, stretch in enumerate(stretches) if number % _FITTED] or stretches
        model = cls(train.vocabulary_size, *_joined(counted))
        model._fit_weights(*_joined(stretches[::_FITTED]))
        return model

    def evaluate(self, held_out: Tokens, max_tokens: int = 20_000_000) -> Score:
        """Returns how well the model predicts a text, or some of it, taken evenly."""
        nats = count = 0.0
        for before, after in _stretches(held_out, max_tokens):
            nats -= float(np.log(self.weights @ self._predictions(before, after)).sum())
            count += len(after)
        bits = nats / count / math.log(2)
        return Score(math.exp(nats / count), bits * len(held_out) / held_out.num_bytes)

    def _predictions(self, before: np.ndarray, after: np.ndarray) -> np.ndarray:
        """Returns what the three models say of each token after another: [model, token]."""
        pairs = before * self._size + after
        places = np.minimum(np.searchsorted(self._pairs, pairs), len(self._pairs) - 1)
        counts = np.where(self._pairs[places] == pairs, self._counts[places], 0)
        bigram = counts / np.maximum(self._contexts[before], 1)
        return np.stack([bigram, self._unigram[after], np.full(len(after), 1 / self._size)])

    def _fit_weights(self, before: np.ndarray, after: np.ndarray) -> None:
        predictions = self._predictions(before, after)
        for _ in range(50):
            mixture = self.weights[:, None] * predictions
            self.weights = (mixture / mixture.sum(0)).mean(1)
        # Of a text without surprises nothing would be left for tokens that were never seen.
        self.weights = (self.weights + 1e-6) / (self.weights + 1e-6).sum()


def _joined(stretches: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    before, after = zip(*stretches, strict=True)
    return np.concatenate(before), np.concatenate(after)


def _stretches(tokens: Tokens, max_tokens: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns stretches of the stream, spread evenly over it, as the tokens before and the tokens."""
    stretch = max(1, min(_STRETCH, len(tokens) // (2 * _FITTED)))
    stride = stretch * max(1, math.ceil(len(tokens) / max_tokens))
    stretches = []
    for begin in range(0, len(tokens), stride):
        after = tokens.tokens[begin : begin + stretch].astype(np.int64)
        first = int(tokens.tokens[begin - 1]) if begin else END
        stretches.append((np.concatenate([[first], after[:-1]]), after))
    return stretches
