"""A stack of equal layers: looped over, or one after the other.

Looped over, the parameters of all layers are stacked along a dim, and the program is compiled in the same time however
deep it is; each turn reads its slices from the stack, and the gradients of a layer are copied into one. Unrolled, each
layer has parameters of its own and nothing is copied; the program grows with every layer. Both compute the same from
the same weights, and a checkpoint of one is restored into the other.

A turn of the loop may take several layers. Compilers hide communication behind the computation of the same turn only:
so the parameters of the second layer may be gathered while the first is computed, in the backward pass those of the
first while the second is. Whether a compiler does, its schedule shows (docs/design/overlap.md).
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..dim import Dim, without
from ..errors import ArgumentError, did_you_mean
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
    at_once: int = 1,
) -> Tensor:
    """Calls `step(layer, x, number)` for one layer after the other, and returns the last result.

    Args:
        layers: what `arranged` returned.
        x: what the first layer gets.
        step: applies a layer, which has a number.
        keep: what the backward pass keeps of each layer, by its name in `KEEP`.
        over: the dim of a stack.
        at_once: how many layers of a stack a turn of the loop takes; the most up to that which leave none over.
    """

    def body(x: Tensor, numbered: Any) -> Any:
        layer, number = numbered
        return step(layer, x, number), None

    if not isinstance(layers, tuple):
        dim = _stack_dim(layers, over)
        count = next(n for n in range(min(at_once, dim.size), 0, -1) if dim.size % n == 0)
        if count > 1:
            return _by_turns(layers, x, body, keep, dim, count)
        return scan(remat(body, policy=KEEP[keep]), x, (layers, jnp.arange(dim.size, dtype=jnp.int32)), over=dim)[0]
    apply = keeping(body, keep)
    for number, layer in enumerate(layers):
        x, _ = apply(x, (layer, number))
    return x


def _by_turns(layers: Any, x: Tensor, body: Callable[[Tensor, Any], Any], keep: str, dim: Dim, count: int) -> Tensor:
    """Loops over a stack, so many layers in a turn."""
    turns, within = Dim("turns", dim.size // count), Dim("in_turn", count)

    def grouped(stack: Tensor) -> Tensor:
        array = leading(stack, dim)
        dims = (turns, within, *without(stack.dims, (dim,)))
        return Tensor(array.reshape(turns.size, within.size, *array.shape[1:]), dims, stack.role)

    def one(place: int, x: Tensor, group: Any, number: Any) -> Any:
        # taken out inside of the checkpoint: what goes into one is kept, and slices would be kept beside the stack
        return body(x, (_slices(group, within)[place], number))

    def turn(x: Tensor, numbered: Any) -> Any:
        group, numbers = numbered
        for place in range(count):
            x, _ = remat(functools.partial(one, place), policy=KEEP[keep])(x, group, numbers[place])
        return x, None

    numbers = jnp.arange(dim.size, dtype=jnp.int32).reshape(turns.size, within.size)
    return scan(turn, x, (_mapped(grouped, layers), numbers), over=turns)[0]


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
