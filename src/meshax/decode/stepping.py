"""One more token of every text: what a program does again and again."""

from typing import Any

import jax.numpy as jnp

from ..dim import Dim
from ..nn.cache import as_it_is
from ..ops import arange, maximum, minimum, scan, where
from ..tensors import Tensor
from .choosing import choose, counted, is_among, likelihoods, with_token


def write_tokens(model: Any, cache: Any, state: dict[str, Any], num_pages: int, chunk: Dim) -> tuple[Any, Any, Any]:
    """Returns the cache and the state after a chunk of tokens of each text, and what is told of each token.

    From token to token only the tokens are handed on; where they stand is known before. Each number more would be a
    kernel more, and a GPU takes as long for a small one as for reading a megabyte.
    """

    def step(carry: Any, at: Any) -> Any:
        cache, token, seen = carry
        at = as_it_is(at)  # or every layer would look it up among those of the chunk
        cache, after, told = write_token(model, cache, state | {"token": token, "seen": seen, "at": at}, num_pages)
        return (cache, after["token"], after["seen"]), told

    at = state["at"]
    carry = cache, state["token"], state["seen"]
    (cache, token, seen), told = scan(step, carry, minimum(at + arange(chunk), state["end"]), over=chunk)
    at = at + counted(told["token"] >= 0, chunk)
    return cache, state | {"token": token, "seen": seen, "at": at}, told


def write_token(model: Any, cache: Any, state: dict[str, Any], num_pages: int) -> tuple[Any, Any, dict[str, Tensor]]:
    """Returns the cache and the state after one more token of each text, and what is told: `token`, `likelihoods`.

    Args:
        model: the model.
        cache: what is kept of the tokens before.
        state: what is to be known of the slots (`slots.state_of`); the token of one whose text has ended is -1.
        num_pages: how many pages of the cache are read, at most.
    """
    token, at, begin, seen = (state[name] for name in ("token", "at", "begin", "seen"))
    logits, cache = model.step(maximum(token, 0), at, cache, num_pages)
    logits = logits.astype(jnp.float32)
    chosen = choose(logits, state["wishes"], at + 1, at - begin, seen)
    told = likelihoods(logits, chosen, state["wishes"])
    may_follow = (at == begin) | ~is_among(token, state["stop"], "stop")  # a prompt may end with what stops a text
    after = where((token >= 0) & (at < state["end"]) & may_follow, chosen, -1)
    moved = {
        "token": after,
        "at": where(after >= 0, at + 1, at),
        "seen": seen if seen is None else with_token(seen, chosen),
    }
    return cache, state | moved, told | {"token": after}
