"""A loop over layers that fetches what a layer begins with while the one before is computed.

Compilers hide a collective behind the computation of the same turn of a loop. The parameters with which a layer begins
have nothing before them in their turn, and their gradients, the last of a layer's backward pass, nothing after them:
where they are stored in parts, both wait in every turn. So here each turn gathers those of the next layer, and carries
them there; the backward pass goes the same way back, gathers them again a layer ahead, and reduce-scatters their
gradients a layer behind. What is sent is the same, with few exceptions (docs/design/overlap.md).

The derivative that JAX makes of such a loop would keep what is carried, and so every layer whole. This one keeps of
each turn what its checkpoint keeps, but for what was fetched.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.extend.core
import jax.numpy as jnp
from jax import lax

from .. import collectives
from ..checking.derivatives import BY_VALUES
from ..compat import Array, varying_axes
from ..dim import Dim, Dims, without
from ..layout import current
from ..ops.control import PackedArrays, leading, packed_alike, until_states_agree
from ..ops.operands import copied
from ..sources import operation
from ..tensors import Tensor, fetch, is_tensor

Arrays = list[Array]

_NONE: frozenset[str] = frozenset()
_AGAIN = "rematted_computation"  # how JAX calls what the backward pass computes again


@operation
def go_ahead(body: Callable[[Tensor, Any], Any], x: Tensor, layers: Any, begins: Any, dim: Dim) -> Tensor | None:
    """Loops over a stack of layers as `mx.scan` does, fetching ahead; returns None where there is nothing to fetch.

    Args:
        body: takes the stream, and a layer with its number; returns the stream, and None.
        x: what the first layer gets.
        layers: the stack.
        begins: those of its parameters with which a layer begins.
        dim: the dim of the stack.
    """
    leaves, treedef = jax.tree.flatten(layers, is_leaf=is_tensor)
    wanted = {id(leaf) for leaf in jax.tree.leaves(begins, is_leaf=is_tensor)}
    kinds = [(without(leaf.dims, (dim,)), leaf.role) for leaf in leaves]
    first = PackedArrays(x)
    vary = first.varying()[0] | copied.value
    over = [_gathered_over(*kind) if id(leaf) in wanted else _NONE for leaf, kind in zip(leaves, kinds, strict=True)]
    is_learned = [jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in leaves]
    early = [i for i, axes in enumerate(over) if axes and axes <= vary and is_learned[i]]
    other = [i for i in range(len(leaves)) if i not in early and is_learned[i]]
    fixed = [i for i in range(len(leaves)) if not is_learned[i]]  # whole numbers have no gradient
    if dim.size < 2 or not early:
        return None

    def fetched(slices: Arrays) -> Arrays:
        pairs = zip(early, slices, strict=True)
        return [fetch(Tensor(a.astype(x.dtype), *kinds[i]), over[i], transient=True) for i, a in pairs]

    def run(varying: list[Any]) -> Tensor:
        def turn(whole: Arrays, slices: Arrays, number: Array, stream: Array) -> Array:
            parts = {i: Tensor(a, kinds[i][0]) for i, a in zip(early, whole, strict=True)}
            parts |= {i: Tensor(a, *kinds[i]) for i, a in zip(other, slices, strict=True)}
            parts |= {i: Tensor(_at([leading(leaves[i], dim)], number)[0], *kinds[i]) for i in fixed}
            layer = jax.tree.unflatten(treedef, [parts[i] for i in range(len(leaves))])
            out, _ = body(first.rebuild([stream]), (layer, number))
            return packed_alike(first, out, varying, "a loop over layers")[0]

        stacks = ([leading(leaves[i], dim) for i in some] for some in (early, other))
        return first.rebuild([_Loop(fetched, turn, *stacks, *first.cast(varying)).run()])

    return until_states_agree(first, run)


def _gathered_over(dims: Dims, role: str | None) -> frozenset[str]:
    """Returns the axes over which a parameter is gathered where it is used, and again for the backward pass."""
    stored, used = current().placement(dims, role), current().placement(dims)
    return _NONE if role is None or len(dims) < 2 else stored.axes - used.axes


class _Kept(eqx.Module):
    """What the backward pass of a turn needs: what was computed, and how it and what is known make the derivative."""

    computed: Arrays
    form: Any = eqx.field(static=True)
    known: tuple[int | None, ...] = eqx.field(static=True)  # for each of its arrays, which of the known ones it is

    @classmethod
    def of(cls, pull: Any, known: Arrays) -> "_Kept":
        """Takes a derivative apart."""
        leaves, form = jax.tree.flatten(pull)
        numbers = {id(array): i for i, array in enumerate(known)}
        places = tuple(numbers.get(id(leaf)) for leaf in leaves)
        return cls([leaf for leaf, i in zip(leaves, places, strict=True) if i is None], form, places)

    def pull(self, known: Arrays) -> Any:
        """Returns the derivative."""
        computed = iter(self.computed)
        return jax.tree.unflatten(self.form, [next(computed) if i is None else known[i] for i in self.known])


class _Loop:
    """The loop as a function of arrays, with a derivative of its own.

    What it fetches and what a turn computes are traced first: inside of a derivative of one's own, tensors that are
    copies could not be told from others' (see `checking/derivatives.py`).
    """

    def __init__(self, fetched: Any, turn: Any, early: Arrays, other: Arrays, stream: Array):
        self.length = early[0].shape[0]
        self.fetched = _as_function(jax.make_jaxpr(fetched)(_at(early, 0)))
        self.turn = jax.make_jaxpr(turn)(self.fetched(_at(early, 0)), _at(other, 0), jnp.int32(0), stream)
        self.is_number = [jnp.issubdtype(jnp.result_type(const), jnp.inexact) for const in self.turn.consts]
        pairs = list(zip(self.turn.consts, self.is_number, strict=True))
        numbers, fixed = ([const for const, is_one in pairs if is_one is wanted] for wanted in (True, False))
        self.arguments = early, other, stream, numbers, fixed

    def run(self) -> Array:
        """Returns what the last turn gives."""
        loop = jax.custom_vjp(lambda *args: self._forward(False, *args)[0])
        loop.defvjp(partial(self._forward, True), self._backward)
        return loop(*self.arguments)

    def _turn(self, fixed: Arrays, number: Any, whole: Arrays, slices: Arrays, stream: Array, numbers: Arrays) -> Array:
        one, other = iter(numbers), iter(fixed)
        consts = [next(one if is_one else other) for is_one in self.is_number]
        run = _as_function(jax.extend.core.ClosedJaxpr(self.turn.jaxpr, consts))
        return run(whole, slices, number, stream)[0]

    def _forward(
        self, keeps: bool, early: Arrays, other: Arrays, stream: Array, numbers: Arrays, fixed: Arrays
    ) -> tuple[Array, Any]:
        forms: list[_Kept] = []

        def turn(whole: Arrays, number: Any, stream: Array) -> tuple[Array, Arrays]:
            slices = _at(other, number)
            if not keeps:
                return self._turn(fixed, number, whole, slices, stream, numbers), []
            stream, pull = _derivative(partial(self._turn, fixed, number), whole, slices, stream, numbers)
            forms.append(_Kept.of(pull, [*whole, *slices, *numbers, *fixed, number]))
            return stream, forms[-1].computed

        def step(carry: tuple[Array, Arrays], number: Array) -> Any:
            stream, whole = carry
            after = self.fetched(_at(early, number + 1))
            stream, kept = turn(whole, number, stream)
            return (stream, after), kept

        last = self.length - 1
        begin = stream, self.fetched(_at(early, 0))
        (stream, whole), kept = lax.scan(step, begin, jnp.arange(last, dtype=jnp.int32))
        stream, kept_last = turn(whole, jnp.int32(last), stream)
        if not keeps:
            return stream, None
        before, at_last = replace(forms[0], computed=kept), replace(forms[-1], computed=kept_last)
        return stream, ((early, other, numbers, fixed), before, at_last, whole)

    def _backward(self, kept: Any, gradient: Array) -> tuple[Any, ...]:
        (early, other, numbers, fixed), before, at_last, whole = kept

        def pulled(kept: _Kept, whole: Arrays, number: Any, gradient: Array) -> Any:
            return kept.pull([*whole, *_at(other, number), *numbers, *fixed, number])(gradient)

        def step(carry: Any, x: tuple[Array, Arrays]) -> Any:
            gradient, whole, behind, into_early, into_other, into_numbers = carry
            number, computed = x
            with jax.named_scope(_AGAIN):  # the last turn's is for nobody: that of the last layer was kept
                after = self.fetched(_at(early, jnp.maximum(number - 1, 0)))
            into_early = _put(into_early, scattered(behind)[0], number + 1)
            kept = replace(before, computed=computed)
            behind, slices, gradient, more = pulled(kept, whole, number, gradient)
            into_numbers = [a + b for a, b in zip(into_numbers, more, strict=True)]
            return (gradient, after, behind, into_early, _put(into_other, slices, number), into_numbers), None

        last = self.length - 1
        _, scattered = _derivative(self.fetched, _at(early, 0))  # linear: the same for every layer
        with jax.named_scope(_AGAIN):
            after = self.fetched(_at(early, last - 1))
        behind, slices, gradient, into_numbers = pulled(at_last, whole, jnp.int32(last), gradient)
        begin = gradient, after, behind, _empty(early), _put(_empty(other), slices, last), into_numbers
        turns = jnp.arange(last, dtype=jnp.int32), before.computed
        (gradient, _, behind, *into), _ = lax.scan(step, begin, turns, reverse=True)
        into_early, into_other, into_numbers = into
        return _put(into_early, scattered(behind)[0], 0), into_other, gradient, into_numbers, None


def _as_function(closed: Any) -> Callable[..., Arrays]:
    run = jax.extend.core.jaxpr_as_fun(closed)
    return lambda *args: run(*jax.tree.leaves(args))


def _derivative(fn: Callable[..., Any], *args: Any) -> Any:
    """Returns the result and the way back: a part of what is being differentiated, and of nobody else's derivative."""

    def scoped(*args: Any) -> Any:
        with jax.named_scope(BY_VALUES):
            return fn(*args)

    return jax.vjp(scoped, *args)


def _at(stacks: Arrays, number: Any) -> Arrays:
    return [lax.dynamic_index_in_dim(stack, number, 0, keepdims=False) for stack in stacks]


def _put(stacks: Arrays, parts: Arrays, number: Any) -> Arrays:
    pairs = zip(stacks, parts, strict=True)
    return [lax.dynamic_update_index_in_dim(stack, part, number, 0) for stack, part in pairs]


def _empty(stacks: Arrays) -> Arrays:
    return [collectives.to_copies(jnp.zeros_like(stack), varying_axes(stack)) for stack in stacks]
