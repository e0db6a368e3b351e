"""Dropout: the same elements are dropped in every layout."""

from typing import Any

import equinox as eqx

from ..ops.randomness import dropout
from ..sources import operation
from ..tensors import Tensor


class Dropout(eqx.Module):
    """Zeroes each element with a probability, and scales the others up; without a key it does nothing.

    Communication: none.
    """

    rate: float = eqx.field(static=True, default=0.0)

    @operation
    def __call__(self, x: Tensor, key: Any = None) -> Tensor:
        """Drops."""
        return x if key is None or self.rate == 0 else dropout(key, x, self.rate)
