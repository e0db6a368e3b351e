"""Normalisation over named dims, computed in float32."""

import equinox as eqx
import jax.numpy as jnp
from jax import lax

from ..compat import Array
from ..dim import Dims
from ..ops import mean, ones, zeros
from ..ops.elementwise import apply
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
        size = mean(wide * wide, self.over)

        def normal(wide: Array, size: Array, scale: Array) -> Array:
            return (wide * lax.rsqrt(size + self.epsilon) * scale).astype(x.dtype)

        return apply(normal, (wide, size, self.scale), "RMSNorm")


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
        size = mean(centred * centred, self.over)

        def normal(centred: Array, size: Array, scale: Array, shift: Array) -> Array:
            return (centred * lax.rsqrt(size + self.epsilon) * scale + shift).astype(x.dtype)

        return apply(normal, (centred, size, self.scale, self.shift), "LayerNorm")
