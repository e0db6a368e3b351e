"""A stack of equal layers: looped over, or one after the other.

Looped over, the parameters of all layers are stacked along a dim, and the program is compiled in the same time however
deep it is; each turn reads its slices from the stack, and the gradients of a layer are copied into one. Unrolled, each
layer has parameters of its own and nothing is copied; the program grows with every layer. Both compute the same from
the same weights, and a checkpoint of one is restored into the other.

A loop may fetch what a layer begins with while the one before is computed, where it is stored in parts (`ahead.py`).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..dim import Dim, without
from ..errors import ArgumentError, did_you_mean
from ..nn.ahead import go_ahead
from ..ops import remat, scan
from ..ops.control import leading
from ..ops.operands import compute
from ..plan.cost.processors import chosen_platform
from ..tensors import Tensor, is_tensor
from .recomputation import KEEP, keeping

LAYERS_AS = ("auto", "loop", "unrolled")
_FEW = 24  # layers, up to which a GPU gains more by unrolling than compiling costs


def check_layers_as(value: str) -> None:
    """Raises if there is no such way to go through layers."""
    if value not in LAYERS_AS:
        raise ArgumentError(f"there is no way {value!r} to go through layers.", fix=did_you_mean(value, LAYERS_AS))


def arranged(layers: Any, layers_as: str, over: str = "layers", few: int = _FEW, drawn: bool = False) -> Any:
    """Returns layers that were made as one stack as they are to be gone through: the stack, or a tuple of each.

    Args:
        layers: a module whose parameters all have the dim; or a tuple, which stays as it is.
        layers_as: "loop", "unrolled", or "auto": a few layers are unrolled on GPUs; docs/performance.md says why.
        over: the dim.
        few: how many.
        drawn: whether they are random numbers of this program: a compiler would draw each layer's by a kernel of its
            own, of which there are hundreds. So the stack comes first, and then its slices.
    """
    if isinstance(layers, tuple):
        return layers
    if layers_as == "auto":
        is_few = _stack_dim(layers, over).size <= few
        layers_as = "unrolled" if is_few and chosen_platform() == "gpu" else "loop"
    if layers_as == "loop":
        return layers
    return tuple(_slices(_mapped(_made_first, layers) if drawn else layers, _stack_dim(layers, over)))


def _slices(layers: Any, dim: Dim) -> list[Any]:
    """Takes a stack apart along its dim: each slice as it is stored, in its role. It is gathered along a split dim."""
    leaves, treedef = jax.tree.flatten(layers, is_leaf=is_tensor)
    stacks = [(leading(x, dim), without(x.dims, (dim,)), x.role) for x in leaves]
    return [
        jax.tree.unflatten(treedef, [Tensor(array[i], dims, role) for array, dims, role in stacks])
        for i in range(dim.size)
    ]


def _made_first(x: Tensor) -> Tensor:
    return Tensor(compute(lax.optimization_barrier, [x], x.role), x.dims, x.role)


def go_through(
    layers: Any,
    x: Tensor,
    step: Callable[[Any, Tensor, Any], Tensor],
    keep: str,
    over: str = "layers",
    begins: Callable[[Any], Any] | None = None,
) -> Tensor:
    """Calls `step(layer, x, number)` for one layer after the other, and returns the last result.

    Args:
        layers: what `arranged` returned.
        x: what the first layer gets.
        step: applies a layer, which has a number.
        keep: what the backward pass keeps of each layer, by its name in `KEEP`.
        over: the dim of a stack.
        begins: says with which of its parameters a layer begins: in a loop, these are fetched while the layer before
            is computed, if they are stored in parts.
    """

    def body(x: Tensor, numbered: Any) -> Any:
        layer, number = numbered
        return step(layer, x, number), None

    if not isinstance(layers, tuple):
        dim, apply = _stack_dim(layers, over), remat(body, policy=KEEP[keep])
        if begins is not None and (last := go_ahead(apply, x, layers, begins(layers), dim)) is not None:
            return last
        return scan(apply, x, (layers, jnp.arange(dim.size, dtype=jnp.int32)), over=dim)[0]
    apply = keeping(body, keep)
    for number, layer in enumerate(layers):
        x, _ = apply(x, (layer, number))
    return x


def go_through_cached(
    layers: Any,
    x: Tensor,
    cache: Any,
    step: Callable[[Any, Tensor, Any, Any], tuple[Tensor, Any]],
    beside: Any = None,
    over: str = "layers",
) -> tuple[Tensor, Any]:
    """Calls `step(layer, x, cache, beside)` for each layer, and returns the last result and the new caches.

    Args:
        layers: what `arranged` returned.
        x: what the first layer gets.
        cache: a tree of tensors for each layer of a tuple, or one in which all have the dim of the stack first.
        step: applies a layer to a token and to what its cache holds.
        beside: what layers read and do not change, in the form of the caches; None: nothing.
        over: the dim of a stack.
    """
    if isinstance(layers, tuple):
        kept = []
        for layer, own, read in zip(layers, cache, beside or [None] * len(layers), strict=True):
            x, own = step(layer, x, own, read)
            kept.append(own)
        return x, tuple(kept)

    def body(carry: Any, numbered: Any) -> Any:
        (x, every), (layer, read, number) = carry, numbered
        x, own = step(layer, x, _mapped(lambda stack: _taken(stack, number), every), read)
        return (x, _mapped(lambda stack, new: _replaced(stack, new, number), every, own)), None

    dim = _stack_dim(layers, over)
    return scan(body, (x, cache), (layers, beside, jnp.arange(dim.size, dtype=jnp.int32)), over=dim)[0]


def _mapped(fn: Callable[..., Tensor], *trees: Any) -> Any:
    return jax.tree.map(fn, *trees, is_leaf=is_tensor)


def _taken(stack: Tensor, number: Any) -> Tensor:
    """Returns one layer's part of a stack, of which the first dim is that of the layers."""
    take = lambda array: jax.lax.dynamic_index_in_dim(array, number, 0, keepdims=False)  # noqa: E731
    return Tensor(compute(take, [stack]), stack.dims[1:])


def _replaced(stack: Tensor, new: Tensor, number: Any) -> Tensor:
    """Returns the stack with one layer's part replaced, where it is: nothing else of it is copied."""
    put = lambda array, part: jax.lax.dynamic_update_index_in_dim(array, part, number, 0)  # noqa: E731
    return Tensor(compute(put, [stack, new]), stack.dims)


def _stack_dim(layers: Any, over: str) -> Dim:
    return next(leaf for leaf in jax.tree.leaves(layers, is_leaf=is_tensor) if is_tensor(leaf)).dim(over)
