"""One more token of every text: what a program does again and again."""

from typing import Any

import jax.numpy as jnp

from ..ops import where
from ..tensors import Tensor
from .choosing import choose, is_among, likelihoods, with_token

_FIXED = ("stop", "wishes")  # of a state; the rest moves with the tokens


def parted(state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns what of a state (`slots.state_of`) moves with the tokens, and what does not."""
    return (
        {name: value for name, value in state.items() if name not in _FIXED},
        {name: value for name, value in state.items() if name in _FIXED},
    )


def write_token(model: Any, cache: Any, state: dict[str, Any], num_pages: int) -> tuple[Any, Any, dict[str, Tensor]]:
    """Returns the cache and the state after one more token of each text, and what is told: `token`, `likelihoods`.

    Args:
        model: the model.
        cache: what is kept of the tokens before.
        state: what is to be known of the slots; the token of one whose text has ended is -1.
        num_pages: how many pages of the cache are read, at most.
    """
    at, left, made, seen = (state[name] for name in ("at", "left", "made", "seen"))
    logits, cache = model.step(state["token"], at, cache, num_pages)
    logits = logits.astype(jnp.float32)
    chosen = choose(logits, state["wishes"], at + 1, made, seen)
    told = likelihoods(logits, chosen, state["wishes"])
    writes = left > 0
    after = where(is_among(chosen, state["stop"], "stop"), 0, left - 1)
    moved = {
        "token": where(writes, chosen, state["token"]),
        "at": where(writes, at + 1, at),
        "left": where(writes, after, 0),
        "made": made + 1,
        "seen": seen if seen is None else with_token(seen, chosen),
    }
    return cache, state | moved, told | {"token": where(writes, chosen, -1)}
