"""How likely tokens were, and which others might have come, as OpenAI's completions tell it."""

import math
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

from .texts import HALF, Spelling

Candidates = Sequence[tuple[int, float]]  # tokens and their log-probabilities, the likeliest first


def logprobs_of(
    tokens: Sequence[int],
    likely: Sequence[float],
    candidates: Sequence[Candidates] | None,
    spelling: Spelling,
    name: Callable[[int], str],
) -> dict[str, Any]:
    """Returns what is told of some tokens of a text: each as text, its log-probability, where it begins, its rivals.

    A token that is no text by itself (one that ends a document, a part of a character) is called by its name among the
    rivals. The token that was chosen is always there, so they may be one more than were asked for.

    Args:
        tokens: the tokens.
        likely: their log-probabilities.
        candidates: the likeliest tokens at each place, if they are told.
        spelling: has the text before, and gets the tokens.
        name: what a token is called in the vocabulary.
    """
    ends, rivals = [len(spelling.text)], []
    for token, others in zip(tokens, candidates or [()] * len(tokens), strict=True):
        rivals.append([(_alone(other, spelling, name), log_p) for other, log_p in others if other != token])
        ends.append(len(spelling.add([token])))
    pieces = [spelling.text[start:end] for start, end in zip(ends, ends[1:], strict=False)]
    return {
        "tokens": pieces,
        "token_logprobs": [_number(log_p) for log_p in likely],
        "top_logprobs": None if candidates is None else list(map(_ranked, pieces, likely, rivals)),
        "text_offset": ends[:-1],
    }


def _ranked(piece: str, log_p: float, others: Sequence[tuple[str, float]]) -> dict[str, float | None]:
    """Returns a token and its rivals, the likeliest first; of rivals with one text the likelier is told."""
    each = {**dict(reversed(others)), piece: log_p}
    return {text: _number(x) for text, x in sorted(each.items(), key=lambda pair: -pair[1])}


def _alone(token: int, spelling: Spelling, name: Callable[[int], str]) -> str:
    piece = copy(spelling).add([token])[len(spelling.text) :]
    return name(token) if not piece or HALF in piece else piece


def _number(log_p: float) -> float | None:
    return log_p if math.isfinite(log_p) else None
