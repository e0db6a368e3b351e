"""A moving average of the parameters, kept beside them: it often predicts better than they do.

The average is part of the optimizer's state: stored by slices where that is, saved and restored with it, and left alone
by a step that changes nothing. In the first updates it forgets faster, so that the first parameters do not linger.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..errors import ArgumentError
from ..ops import minimum, zeros
from ..tensors import Tensor, is_tensor, with_role
from .contract import ROLE, Optimizer, Tree, stored


class AveragedState(NamedTuple):
    """The state of an optimizer that averages: the average, how many updates it is of, and the optimizer's own."""

    average: Any
    count: Any
    inner: Any


@dataclass(frozen=True)
class Averaged(Optimizer[AveragedState]):
    """An optimizer that keeps an average of the parameters; make one with `averaged`."""

    optimizer: Optimizer[Any]
    decay: float

    def first_state(self, params: Any) -> AveragedState:
        """Returns the parameters as their own average."""
        count = stored(zeros((), jnp.int32))
        return AveragedState(stored(params), count, self.optimizer.first_state(params))

    def update(self, grads: Any, state: AveragedState, params: Tree) -> tuple[Tree, AveragedState]:
        """Updates, then moves the average towards the new parameters."""
        params, inner = self.optimizer.update(grads, state.inner, params)
        count = state.count + 1
        updates = count.astype(jnp.float32)
        step = 1.0 - minimum((updates + 1.0) / (updates + 10.0), self.decay)

        def moved(average: Any, new: Any) -> Any:
            if not is_tensor(average):
                return new
            wide = average.astype(jnp.float32)
            after: Tensor = wide + (new.astype(jnp.float32) - wide) * step
            return with_role(after.astype(average.dtype), ROLE)

        average = jax.tree.map(moved, state.average, params, is_leaf=is_tensor)
        return params, AveragedState(average, with_role(count, ROLE), inner)


def averaged(optimizer: Optimizer[Any], decay: float) -> Averaged:
    """Makes an optimizer that keeps a moving average of the parameters; its state tells it: `state.average`.

    Args:
        optimizer: changes the parameters.
        decay: what the average keeps of itself in an update, as in 0.999; less in the first ones: (1 + n) / (10 + n)
            after n updates.

    Communication of a step: the optimizer's.
    """
    if not 0 < decay < 1:
        raise ArgumentError(
            f"a moving average cannot keep {decay} of itself.", fix="give a number between 0 and 1, as in 0.999."
        )
    return Averaged(optimizer, decay)
