"""Layers without parameters that make images smaller and larger."""

from collections.abc import Mapping

import equinox as eqx

from ..sources import operation
from ..spatial import max_pool, mean_pool, resize
from ..tensors import Tensor

_Sizes = tuple[tuple[str, int], ...]


class MaxPool(eqx.Module):
    """Takes the maximum of each window.

    Communication: as `mx.max_pool`.
    """

    windows: _Sizes = eqx.field(static=True)
    stride: int | None = eqx.field(static=True)
    padding: str = eqx.field(static=True)

    def __init__(self, windows: Mapping[str, int], stride: int | None = None, padding: str = "valid"):
        """Takes the arguments of `mx.max_pool`."""
        self.windows, self.stride, self.padding = tuple(windows.items()), stride, padding

    @operation
    def __call__(self, x: Tensor) -> Tensor:
        """Pools."""
        return max_pool(x, dict(self.windows), self.stride, self.padding)


class MeanPool(MaxPool):
    """Takes the mean of each window; padding never enters it.

    Communication: as `mx.mean_pool`.
    """

    @operation
    def __call__(self, x: Tensor) -> Tensor:
        """Pools."""
        return mean_pool(x, dict(self.windows), self.stride, self.padding)


class Upsample(eqx.Module):
    """Makes dims larger by whole factors.

    Communication: as `mx.resize`.
    """

    factors: _Sizes = eqx.field(static=True)
    method: str = eqx.field(static=True)

    def __init__(self, factors: Mapping[str, int], method: str = "nearest"):
        """Takes a factor for each dim, and a method of `mx.resize`."""
        self.factors, self.method = tuple(factors.items()), method

    @operation
    def __call__(self, x: Tensor) -> Tensor:
        """Enlarges."""
        return resize(x, {dim: x.dim(dim).size * factor for dim, factor in self.factors}, self.method)
