"""Normalisation over named dims, computed in float32."""

import equinox as eqx
import jax.numpy as jnp

from ..dim import Dims
from ..ops import mean, ones, rsqrt, zeros
from ..sources import operation
from ..tensors import Tensor, param


class RMSNorm(eqx.Module):
    """Divides by the root mean square over some dims, and scales.

    Communication: an all-reduce of one number for each element of the other dims, if the dims are split.
    """

    scale: Tensor
    over: tuple[str, ...] = eqx.field(static=True)
    epsilon: float = eqx.field(static=True)

    @classmethod
    @operation
    def init(cls, over: Dims, stack: Dims = (), epsilon: float = 1e-6) -> "RMSNorm":
        """Makes one that scales by one."""
        return cls(param(ones((*stack, *over))), tuple(d.name for d in over), epsilon)

    @operation
    def __call__(self, x: Tensor) -> Tensor:
        """Normalises."""
        wide = x.astype(jnp.float32)
        return (wide * rsqrt(mean(wide * wide, self.over) + self.epsilon) * self.scale).astype(x.dtype)


class LayerNorm(eqx.Module):
    """Subtracts the mean over some dims, divides by the standard deviation, scales and shifts.

    Communication: two all-reduces of one number for each element of the other dims, if the dims are split.
    """

    scale: Tensor
    shift: Tensor
    over: tuple[str, ...] = eqx.field(static=True)
    epsilon: float = eqx.field(static=True)

    @classmethod
    @operation
    def init(cls, over: Dims, stack: Dims = (), epsilon: float = 1e-6) -> "LayerNorm":
        """Makes one that scales by one and shifts by zero."""
        dims = (*stack, *over)
        return cls(param(ones(dims)), param(zeros(dims)), tuple(d.name for d in over), epsilon)

    @operation
    def __call__(self, x: Tensor) -> Tensor:
        """Normalises."""
        wide = x.astype(jnp.float32)
        centred = wide - mean(wide, self.over)
        normal = centred * rsqrt(mean(centred * centred, self.over) + self.epsilon)
        return (normal * self.scale + self.shift).astype(x.dtype)
