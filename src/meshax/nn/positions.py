"""Where a token stands: sinusoids, rotations, learned vectors and relative biases."""

import math
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax.numpy as jnp

from ..dim import Dim, Dims
from ..errors import ArgumentError, did_you_mean
from ..ops import arange, clip, concat, cos, exp, gather, maximum, minimum, sin, where
from ..ops import log as log_
from ..ops import slice as slice_
from ..sources import operation
from ..tensors import Tensor
from .linear import normal_parameter

_BASE = 10_000.0
BUCKETS = 32  # of distances, usually
# How rotations reach beyond the length that a model was trained for, and between which numbers of turns within that
# length pairs pass from slowed down to kept, where some are kept.
SCALINGS: dict[str, tuple[float, float] | None] = {
    "none": None,
    "linear": None,
    "dynamic": None,
    "yarn": (1.0, 32.0),
    "llama3": (1.0, 4.0),
}


def _half(dim: Dim, what: str) -> Dim:
    """Returns the dim of the frequencies: sines and cosines go in pairs."""
    if dim.size % 2:
        raise ArgumentError(f"{what} positions need an even size, and {dim.name} has {dim.size}.", fix="add one to it.")
    return Dim(dim.name, dim.size // 2)


@dataclass(frozen=True)
class Rotation:
    """How fast pairs of elements turn, and how that reaches beyond the length a model was trained for.

    Args:
        theta: the base: pair i of n turns by `theta ** (-i / n)` a position.
        scaling: "none"; "linear": all turn more slowly by the factor; "dynamic": the base grows with examples longer
            than the original length; "yarn" and "llama3": pairs that turn seldom within the original length are slowed
            down, those that turn often are not (yarn passes from one to the other along the pairs, llama3 along the
            turns).
        factor: how many times longer.
        original: the length a model was trained for.
        low: turns within the original length up to which a pair is slowed down; 0: 1.
        high: turns from which on it is not; 0: 32 for yarn, 4 for llama3.
        attention: what yarn multiplies queries and keys by; 0: what suits the factor.
        whole: whether yarn begins and ends its passage at whole pairs.
    """

    theta: float = _BASE
    scaling: str = "none"
    factor: float = 1.0
    original: int = 0
    low: float = 0.0
    high: float = 0.0
    attention: float = 0.0
    whole: bool = True

    def __post_init__(self) -> None:
        """Raises if there can be no such rotation."""
        if self.scaling not in SCALINGS:
            raise ArgumentError(
                f"there is no scaling {self.scaling!r} of rotations.", fix=did_you_mean(self.scaling, SCALINGS)
            )
        if not (self.theta > 1 and self.factor >= 1):
            raise ArgumentError(
                "rotations have a base above 1, and a factor of at least 1.",
                values=f"theta {self.theta}, factor {self.factor}",
                fix="for example theta 10000 and factor 1.",
            )
        if self.scaling not in ("none", "linear") and self.original < 1:
            raise ArgumentError(
                f"rotations scaled by {self.scaling!r} start from a length, and there is none.",
                fix="give the length that the model was trained for.",
            )

    @property
    def stretch(self) -> float:
        """What sines and cosines are multiplied by."""
        if self.scaling != "yarn":
            return 1.0
        return self.attention or 0.1 * math.log(self.factor) + 1.0

    def frequencies(self, pairs: Dim, length: int = 0) -> Tensor:
        """Returns the angle that each pair turns by from one position to the next, in examples of some length."""
        theta = self.theta
        if self.scaling == "dynamic" and length > self.original and pairs.size > 1:
            longer = self.factor * length / self.original - (self.factor - 1)
            theta *= longer ** (pairs.size / (pairs.size - 1))
        plain = exp(arange(pairs).astype(jnp.float32) * (-math.log(theta) / pairs.size))
        if self.scaling == "linear":
            return plain / self.factor
        usual = SCALINGS[self.scaling]
        if usual is None:
            return plain
        low, high = self.low or usual[0], self.high or usual[1]
        if self.scaling == "llama3":
            turns = plain * (self.original / (2 * math.pi))
            kept = clip((turns - low) / (high - low), 0.0, 1.0)
        else:
            first, last = (self._pair_of(turns, pairs.size) for turns in (high, low))
            if self.whole:
                first, last = math.floor(first), math.ceil(last)
            first, last = max(first, 0), min(last, 2 * pairs.size - 1)
            kept = 1.0 - clip((arange(pairs).astype(jnp.float32) - first) / max(last - first, 1e-3), 0.0, 1.0)
        return plain * (kept + (1.0 - kept) / self.factor)

    def _pair_of(self, turns: float, pairs: int) -> float:
        """Returns which pair (or what lies between two) turns so often within the original length."""
        return pairs * math.log(self.original / (turns * 2 * math.pi)) / math.log(self.theta)


def _angles(positions: Tensor, frequencies: Tensor) -> Tensor:
    """Returns the angle of each position for each frequency."""
    return positions.astype(jnp.float32) * frequencies


@operation
def sinusoidal(positions: Tensor, dim: Dim) -> Tensor:
    """Returns sines and cosines of positions along a dim of even size, as in the first Transformer.

    Communication: none, unless the dim is split.
    """
    angles = _angles(positions, Rotation().frequencies(_half(dim, "sinusoidal")))
    return concat([sin(angles), cos(angles)], dim.name)


@operation
def rotary(x: Tensor, positions: Tensor, dim: str, rotation: Rotation | None = None, length: int = 0) -> Tensor:
    """Turns pairs of elements of a dim by angles that grow with the position.

    Args:
        x: what is turned.
        positions: where its elements stand.
        dim: element i and element i + n of its 2 n elements are a pair.
        rotation: how fast the pairs turn; by default as in the first model that turned them.
        length: of the example, which a dynamic scaling depends on.

    Communication: none, unless the dim is split.
    """
    rotation = rotation or Rotation()
    half = _half(x.dim(dim), "rotary")
    angles = _angles(positions, rotation.frequencies(half, length))
    first, second = slice_(x, dim, 0, half.size), slice_(x, dim, half.size, half.size)
    sine, cosine = sin(angles), cos(angles)
    if rotation.stretch != 1.0:
        sine, cosine = sine * rotation.stretch, cosine * rotation.stretch
    sine, cosine = sine.astype(x.dtype), cosine.astype(x.dtype)
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
        buckets: int = BUCKETS,
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
