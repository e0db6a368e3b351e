"""Loops and branches over tensors.

A loop's carry must come out as it went in. Over each mesh axis it may go in replicated and come out varying: then the
body's output wins, and the loop is traced once more with the carry varying from the start.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .. import collectives
from ..checking.border import MARKS
from ..checking.jaxprs import equations_inside
from ..compat import Array, varying_axes
from ..dim import Dim, DimLike, Dims, find, show, union, unique, without
from ..errors import ArgumentError, ShapeError
from ..layout import current
from ..sources import operation
from ..tensors import Packed, Tensor, is_tensor, moved, settled_array
from .operands import deferring, once_outside, recomputing
from .resharding import placed

__all__ = ["cond", "remat", "scan", "while_loop"]

# Views, masks of padding, blocks put in their places: they cost next to nothing to redo.
_VIEWS = {"reshape", "transpose", "squeeze", "expand_dims", "slice", "pvary", "pcast", "copy", "select_n", *MARKS}
_VIEWS |= {"broadcast_in_dim", "dynamic_update_slice"}

_TURN = "_meshax_turn"  # of a `remat`: itself, and how loops call it

Axes = frozenset[str]


class _StatesDiffer(Exception):
    """The carry comes out varying over more axes than it went in."""

    def __init__(self, varying: list[Axes]):
        super().__init__()
        self.varying = varying


class PackedArrays(Packed):
    """A pytree with tensors, whose arrays a loop or a branch takes or gives."""

    def __init__(self, tree: Any):
        super().__init__(tree)
        self.arrays = [settled_array(leaf) if is_tensor(leaf) else jnp.asarray(leaf) for leaf in self.leaves]

    def varying(self) -> list[Axes]:
        return [varying_axes(array) for array in self.arrays]

    def cast(self, varying: list[Axes]) -> list[Array]:
        return [collectives.to_copies(a, axes) for a, axes in zip(self.arrays, varying, strict=True)]

    def check_same(self, new: "PackedArrays", what: str, rule: str, fix: str) -> None:
        """Raises unless another tree has the same structure, dims, dtypes and roles."""
        before, after = ([self.treedef], [new.treedef])
        if self.treedef == new.treedef:
            before, after = (list(map(_describe, tree.kinds, tree.arrays)) for tree in (self, new))
        problems = [f"first {a}, then {b}" for a, b in zip(before, after, strict=True) if a != b]
        if problems:
            raise ShapeError(what, values="; ".join(problems), rule=rule, fix=fix)


def _describe(kind: tuple[Dims, str | None] | None, array: Array) -> str:
    if kind is None:
        return f"{array.dtype}{list(array.shape)}"
    return " ".join([show(kind[0]), str(array.dtype), *([kind[1]] if kind[1] else [])])


def scan(body: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any = None, *, over: DimLike) -> tuple[Any, Any]:
    """Loops over a dim: `body(carry, x)` returns the next carry and a `y`.

    Args:
        body: the function.
        init: the first carry, a pytree.
        xs: a pytree of tensors with the dim, of which `body` sees one slice after the other, as they are stored
            (arrays are sliced along their first dimension).
        over: the dim.

    Returns:
        The last carry, and all `y`, stacked along the dim.

    Communication: none of its own; if the dim is split, `xs` are gathered along it before the loop.
    """
    leaves, treedef = jax.tree.flatten(xs, is_leaf=is_tensor)
    dim = _loop_dim(leaves, over)
    again, turn = getattr(body, _TURN, (None, body))  # which a function around a remat has, too
    # a single turn compilers write out, among other things; those for TPUs gather early what is held apart alone
    apart = dim.size == 1 or (current().mesh.platform == "tpu" and current().layout.params)
    body = turn if body is again and not apart else body
    first = PackedArrays(init)
    arrays = [leading(leaf, dim) if is_tensor(leaf) else leaf for leaf in leaves]
    outs: list[PackedArrays] = []

    def step(varying: list[Axes], carry: list[Array], slices: list[Array]) -> tuple[list[Array], list[Array]]:
        pairs = zip(slices, leaves, strict=True)
        parts = [Tensor(a, without(x.dims, (dim,)), x.role) if is_tensor(x) else a for a, x in pairs]
        with recomputing(False):
            pair = body(first.rebuild(carry), jax.tree.unflatten(treedef, parts))
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ShapeError(
                "the body of mx.scan returns the next carry and a y.",
                values=type(pair).__name__ + (f" of {len(pair)}" if isinstance(pair, tuple | list) else ""),
                fix="return (carry, y), with None for y if there is none.",
            )
        out = packed_alike(first, pair[0], varying, "mx.scan")
        outs[:] = [PackedArrays(pair[1])]
        return out, outs[0].arrays

    def run(varying: list[Axes]) -> Any:
        return lax.scan(functools.partial(step, varying), first.cast(varying), arrays, length=dim.size)

    carry, ys = until_states_agree(first, run)
    ys = [y if kind is None else _stacked(y, dim, *kind) for y, kind in zip(ys, outs[0].kinds, strict=True)]
    return first.rebuild(carry), jax.tree.unflatten(outs[0].treedef, ys)


def packed_alike(first: PackedArrays, tree: Any, varying: list[Axes], op: str) -> list[Array]:
    """Returns the arrays of what a turn gives, as the next one takes them; or has the loop traced once more."""
    out = PackedArrays(tree)
    first.check_same(
        out,
        f"the carry of {op} does not come out as it went in.",
        rule="what a loop carries keeps its structure, dims, their order, dtypes and roles.",
        fix="rename, transpose, cast or mark it (mx.param) as it was, at the end of the body.",
    )
    wider = [now | new for now, new in zip(varying, out.varying(), strict=True)]
    if wider != varying:
        raise _StatesDiffer(wider)
    return out.cast(varying)


def until_states_agree(first: PackedArrays, run: Callable[[list[Axes]], Any]) -> Any:
    """Runs a loop whose carry varies over such axes as it comes out with."""
    varying = first.varying()
    while True:  # each turn adds a mesh axis to some leaf, so it ends
        try:
            return run(varying)
        except _StatesDiffer as wider:
            varying = wider.varying


def _loop_dim(leaves: list[Any], over: DimLike) -> Dim:
    tensors = [leaf for leaf in leaves if is_tensor(leaf)]
    if tensors:
        return union(*((find(x.dims, over),) for x in tensors))[0]
    if isinstance(over, Dim):
        return over
    raise ShapeError(f"mx.scan does not know the size of {over!r}.", fix="pass a Dim where xs hold no tensor.")


def leading(x: Tensor, dim: Dim) -> Array:
    """Returns the array as stored, but whole along the dim, which comes first."""
    array = moved(x, current().placement(x.dims, x.role).whole((dim,)))
    return array if x.dims[0] == dim else jnp.moveaxis(array, x.dims.index(dim), 0)


def _stacked(array: Array, dim: Dim, shape: tuple[Dim, ...], role: str | None) -> Tensor:
    unique((dim, *shape))
    return placed(array, current().placement(shape, role).stacked(dim), role)


def while_loop(cond: Callable[[Any], Any], body: Callable[[Any], Any], init: Any) -> Any:
    """Repeats `body(carry)` while `cond(carry)`, a scalar, holds.

    Communication: none of its own; a condition that differs between processors' copies is all-reduced.
    """
    first = PackedArrays(init)

    def run(varying: list[Axes]) -> Any:
        def step(carry: list[Array]) -> list[Array]:
            with recomputing(False):
                return packed_alike(first, body(first.rebuild(carry)), varying, "mx.while_loop")

        return lax.while_loop(lambda c: _predicate(cond(first.rebuild(c))), step, first.cast(varying))

    return first.rebuild(until_states_agree(first, run))


def cond(pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], *args: Any) -> Any:
    """Calls one of two functions, as a scalar says.

    Communication: none of its own; a condition that differs between processors' copies is all-reduced.
    """
    packed = PackedArrays(args)
    outs: list[PackedArrays] = []

    def run(fn: Callable[..., Any], varying: list[Axes] | None, arrays: list[Array]) -> list[Array]:
        outs.append(out := PackedArrays(fn(*packed.rebuild(arrays))))
        return out.arrays if varying is None else out.cast(varying)

    for fn in (true_fn, false_fn):  # see what each gives, before both must give the same
        jax.eval_shape(functools.partial(run, fn, None), packed.arrays)
    first, second = outs
    first.check_same(
        second,
        "the branches of mx.cond return different things.",
        rule="both return the same structure, dims, in the same order, dtypes and roles.",
        fix="rename, transpose, cast or mark (mx.param) the result of one branch.",
    )
    varying = [a | b for a, b in zip(first.varying(), second.varying(), strict=True)]
    branches = (functools.partial(run, fn, varying) for fn in (true_fn, false_fn))
    return first.rebuild(lax.cond(_predicate(pred), *branches, packed.arrays))


def _predicate(pred: Any) -> Array:
    if isinstance(pred, Tensor):
        if pred.dims:
            raise ShapeError(
                "a condition is one truth value.", values=show(pred.dims), fix="reduce it with mx.any or mx.all."
            )
        pred = settled_array(pred)
    varying = tuple(sorted(varying_axes(jnp.asarray(pred))))
    return collectives.max_over(jnp.asarray(pred, jnp.bool_), varying)


def remat(fn: Callable[..., Any], policy: Any = None) -> Callable[..., Any]:
    """Recomputes what `fn` computes in the backward pass, rather than keep it.

    Args:
        fn: a function of pytrees of tensors.
        policy: what to keep all the same: None for nothing, "collectives" for the results of collectives, so that
            none is repeated, or one of `jax.checkpoint_policies`. Stored parameters are gathered again in any case.

    Communication: that of `fn`, and again in the backward pass where the policy does not keep it.
    """
    if policy == "collectives":
        policy = _keep_collectives
    elif isinstance(policy, str):
        raise ArgumentError(
            f"there is no policy {policy!r}.", fix='use None, "collectives", or one of jax.checkpoint_policies.'
        )

    decide = None if policy is None else functools.partial(_decide, policy)

    def call(apart: bool, *args: Any, **kwargs: Any) -> Any:
        boxed = Boxed(fn, PackedArrays((args, kwargs)))

        def run(arrays: list[Array]) -> Any:
            with recomputing(True):
                return boxed(arrays)

        # tensors are taken apart here and not by JAX: what it takes apart, it may see (checking/border.py)
        checkpoint = jax.checkpoint(run, policy=decide, prevent_cse=apart)
        return boxed.opened(*checkpoint(boxed.operands.arrays))

    # The turns of the backward pass are a loop of their own: there no compiler finds what those of the forward pass
    # computed, and what keeps it from looking would make it copy every slice of what is kept, and of parameters.
    again, turn = (operation(functools.wraps(fn)(functools.partial(call, apart)), "remat") for apart in (True, False))
    setattr(again, _TURN, (again, turn))
    return again


class Boxed:
    """A function of trees of tensors as one of arrays, which JAX may trace on its own."""

    def __init__(self, fn: Callable[..., Any], operands: PackedArrays):
        self.fn, self.operands = fn, operands
        self.__name__ = getattr(fn, "__name__", "boxed")  # what JAX calls it
        self.out: PackedArrays
        self.actions: list[Callable[[Any], None]]

    def __call__(self, arrays: list[Array]) -> tuple[list[Array], list[Any]]:
        args, kwargs = self.operands.rebuild(arrays)
        with deferring(arrays) as deferred:
            self.out = PackedArrays(self.fn(*args, **kwargs))
        self.actions = [action for action, _ in deferred]
        return self.out.arrays, [values for _, values in deferred]

    def opened(self, arrays: list[Array], values: list[Any]) -> Any:
        """Returns the result as the function gave it, and does what it left to be done once, outside."""
        for action, value in zip(self.actions, values, strict=True):
            once_outside(action, value)
        return self.out.rebuild(arrays)


def _keep_collectives(primitive: Any, *_: Any, **params: Any) -> bool:
    """Whether an operation is a collective, or a call of a function with a derivative of its own that has one."""
    if primitive.name in collectives.PRIMITIVES:
        return True
    return any(_keep_collectives(eqn.primitive, **eqn.params) for eqn in equations_inside(params))


def _decide(policy: Callable[..., Any], primitive: Any, *avals: Any, **params: Any) -> Any:
    """Asks a policy, but keeps neither a gathered parameter nor a view or mask, which may be one of it."""
    return False if _is_forgotten(primitive, params) else policy(primitive, *avals, **params)


def _is_forgotten(primitive: Any, params: Mapping[str, Any]) -> bool:
    """Whether an operation is a view, or gathers a parameter, or a call that does nothing else.

    A call of a function with a derivative of its own, that is.
    """
    if not primitive.name.startswith("custom_vjp_call"):
        return primitive.name in _VIEWS or collectives.is_transient(primitive, params)
    arrays = (eqn for eqn in equations_inside(params) if any(getattr(v.aval, "shape", ()) for v in eqn.outvars))
    return all(_is_forgotten(eqn.primitive, eqn.params) for eqn in arrays)
