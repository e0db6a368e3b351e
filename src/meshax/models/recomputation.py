"""What the backward pass keeps of each layer, by name; the rest it computes again. And layers that are traced once."""

import functools
from collections.abc import Callable
from typing import Any

import jax

from ..checking.jaxprs import equations_inside
from ..compat import is_traced
from ..layout import current
from ..ops import remat
from ..ops.control import Boxed, PackedArrays
from ..ops.elementwise import RELU
from ..plan.reading.primitives import traits_of


def _takes_a_kernel(primitive: Any, *_: Any, **params: Any) -> bool:
    """Whether an operation is more than a computation element by element, a ReLU, or kept by its name.

    What is one, compilers do again on the way to what uses it: that takes less than to write it and to read it. Of what
    is kept of a loop's turns they may not: each result is written, into a stack.
    """
    traits = traits_of(primitive.name)
    if primitive is RELU or primitive.name == "name" or traits.fusion in ("whole", "reduction"):
        return True
    inside = list(equations_inside(params))
    return any(_takes_a_kernel(eqn.primitive, **eqn.params) for eqn in inside) or not (inside or traits.is_known)


def _is_relu(primitive: Any, *_: Any, **params: Any) -> bool:
    """Whether an operation is a ReLU. Where its result is kept, a product yields it, whose own need not be kept."""
    return primitive is RELU or any(_is_relu(eqn.primitive, **eqn.params) for eqn in equations_inside(params))


_either = jax.checkpoint_policies.save_from_both_policies


# From the least memory to the least work.
KEEP: dict[str, Any] = {
    "nothing": None,
    "collectives": "collectives",
    "products": _either(jax.checkpoint_policies.dots_with_no_batch_dims_saveable, _is_relu),
    "all products": _either(jax.checkpoint_policies.dots_saveable, _is_relu),
    "everything": _takes_a_kernel,
}


def keeping(layer: Callable[..., Any], keep: str) -> Callable[..., Any]:
    """Returns a layer of which the backward pass keeps what `keep` names, and computes the rest again.

    Where all is kept there is no checkpoint, and the compiler chooses what to make anew from its neighbours. Stored
    parameters need one all the same, to be forgotten in.
    """
    is_whole = keep == "everything" and not current().layout.params
    return traced_once(layer if is_whole else remat(layer, policy=KEEP[keep]))


def traced_once(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Traces a function once for all of its calls in one trace that differ in values alone, such as those of layers.

    The program is the same: what was traced is called again, and compilers write it out where it is called.
    """
    known: dict[Any, tuple[Boxed, Callable[..., Any]]] = {}

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        operands = PackedArrays((args, kwargs))
        if not any(map(is_traced, operands.arrays)):
            return fn(*args, **kwargs)
        kind = operands.treedef, tuple(operands.kinds), tuple(map(jax.typeof, operands.arrays))
        if kind not in known:
            boxed = Boxed(fn, operands)
            known[kind] = boxed, jax.jit(boxed)
        boxed, traced = known[kind]
        return boxed.opened(*traced(operands.arrays))

    return call
