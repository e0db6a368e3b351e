"""optax's transformations on local slices.

An elementwise transformation (SGD, momentum, Adam) gives on each slice what it gives on the whole. One that reduces
over a leaf (a norm, a factored moment) would reduce over the slice alone and be silently wrong, so the update's jaxpr
is looked at first. State is stored in the role "optimizer": under `Layout(..., optimizer="d_model:data")` gradients
are reduce-scattered into it, the update runs on the slices, and new parameters are gathered: ZeRO-1.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import jax

from ..dims import show
from ..errors import OptimizerError
from ..layout import Setting, canonical, current
from ..tensor import Tensor, is_tensor, with_role

# Shape-preserving, and yet an element of the result depends on several of the operand.
_MIXING = frozenset(
    {"cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "sort", "rev", "transpose", "fft", "cholesky", "lu", "qr"}
)
# The result depends on the shape of the slice: random numbers, counters.
_PLACES = frozenset(["random_bits", "threefry2x32", "iota"])


@dataclass(frozen=True)
class Optimizer:
    """An optimizer of tensors; make one with `from_optax`."""

    transformation: Any

    def init(self, params: Any) -> Any:
        """Returns the first state, its tensors stored in the role "optimizer".

        Communication: none.
        """
        stored = _in_role(params, "optimizer")
        state = self.transformation.init(stored)
        shapes = {x.dims: x.array.shape for x in _tensors(stored)}
        _refuse(
            [
                f"state of shape {x.array.shape} for {show(x.dims)}"
                for x in _tensors(state)
                if x.array.shape != shapes[x.dims]
            ]
        )
        return state

    def apply(self, grads: Any, state: Any, params: Any) -> tuple[Any, Any]:
        """Returns the next parameters and the next state.

        Communication: what it takes to bring gradients to where the state is stored, and parameters back: one
        reduce-scatter and one all-gather of each if the optimizer's rules split them, otherwise the all-reduce alone.
        """
        grads, stored = _in_role(grads, "optimizer"), _in_role(params, "optimizer")
        setting = current()
        if setting is not None and _is_split(stored, setting):
            _refuse(_meetings(jax.make_jaxpr(self.transformation.update)(grads, state, stored).jaxpr))
        updates, state = self.transformation.update(grads, state, stored)
        moved = jax.tree.map(lambda p, u: (p + u).astype(p.dtype), stored, updates)
        return _in_roles_of(moved, params), state


def from_optax(transformation: Any) -> Optimizer:
    """Makes an optimizer of tensors from an optax transformation, which must work element by element."""
    return Optimizer(transformation)


def _in_role(tree: Any, role: str) -> Any:
    return jax.tree.map(lambda x: with_role(x, role) if is_tensor(x) else x, tree, is_leaf=is_tensor)


def _in_roles_of(tree: Any, like: Any) -> Any:
    return jax.tree.map(lambda x, y: with_role(x, y.role) if is_tensor(x) else x, tree, like, is_leaf=is_tensor)


def _tensors(tree: Any) -> list[Tensor]:
    return [x for x in jax.tree.leaves(tree, is_leaf=is_tensor) if is_tensor(x)]


def _is_split(tree: Any, setting: Setting) -> bool:
    return any(setting.mesh.count(axes) > 1 for x in _tensors(tree) for axes in canonical(setting, x.dims, x.role))


def _refuse(found: Iterable[str]) -> None:
    found = list(dict.fromkeys(found))
    if found:
        raise OptimizerError(
            "this optax transformation does not work element by element.",
            values=", ".join(found[:2]) + (", ..." if len(found) > 2 else ""),
            rule="each processor updates its own slice: what it computed from the slice alone would be silently wrong.",
            fix="compute reductions beforehand with mx.sum, which is exact under every layout (to scale gradients by "
            "their global norm, for example), or use a layout that does not split the parameters.",
        )


def _meetings(jaxpr: Any) -> Iterator[str]:
    """Iterates over the equations in which elements of an array meet, or that depend on their places."""
    for eqn in jaxpr.eqns:
        inner = list(jax.extend.core.jaxprs_in_params(eqn.params))
        for program in inner:
            yield from _meetings(program)
        shapes = {v.aval.shape for v in eqn.invars if v.aval.shape}
        changed = len(shapes) > 1 or any(v.aval.shape not in shapes for v in eqn.outvars)
        if eqn.primitive.name in _PLACES or (not inner and shapes and (changed or eqn.primitive.name in _MIXING)):
            operands = [f"{v.aval.dtype}{list(v.aval.shape)}" for v in eqn.invars if v.aval.shape]
            yield " of ".join([eqn.primitive.name, *operands[:1]])
