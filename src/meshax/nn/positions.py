"""Where a token stands: sinusoids, rotations, learned vectors and relative biases."""

import math
from typing import Any

import equinox as eqx
import jax.numpy as jnp

from ..dim import Dim, Dims
from ..errors import ArgumentError
from ..ops import arange, concat, cos, exp, gather, maximum, minimum, sin, where
from ..ops import log as log_
from ..ops import slice as slice_
from ..sources import operation
from ..tensors import Tensor
from .linear import normal_parameter

_BASE = 10_000.0


def _half(dim: Dim, what: str) -> Dim:
    """Returns the dim of the frequencies: sines and cosines go in pairs."""
    if dim.size % 2:
        raise ArgumentError(f"{what} positions need an even size, and {dim.name} has {dim.size}.", fix="add one to it.")
    return Dim(dim.name, dim.size // 2)


def _angles(positions: Tensor, dim: Dim) -> Tensor:
    """Returns the angle of each position for each of the dim's frequencies."""
    frequencies = exp(arange(dim).astype(jnp.float32) * (-math.log(_BASE) / dim.size))
    return positions.astype(jnp.float32) * frequencies


@operation
def sinusoidal(positions: Tensor, dim: Dim) -> Tensor:
    """Returns sines and cosines of positions along a dim of even size, as in the first Transformer.

    Communication: none, unless the dim is split.
    """
    angles = _angles(positions, _half(dim, "sinusoidal"))
    return concat([sin(angles), cos(angles)], dim.name)


@operation
def rotary(x: Tensor, positions: Tensor, dim: str) -> Tensor:
    """Turns pairs of elements of a dim by angles that grow with the position.

    Communication: none, unless the dim is split.
    """
    half = _half(x.dim(dim), "rotary")
    angles = _angles(positions, half)
    first, second = slice_(x, dim, 0, half.size), slice_(x, dim, half.size, half.size)
    sine, cosine = sin(angles).astype(x.dtype), cos(angles).astype(x.dtype)
    return concat([first * cosine - second * sine, second * cosine + first * sine], dim)


class RelativeBias(eqx.Module):
    """A learned number for each head and each distance, far distances sharing one (as in T5).

    Communication: none, unless the buckets are split.
    """

    weight: Tensor
    farthest: int = eqx.field(static=True)
    both_ways: bool = eqx.field(static=True)

    @classmethod
    @operation
    def init(
        cls,
        key: Any,
        heads: Dims,
        stack: Dims = (),
        buckets: int = 32,
        farthest: int = 128,
        both_ways: bool = False,
    ) -> "RelativeBias":
        """Makes one for so many buckets of distances; half of them are for keys after the query, if these are seen."""
        weight = normal_parameter(key, (*stack, Dim("distances", buckets), *heads), 0.02)
        return cls(weight, farthest, both_ways)

    @operation
    def __call__(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Returns what to add to the scores, from the positions of queries and keys."""
        buckets = self.weight.dim("distances").size // (2 if self.both_ways else 1)
        distance = queries - keys
        bucket = self._bucket(maximum(distance, 0), buckets)
        if self.both_ways:
            bucket = where(distance < 0, buckets + self._bucket(-distance, buckets), bucket)
        return gather(self.weight, bucket, "distances")

    def _bucket(self, distance: Tensor, buckets: int) -> Tensor:
        exact = buckets // 2
        scale = (buckets - exact) / math.log(self.farthest / exact)
        far = exact + (log_(maximum(distance, 1).astype(jnp.float32) / exact) * scale).astype(jnp.int32)
        return where(distance < exact, distance, minimum(far, buckets - 1))
