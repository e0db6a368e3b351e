"""The border between tensors and arrays.

Inside a program JAX code may get hold of a slice: through `jax.tree.map`, a jitted function, optax, `.array`. Where a
split array leaves its tensor, and where it comes back into one, the trace gets a mark: an identity that says which of
its dimensions are split. What lies between two marks is the user's, and `slices.py` reads it. The derivative of
leaving is coming back, so backward passes are marked too.
"""

from typing import Any

import jax.extend.core
from jax.interpreters import ad, batching, mlir

from ..compat import Array
from ..layout import Part

Parts = tuple[Part | None, ...]  # for each dimension of an array


def _mark(name: str) -> Any:
    mark = jax.extend.core.Primitive(name)
    mark.def_impl(lambda x, *, parts: x)
    mark.def_abstract_eval(lambda x, *, parts: x)
    mlir.register_lowering(mark, lambda ctx, x, *, parts: [x])
    return mark


_leaves, _enters = _mark("leaves_tensor"), _mark("enters_tensor")
LEAVES, ENTERS = _leaves.name, _enters.name
MARKS = frozenset({LEAVES, ENTERS})


def _derive(mark: Any, reverse: Any) -> None:
    ad.deflinear2(mark, lambda ct, x, *, parts: [reverse.bind(ct, parts=parts)])

    def batched(arrays: Any, positions: Any, *, parts: Parts) -> tuple[Array, int]:
        (array,), (position,) = arrays, positions
        return mark.bind(array, parts=(*parts[:position], None, *parts[position:])), position

    batching.primitive_batchers[mark] = batched


_derive(_leaves, _enters)
_derive(_enters, _leaves)


def leave(x: Array, parts: Parts) -> Array:
    """Returns the same array, marked as one that its tensor has given away."""
    return _leaves.bind(x, parts=parts)


def enter(x: Array, parts: Parts) -> Array:
    """Returns the same array, marked as one that is a tensor's from here on."""
    return _enters.bind(x, parts=parts)
