"""Products with a parameter: linear maps and embeddings."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax.numpy as jnp

from ..dim import Dim, Dims
from ..layout import current
from ..ops import broadcast, concat, gather, transpose, zeros
from ..ops.randomness import truncated_normal
from ..sources import operation
from ..tensors import Tensor, param
from . import rings

_TRUNCATED = 0.87962566  # the standard deviation of a normal number cut at two
_FEW = 10_000_000  # numbers, up to which XLA takes a product with a vector for a sum


@operation
def normal_parameter(key: Any, dims: Dims, deviation: float) -> Tensor:
    """Returns a parameter of normal numbers, none further than two deviations from zero; the same in every layout."""
    return param(truncated_normal(key, dims, -2.0, 2.0) * (deviation / _TRUNCATED))


class Linear(eqx.Module):
    """Maps some dims to others, and adds a bias if it has one.

    Communication: a pending sum of the result if the dims mapped from are split; in rings, if the layout asks for them
    (see `rings.py`).
    """

    weight: Tensor
    before: tuple[str, ...] = eqx.field(static=True)
    after: tuple[str, ...] = eqx.field(static=True)
    bias: Tensor | None = None

    @classmethod
    @operation
    def init(
        cls, key: Any, before: Dims, after: Dims, stack: Dims = (), scale: float = 1.0, bias: bool = False
    ) -> "Linear":
        """Makes a map whose results vary as much as what it is given, times `scale`; a bias begins with zeros."""
        deviation = scale / math.sqrt(math.prod(d.size for d in before))
        weight = normal_parameter(key, (*stack, *before, *after), deviation)
        names = tuple(d.name for d in before), tuple(d.name for d in after)
        return cls(weight, *names, param(zeros((*stack, *after))) if bias else None)

    @operation
    def __call__(self, x: Tensor, names: Mapping[str, str] | None = None) -> Tensor:
        """Applies the map.

        Args:
            x: what is mapped.
            names: other names for dims of the result, which it has before a bias is added: a pending sum goes straight
                to where they are split.
        """
        out = rings.product(x, self.weight.astype(x.dtype), self.before, names or {})
        return out if self.bias is None else out + self.bias.astype(x.dtype)

    @operation
    def by_rows(self) -> "Linear":
        """Returns the same map, as compilers map a vector fastest.

        A product of a vector and few numbers is a sum to compilers for GPUs: it is fast where what makes up a number of
        the result is stored in one piece.

        Communication: none.
        """
        placement = current().placement(self.weight.dims)
        own = [d for d in self.weight.dims if d.name in (*self.before, *self.after)]
        if math.prod(d.size / placement.count(d) for d in own) > _FEW:
            return self
        rest = [d.name for d in self.weight.dims if d.name not in self.before]
        return replace(self, weight=param(transpose(self.weight, (*rest, *self.before))))


@operation
def side_by_side(maps: Sequence[Linear], dim: str) -> Linear:
    """Returns one map in place of several of the same input: a processor that reads little else starts less often.

    Args:
        maps: to what the last of them maps to, and possibly one more dim, which the layout does not split; all with a
            bias or none.
        dim: the name of a dim along which their results stand, in place of that one.

    Communication: none.
    """
    after = maps[-1].after

    def joined(parts: Sequence[Tensor]) -> Tensor:
        every = []
        for one, part in zip(maps, parts, strict=True):
            more = {name: dim for name in one.after if name not in after}
            wide = part.rename(**more) if more else broadcast(part, (Dim(dim, 1), *part.dims))
            before = [d.name for d in wide.dims if d.name not in (dim, *after)]
            every.append(transpose(wide, (*before, dim, *after)))
        return param(concat(every, dim))

    biases = [one.bias for one in maps if one.bias is not None]
    weight = joined([one.weight for one in maps])
    return Linear(weight, maps[0].before, (dim, *after), joined(biases) if biases else None)


class Embedding(eqx.Module):
    """A vector for each number below the size of a dim.

    Communication: a pending sum of the result if the dim is split.
    """

    weight: Tensor
    over: str = eqx.field(static=True)

    @classmethod
    @operation
    def init(cls, key: Any, over: Dim, to: Dims, scale: float = 1.0) -> "Embedding":
        """Makes an embedding with vectors of numbers of deviation `scale`."""
        return cls(normal_parameter(key, (over, *to), scale), over.name)

    @operation
    def __call__(self, numbers: Tensor, dtype: Any = jnp.float32) -> Tensor:
        """Looks the numbers up."""
        return gather(self.weight.astype(dtype), numbers, self.over)
