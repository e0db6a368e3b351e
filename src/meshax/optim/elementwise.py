"""optax's transformations on local slices.

An elementwise transformation (SGD, momentum, Adam) gives on each slice what it gives on the whole. One that reduces
over a leaf (a norm, a factored moment) would reduce over the slice alone and be silently wrong, so the update's jaxpr
is looked at first.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import jax

from ..dims import show
from ..errors import OptimizerError
from ..layout import Setting, canonical, current
from .contract import Optimizer, tensors

# Shape-preserving, and yet an element of the result depends on several of the operand.
_MIXING = frozenset(
    {"cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "sort", "rev", "transpose", "fft", "cholesky", "lu", "qr"}
)
# The result depends on the shape of the slice: random numbers, counters.
_PLACES = frozenset(["random_bits", "threefry2x32", "iota"])


@dataclass(frozen=True)
class Elementwise(Optimizer):
    """An optax transformation as an optimizer of tensors; make one with `from_optax`."""

    transformation: Any

    def first_state(self, params: Any) -> Any:
        """Returns the transformation's first state, or refuses one that is not shaped like the parameters."""
        state = self.transformation.init(params)
        shapes = {x.dims: x.array.shape for x in tensors(params)}
        _refuse(
            [
                f"state of shape {x.array.shape} for {show(x.dims)}"
                for x in tensors(state)
                if x.array.shape != shapes[x.dims]
            ]
        )
        return state

    def update(self, grads: Any, state: Any, params: Any) -> tuple[Any, Any]:
        """Runs the transformation on the slices, or refuses it."""
        setting = current()
        if setting is not None and _is_split(params, setting):
            _refuse(_meetings(jax.make_jaxpr(self.transformation.update)(grads, state, params).jaxpr))
        updates, state = self.transformation.update(grads, state, params)
        return jax.tree.map(lambda p, u: (p + u).astype(p.dtype), params, updates), state


def from_optax(transformation: Any) -> Optimizer:
    """Makes an optimizer of tensors from an optax transformation, which must work element by element."""
    return Elementwise(transformation)


def _is_split(tree: Any, setting: Setting) -> bool:
    return any(setting.mesh.count(axes) > 1 for x in tensors(tree) for axes in canonical(setting, x.dims, x.role))


def _refuse(found: Iterable[str]) -> None:
    found = list(dict.fromkeys(found))
    if found:
        raise OptimizerError(
            "this optax transformation does not work element by element.",
            values=", ".join(found[:2]) + (", ..." if len(found) > 2 else ""),
            rule="each processor updates its own slice: what it computed from the slice alone would be silently wrong.",
            fix="use optim.clipped to clip by the global norm, and optim.Adafactor: they are exact under every layout, "
            "as is what you compute with mx.sum; or use a layout that does not split the parameters.",
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
