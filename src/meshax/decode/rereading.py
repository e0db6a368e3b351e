"""Writing with a model that keeps nothing: it reads the whole text again for each token."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp

from ..dim import Dim, Dims
from ..models.contract import CachingModel, Model
from ..ops import arange, where, zeros
from ..ops import slice as slice_
from ..ops import sum as sum_
from ..spatial import pad
from ..tensors import Tensor


class Rereading(eqx.Module):
    """A language model as one that has a cache: of tokens."""

    model: Any

    def __call__(self, tokens: Tensor) -> Tensor:
        """Returns the logits of the next token at every place."""
        return self.model(tokens)

    def narrowed(self) -> "Rereading":
        """Returns the model as it is."""
        return self

    def empty_cache(self, slots: Dims, places: int, page: int) -> Tensor:
        """Makes room for texts."""
        return zeros((*slots, Dim("length", places)), jnp.int32)

    def prefill(self, tokens: Tensor, lengths: Tensor, cache: Tensor) -> Tensor:
        """Returns the beginnings of texts, in as much room as the cache has."""
        room, length = cache.dim("length").size, tokens.dim("length").size
        if length > room:
            return slice_(tokens, "length", 0, room)
        return pad(tokens, "length", 0, room - length)

    def step(self, tokens: Tensor, at: Tensor, cache: Tensor, num_pages: int) -> tuple[Tensor, Tensor]:
        """Puts a token into each text, reads all of it, and returns the logits of the next one."""
        cache = where(arange(cache.dim("length")) == at, tokens, cache)
        logits = self.model(cache)
        is_last = arange(logits.dim("positions")) == at
        return sum_(where(is_last, logits, 0.0), "positions"), cache


def caching(model: Model) -> CachingModel:
    """Returns the model, which keeps what it has computed, or one that reads everything again."""
    return model if hasattr(model, "empty_cache") else Rereading(model)  # type: ignore[return-value]
