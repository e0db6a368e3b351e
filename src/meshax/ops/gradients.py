"""Gradients.

JAX differentiates the local program; the only thing to decide is where gradients are summed. Parameters go in as
copies over the axes that split the batch, so their gradients come out as pending sums, which are reduced once: by an
all-reduce, or by a reduce-scatter where they are stored split. With microbatches the loop accumulates pending sums.

Only we know that a gradient by copies is a pending sum. Where somebody else differentiates inside (`jax.grad`,
`jax.custom_vjp`), nothing may be cast: the program is traced once more, and JAX sums in every backward pass.
"""

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from .. import collectives
from ..checking.derivatives import BY_COPIES, BY_VALUES, watching
from ..compat import Array, varying_axes
from ..dim import Dim, DimLike, Dims, show, unique
from ..errors import ArgumentError, DtypeError, ShapeError
from ..layout import current
from ..sources import operation
from ..tensors import Packed, Tensor, check_same_everywhere, check_tensor, copies_of, is_tensor, settled_array
from .operands import copying, integers
from .resharding import placed, reshape

__all__ = ["grad", "value_and_grad"]

_MICRO, _CUT = "microbatches", "_microbatches"  # the dim of what is stacked; that of a batch in parts, never split
GRADIENT = "gradient"  # names gradients in the jaxpr, for whoever reads the program
_casts = jax.make_user_context(True)  # part of JAX's cache keys


def casting(allowed: bool) -> Any:
    """Returns a context manager that says whether gradients may be taken by copies."""
    return _casts(allowed)


def value_and_grad(
    fn: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    microbatches: int | None = None,
    over: DimLike | None = None,
) -> Callable[..., Any]:
    """Makes a function that returns the value of `fn` and its gradient.

    Args:
        fn: returns a scalar tensor, and with `has_aux` a pytree beside it.
        argnums: the arguments to differentiate by, pytrees of tensors.
        has_aux: whether `fn` returns `(loss, aux)`.
        microbatches: cuts the batch into so many parts (part i holds the elements i, i + n, i + 2n, ...), and averages
            their values and gradients in a loop. Typed random keys among the arguments are folded with the part's
            number; `aux` tensors gain a first dim "microbatches".
        over: the dim that is cut.

    Communication: the gradient of each parameter is reduced once, also with microbatches; the value, if it is a
    pending sum, once for each of them.
    """
    several = isinstance(argnums, Iterable) and not isinstance(argnums, str)
    numbers = tuple(integers("grad", argnums=n)[0] for n in (argnums if several else (argnums,)))  # type: ignore
    if (microbatches is None) != (over is None):
        raise ShapeError("microbatches= and over= go together.", fix='write for example microbatches=4, over="batch".')
    if microbatches is not None and (type(microbatches) is not int or microbatches < 1):
        raise ArgumentError(
            f"there cannot be {microbatches!r} microbatches.", fix="choose a number that divides the batch."
        )

    def value_and_gradient(*args: Any) -> Any:
        positions = _positions(numbers, len(args))
        params = Packed([args[i] for i in positions])
        leaves = params.leaves
        others = [arg for i, arg in enumerate(args) if i not in positions]
        _check_differentiable(leaves)
        axes = _axes_of(others) if _casts.value else frozenset()
        arrays = [collectives.to_copies(settled_array(x), axes) if is_tensor(x) else x for x in leaves]
        pairs = zip(arrays, params.kinds, strict=True)
        copies = [frozenset() if kind is None else copies_of(a, current().placement(*kind)) for a, kind in pairs]
        returned: list[Packed] = []

        def loss(arrays: list[Array], others: list[Any]) -> Any:
            over = axes.union(*copies)
            with jax.named_scope(BY_COPIES if over else BY_VALUES), copying(axes), watching(over):
                chosen = dict(zip(positions, params.rebuild(arrays), strict=True))
                rest = iter(others)
                out = fn(*(chosen[i] if i in chosen else next(rest) for i in range(len(args))))
                if has_aux and not (isinstance(out, tuple | list) and len(out) == 2):
                    raise ShapeError(
                        "with has_aux, a function returns its value and something else.",
                        values=type(out).__name__,
                        fix="return (loss, aux), or leave out has_aux.",
                    )
                value, aux = out if has_aux else (out, None)
                returned[:] = [Packed(aux)]
                return _replicated(value), [settled_array(x) if is_tensor(x) else x for x in returned[0].leaves]

        def differentiate(arrays: list[Array], others: list[Any]) -> Any:
            return jax.value_and_grad(lambda arrays: loss(arrays, others), has_aux=True)(arrays)

        if microbatches is None:
            (value, aux), gradients = differentiate(arrays, others)
            as_tensor: Callable[..., Tensor] = _released
        else:
            (value, aux), gradients = _accumulate(differentiate, arrays, others, microbatches, over)
            as_tensor = functools.partial(_with_parts, microbatches)
        aux = [a if kind is None else as_tensor(a, *kind) for a, kind in zip(aux, returned[0].kinds, strict=True)]
        gradients = [
            Tensor(checkpoint_name(g, GRADIENT), x.dims, x.role, pending=c) if is_tensor(x) else g
            for g, x, c in zip(gradients, leaves, copies, strict=True)
        ]
        grads = jax.tree.unflatten(params.treedef, gradients)
        grads = tuple(grads) if several else grads[0]
        value = Tensor(value, ())
        return ((value, jax.tree.unflatten(returned[0].treedef, aux)), grads) if has_aux else (value, grads)

    return operation(value_and_gradient, "value_and_grad")


def grad(
    fn: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    microbatches: int | None = None,
    over: DimLike | None = None,
) -> Callable[..., Any]:
    """Makes a function that returns the gradient of `fn`, and with `has_aux` what `fn` returns beside its value.

    Communication: as `mx.value_and_grad`.
    """
    both = value_and_grad(fn, argnums, has_aux, microbatches, over)

    def gradient(*args: Any) -> Any:
        value, grads = both(*args)
        return (grads, value[1]) if has_aux else grads

    return operation(gradient, "grad")


def _positions(argnums: tuple[int, ...], count: int) -> tuple[int, ...]:
    wrong = [n for n in argnums if not -count <= n < count]
    if wrong:
        raise ArgumentError(
            f"there is no argument {wrong[0]} to differentiate by.",
            values=f"argnums {argnums} of {count} arguments",
            fix="arguments are counted from 0.",
        )
    positions = tuple(n % count for n in argnums)
    if len(set(positions)) != len(positions):
        raise ArgumentError(f"argnums {argnums} names an argument twice.", fix="name each argument once.")
    return positions


def _check_differentiable(leaves: list[Any]) -> None:
    wrong = [
        f"{show(x.dims)} {x.dtype}" if is_tensor(x) else f"{type(x).__name__} {jnp.result_type(x)}"
        for x in leaves
        if not jnp.issubdtype(x.dtype if is_tensor(x) else jnp.result_type(x), jnp.inexact)
    ]
    if wrong:
        raise DtypeError(
            "only floating tensors have gradients.",
            values=", ".join(wrong),
            fix="choose other argnums, or pass these tensors in another argument.",
        )
    for leaf in leaves:
        if not is_tensor(leaf):
            check_same_everywhere(jnp.asarray(leaf))


def _axes_of(args: list[Any]) -> frozenset[str]:
    """Returns the mesh axes that split the batch: the gradients of parameters are sums over them.

    A dim of the batch is one that several arguments have (tokens and labels), or that the only one has. Where this
    guess misses an axis, JAX sums over it in the backward pass.
    """
    tensors = [x for x in jax.tree.leaves(args, is_leaf=is_tensor) if is_tensor(x) and x.dims]
    names = Counter(dim.name for x in tensors for dim in x.dims)
    axes: set[str] = set()
    for x in tensors:
        batch = [dim for dim in x.dims if len(tensors) == 1 or names[dim.name] > 1]
        axes.update(current().placement(x.dims, x.role).over(batch))
    return frozenset(axes)


def _replicated(value: Any) -> Array:
    """Returns a scalar that is the same on all processors."""
    if value is None:
        raise ShapeError("a function to differentiate returns one number, not nothing.", fix="return the loss.")
    if isinstance(value, tuple | list | dict):
        raise ShapeError(
            f"a function to differentiate returns one number, not a {type(value).__name__}.",
            fix="pass has_aux=True, and return (loss, everything else).",
        )
    if not is_tensor(value) and not jnp.shape(value):
        value = Tensor(jnp.asarray(value), ())
    check_tensor(value, "a gradient")
    if value.dims:
        raise ShapeError(
            "a function to differentiate returns one number.",
            values=f"{show(value.dims)} {value.dtype}",
            fix="reduce it, for example with mx.mean.",
        )
    if not jnp.issubdtype(value.dtype, jnp.floating):
        raise DtypeError(
            "only floating numbers have gradients.", values=str(value.dtype), fix="return a floating number."
        )
    array = settled_array(value)
    return collectives.replicate(array, sorted(varying_axes(array)))


def _released(array: Array, dims: Dims, role: str | None) -> Tensor:
    """Returns a tensor that nobody outside has to know as copies: a sum of which one processor holds all."""
    copies = copies_of(array, current().placement(dims, role))
    return Tensor(collectives.only_first(array, copies), dims, role, pending=copies)


def _accumulate(
    differentiate: Callable[..., Any], arrays: list[Array], others: list[Any], parts: int, over: DimLike | None
) -> Any:
    """Averages over microbatches; the gradients in the loop's carry are pending sums."""
    leaves, treedef = jax.tree.flatten(others, is_leaf=is_tensor)
    name = over.name if isinstance(over, Dim) else over
    cut = [_cut(leaf, name, parts) if is_tensor(leaf) else None for leaf in leaves]
    if not any(cut):
        raise ShapeError(
            f"no argument has the dim {name!r} to be cut into microbatches.", fix="name the dim of the batch."
        )
    slices = [piece and piece[0] for piece in cut]
    dtypes: list[Any] = []

    def step(sums: tuple[Array, list[Array]], x: tuple[Array, list[Any]]) -> Any:
        part, pieces = x
        of_part = [
            _fold(leaf, part) if cut_leaf is None else Tensor(piece, cut_leaf[1])
            for leaf, cut_leaf, piece in zip(leaves, cut, pieces, strict=True)
        ]
        (value, aux), gradients = differentiate(arrays, jax.tree.unflatten(treedef, of_part))
        dtypes[:] = [value.dtype]
        total, grads = sums
        return (total + value, jax.tree.map(jnp.add, grads, gradients)), aux

    start = [collectives.to_copies(jnp.zeros_like(a), varying_axes(a)) for a in arrays]
    zero = jnp.zeros((), jnp.result_type(float))
    (total, grads), aux = lax.scan(step, (zero, start), (jnp.arange(parts), slices))
    with jax.named_scope(GRADIENT):
        averages = [g / parts for g in grads]
    return ((total / parts).astype(dtypes[0]), aux), averages


def _cut(x: Tensor, name: str | None, parts: int) -> tuple[Array, tuple[Dim, ...]] | None:
    """Returns the parts of a tensor, one after the other along the first array dimension, and the dims of one."""
    if name not in [dim.name for dim in x.dims]:
        return None
    dim = x.dim(name)
    if dim.size % parts:
        raise ShapeError(
            f"dim {dim} cannot be cut into {parts} microbatches.",
            rule="microbatches have one size.",
            fix="choose a number that divides it.",
        )
    part, count = Dim(dim.name, dim.size // parts), Dim(_CUT, parts)
    position = x.dims.index(dim)
    whole = reshape(x, [*x.dims[:position], part, count, *x.dims[position + 1 :]])
    return jnp.moveaxis(settled_array(whole), position + 1, 0), tuple(part if d == dim else d for d in x.dims)


def _fold(leaf: Any, part: Array) -> Any:
    is_key = hasattr(leaf, "dtype") and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    arrays = leaf.shape if is_key else ()  # of keys, each of which is folded
    fold = functools.reduce(lambda fold, _: jax.vmap(fold, (0, None)), arrays, jax.random.fold_in)
    return fold(leaf, part) if is_key else leaf


def _with_parts(parts: int, array: Array, shape: tuple[Dim, ...], role: str | None) -> Tensor:
    micro, *_ = unique((Dim(_MICRO, parts), *shape))
    part = _released(array, shape, role)
    return placed(part._array, current().placement(shape, role).stacked(micro), role, part._pending)
