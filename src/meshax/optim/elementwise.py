"""optax's transformations on local slices.

An elementwise transformation (SGD, momentum, Adam) gives on each slice what it gives on the whole. One that reduces
over a leaf (a norm, a factored moment) would reduce over the slice alone: the program that runs it is refused, like any
other in which JAX code combines elements of a slice (see `checking/slices.py`).
"""

from dataclasses import dataclass
from typing import Any

import jax
import optax

from ..dim import show
from ..errors import OptimizerError
from ..tensors import settled_array
from .contract import Optimizer, Tree, tensors


@dataclass(frozen=True)
class Elementwise(Optimizer[optax.OptState]):
    """An optax transformation as an optimizer of tensors; make one with `from_optax`."""

    transformation: optax.GradientTransformation

    def first_state(self, params: Any) -> optax.OptState:
        """Returns the transformation's first state, or refuses one that is not shaped like the parameters."""
        state = self.transformation.init(params)
        shapes = {x.dims: settled_array(x).shape for x in tensors(params)}
        wrong = [x for x in tensors(state) if x._array.shape != shapes[x.dims]]
        if wrong:
            raise OptimizerError(
                "this optax transformation does not work element by element.",
                values=", ".join(f"state of shape {x._array.shape} for {show(x.dims)}" for x in wrong[:2]),
                rule="each processor updates its own slice, with state of the slice's shape.",
                fix="use optim.Adafactor, which is exact under every layout, or write an optim.Optimizer of your own.",
            )
        return state

    def update(self, grads: Any, state: optax.OptState, params: Tree) -> tuple[Tree, optax.OptState]:
        """Runs the transformation on the slices."""
        updates, state = self.transformation.update(grads, state, params)
        return jax.tree.map(lambda p, u: (p + u).astype(p.dtype), params, updates), state


def from_optax(transformation: optax.GradientTransformation) -> Elementwise:
    """Makes an optimizer of tensors from an optax transformation, which must work element by element."""
    return Elementwise(transformation)
