"""Dropout: the same elements are dropped in every layout."""

from typing import Any

import equinox as eqx

from ..ops import broadcast, where
from ..ops.randomness import bernoulli
from ..sources import operation
from ..tensors import Tensor


class Dropout(eqx.Module):
    """Zeroes each element with a probability, and scales the others up; without a key it does nothing.

    Communication: none.
    """

    rate: float = eqx.field(static=True, default=0.0)
    shared: tuple[str, ...] = eqx.field(static=True, default=())  # dims along which all or none is dropped

    @operation
    def __call__(self, x: Tensor, key: Any = None) -> Tensor:
        """Drops."""
        if key is None or self.rate == 0:
            return x
        drawn = tuple(d for d in x.dims if d.name not in self.shared)
        return where(broadcast(bernoulli(key, drawn, 1 - self.rate), x.dims), x / (1 - self.rate), 0.0)
