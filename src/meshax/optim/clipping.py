"""Clipping by the global norm: exact under every layout.

The norm is one number of all gradients together. Each processor sums the squares of its own slices, padding left out,
and what several processors hold alike is counted once.
"""

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..compat import Array
from ..errors import ArgumentError
from ..ops.elementwise import apply, sqrt, square, where
from ..ops.reduction import sum as sum_
from ..sources import operation
from ..tensors import Tensor, check_tensor, is_tensor, settle, with_role
from .contract import ROLE, Optimizer, Tree, flatten, in_float32, stored
from .sums import reduce_together


@operation
def global_norm(tree: Any) -> Tensor:
    """Returns the root of the sum of squares of all elements of all tensors, in float32.

    Communication: one all-reduce of a number for each tensor that is split; a pending sum is reduced first.
    """
    leaves = [check_tensor(x, "optim.global_norm") for x in flatten(tree)[0]]
    squares = reduce_together([sum_(square(in_float32(x))) for x in leaves])
    return sqrt(apply(_added, (Tensor(jnp.zeros((), jnp.float32), ()), *squares), "optim.global_norm"))


@operation
def clip_by_global_norm(grads: Tree, limit: float) -> tuple[Tree, Tensor]:
    """Scales gradients down, all by one factor, to a global norm of at most `limit`; returns them and their norm.

    As in optax, a norm that is infinite gives zeros (NaN for the infinite elements), and one that is NaN gives NaN
    everywhere: look at the norm, which is the one before clipping, to skip such a step.

    Communication: that of `global_norm`. Gradients stay in the role they have: before an optimizer whose rules split
    its state, `clipped` sends less, as it clips what was reduce-scattered.
    """
    _check_limit(limit)
    grads = jax.tree.map(lambda g: settle(check_tensor(g, "optim.clip_by_global_norm")), grads, is_leaf=is_tensor)
    norm = global_norm(grads)
    scale = where(norm < limit, 1.0, limit / norm)
    return jax.tree.map(lambda g: with_role(apply(_scaled, (g, scale), "clip"), g.role), grads, is_leaf=is_tensor), norm


def _added(*numbers: Array) -> Array:
    return functools.reduce(jax.lax.add, numbers)


@functools.partial(jax.jit, inline=True)  # traced once for all of a shape
def _scaled(gradient: Array, scale: Array) -> Array:
    return (gradient * scale).astype(gradient.dtype)


class ClippedState(NamedTuple):
    """The state of a clipped optimizer: the last norm before clipping, and the optimizer's own."""

    norm: Any
    inner: Any


@dataclass(frozen=True)
class Clipped(Optimizer[ClippedState]):
    """An optimizer that clips gradients first; make one with `clipped`."""

    optimizer: Optimizer[Any]
    limit: float

    def first_state(self, params: Any) -> ClippedState:
        """Returns the optimizer's first state, and a norm of 0."""
        return ClippedState(stored(Tensor(jnp.zeros((), jnp.float32), ())), self.optimizer.first_state(params))

    def update(self, grads: Any, state: ClippedState, params: Tree) -> tuple[Tree, ClippedState]:
        """Clips, then updates."""
        grads, norm = clip_by_global_norm(grads, self.limit)
        params, inner = self.optimizer.update(grads, state.inner, params)
        return params, ClippedState(with_role(norm, ROLE), inner)


def clipped(optimizer: Optimizer[Any], limit: float) -> Clipped:
    """Makes an optimizer that clips gradients by their global norm first; its state tells the norm: `state.norm`.

    Communication of a step: the optimizer's, and one all-reduce of a number for each gradient that is split.
    """
    _check_limit(limit)
    return Clipped(optimizer, limit)


def _check_limit(limit: float) -> None:
    if isinstance(limit, int | float) and not limit > 0:
        raise ArgumentError(f"gradients cannot be clipped to a norm of {limit}.", fix="choose a positive number.")
