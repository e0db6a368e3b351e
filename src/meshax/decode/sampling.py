"""Sampling: one token after the other, each drawn from what the model predicts.

The text so far stands in a window of fixed length, so there is one program for all steps; a longer text slides on.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..dim import Dim
from ..layout import Layout, RulesLike
from ..mesh import Mesh
from ..models.contract import LanguageModel
from ..ops import arange, top_k, where
from ..ops import max as max_
from ..ops import min as min_
from ..ops import sum as sum_
from ..ops.randomness import categorical
from ..program import spmd
from ..tensors import Tensor, tensor

_NEVER = -1e9


def next_token(logits: Tensor, key: Any, temperature: Any, among: int | None) -> Tensor:
    """Draws a token from logits, [..., vocab].

    Args:
        logits: of the next token.
        key: for the draw.
        temperature: below 1 the likely become likelier; a tensor of one number.
        among: how many of the likeliest tokens may be drawn; None for all.

    Communication: what `mx.top_k` and `mx.random.categorical` send if the vocabulary is split: a few numbers.
    """
    if among is not None and among < logits.dim("vocab").size:
        best, _ = top_k(logits, over="vocab", k=Dim("among", among))
        return categorical(key, where(logits >= min_(best, "among"), logits / temperature, _NEVER), over="vocab")
    return categorical(key, logits / temperature, over="vocab")


def sampler(
    model: LanguageModel, mesh: Mesh, layout: Layout | RulesLike, length: int, among: int | None
) -> Callable[..., int]:
    """Makes a function of the tokens so far, a key and a temperature that gives the next token."""
    dims = (Dim("batch", 1), Dim("length", length))

    def step(model: LanguageModel, tokens: Tensor, last: Tensor, key: Any, temperature: Tensor) -> Tensor:
        logits = model(tokens).astype(jnp.float32)
        here = (arange(logits.dim("positions")) == last).astype(jnp.float32)
        return max_(next_token(sum_(logits * here, "positions"), key, temperature, among))

    rules = layout if isinstance(layout, Layout) else Layout(layout)
    unsplit = Layout(
        {d: a for d, a in rules.rules if d not in ("batch", "length", "positions")},
        dict(rules.params),
        dict(rules.optimizer),
    )
    program = spmd(step, mesh, unsplit)

    def draw(tokens: Sequence[int], key: Any, temperature: float) -> int:
        window = list(tokens[-length:])
        padded = np.array([window + [0] * (length - len(window))], np.int32)
        last, warmth = tensor(np.int32(len(window) - 1), ()), tensor(np.float32(max(temperature, 1e-4)), ())
        return int(program(model, tensor(padded, dims), last, key, warmth))

    return draw


def generate(
    draw: Callable[..., int],
    start: Sequence[int],
    count: int,
    end: int,
    seed: int,
    temperature: float,
    begin: int | None = None,
) -> Iterator[int]:
    """Yields tokens drawn one after the other, until there are `count` or the end of the document.

    Args:
        draw: what `sampler` returned.
        start: the tokens before.
        count: how many tokens there may be.
        end: the token that ends a document.
        seed: chooses the draws.
        temperature: below 1 the likely become likelier.
        begin: the token that begins a document, if it is not the one that ends another.
    """
    tokens, key = [end if begin is None else begin, *start], jax.random.key(seed)
    for number in range(count):
        token = draw(tokens, jax.random.fold_in(key, number), temperature)
        if token == end:
            return
        tokens.append(token)
        yield token
