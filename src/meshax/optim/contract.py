"""What every optimizer is: a first state, and an update of slices where the state is stored.

State is stored in the role "optimizer": under `Layout(..., optimizer="d_model:data")` gradients are reduce-scattered
into it, the update runs on the slices, and new parameters are gathered: ZeRO-1. With the same rules for `params`,
parameters and gradients are stored like the state already: ZeRO-3. The update of an optimizer knows nothing of this:
it gets gradients, state and parameters alike.
"""

from abc import ABC, abstractmethod
from functools import partial
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp

from ..dim import show
from ..errors import ShapeError
from ..sources import operation
from ..tensors import Tensor, is_tensor, with_role

ROLE = "optimizer"
State = TypeVar("State")
Tree = TypeVar("Tree")  # of parameters


class Optimizer(ABC, Generic[State]):
    """An optimizer of pytrees of tensors: `from_optax`, `Adafactor`, `clipped` and `by_name` make one.

    One of your own gives `first_state` and `update`; what they compute with our operations is exact under every layout.
    """

    @partial(operation, name="optimizer")
    def init(self, params: Any) -> State:
        """Returns the first state, its tensors stored in the role "optimizer".

        Communication: none.
        """
        return self.first_state(stored(params))

    @partial(operation, name="optimizer")
    def apply(self, grads: Any, state: State, params: Tree) -> tuple[Tree, State]:
        """Returns the next parameters and the next state.

        Communication: what it takes to bring gradients to where the state is stored, and parameters back: one
        reduce-scatter and one all-gather of each if the optimizer's rules split them, otherwise the all-reduce alone.
        And what the update communicates: nothing, if it works element by element.
        """
        _check_alike(grads, params)
        moved, state = self.update(stored(grads), state, stored(params))
        return jax.tree.map(_in_role_of, moved, params, is_leaf=is_tensor), state

    @abstractmethod
    def first_state(self, params: Any) -> State:
        """Returns the first state, given parameters in the role "optimizer"."""

    @abstractmethod
    def update(self, grads: Any, state: State, params: Tree) -> tuple[Tree, State]:
        """Returns the next parameters and the next state, given tensors that are all in the role "optimizer"."""


def stored(tree: Tree) -> Tree:
    """Brings the tensors of a pytree to where the optimizer's state is stored."""
    return jax.tree.map(lambda x: with_role(x, ROLE) if is_tensor(x) else x, tree, is_leaf=is_tensor)


def in_float32(x: Tensor) -> Tensor:
    """Returns a tensor that is settled in float32; one that is already, as it is."""
    return x if x.dtype == jnp.float32 else x.astype(jnp.float32)


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """Returns the leaves of a pytree, tensors whole, and its structure."""
    return jax.tree.flatten(tree, is_leaf=is_tensor)


def tensors(tree: Any) -> list[Tensor]:
    """Returns the tensors of a pytree."""
    return [x for x in flatten(tree)[0] if is_tensor(x)]


def _in_role_of(x: Any, like: Any) -> Any:
    return with_role(x, like.role) if is_tensor(x) else x


def _check_alike(grads: Any, params: Any) -> None:
    gradients, parameters = _by_name(grads), _by_name(params)
    odd = [f"no gradient of {name}" for name in parameters if name not in gradients]
    odd += [f"no parameter {name}" for name in gradients if name not in parameters]
    if odd:
        raise ShapeError(
            "the gradients are not a tree like the parameters.",
            values="; ".join(odd),
            fix="pass what mx.grad gave for these parameters.",
        )
    wrong = [
        f"{name}: {show(g.dims) if is_tensor(g) else type(g).__name__} for {show(p.dims)}"
        for name, g, p in ((name, gradients[name], p) for name, p in parameters.items())
        if is_tensor(p) and getattr(g, "dims", None) != p.dims
    ]
    if wrong:
        raise ShapeError(
            "a gradient does not have the dims of its parameter.",
            values="; ".join(wrong),
            fix="pass what mx.grad gave for these parameters.",
        )


def _by_name(tree: Any) -> dict[str, Any]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_tensor)
    return {jax.tree_util.keystr(path) or "the tensor": leaf for path, leaf in leaves}
