"""Elementwise operations, by name.

Operands meet by the names of their dims: the result has the left one's dims, then the right one's new ones. Nothing
is communicated, except that a pending sum is reduced first where its value is needed. Adding pending sums, negating
or scaling one by a number does not need it.
"""

import functools
import numbers
import operator
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad, batching, mlir

from .. import compat
from ..checking.rules import SAME
from ..checking.slices import check_elementwise
from ..collectives import can_stay_pending
from ..dim import Dims, show, union
from ..errors import DtypeError, ShapeError
from ..layout import Placement, current
from ..sources import operation
from ..tensors import Tensor, check_same_everywhere, check_tensor, placement_of
from ..transfer import fill_padding
from .foreign import call_on_slices
from .operands import align, common_role, compute

__all__ = [
    "abs", "ceil", "clip", "cos", "erf", "exp", "expm1", "floor", "gelu", "isfinite", "isnan", "lift", "log",
    "log1p", "logical_and", "logical_not", "logical_or", "maximum", "minimum", "negative", "relu", "round", "rsqrt",
    "sigmoid", "sign", "silu", "sin", "softplus", "sqrt", "square", "stop_gradient", "tanh", "where",
]  # fmt: skip

Operand = Any  # a Tensor or a number


def lift(fn: Callable[..., Any], *, name: str | None = None) -> Callable[..., Tensor]:
    """Makes an elementwise function of arrays into one of tensors, which meet by the names of their dims.

    Keyword arguments are passed on as they are. A function that is not elementwise is refused where it would see a
    slice (`mx.SliceError`).

    >>> from meshax import tensor
    >>> lift(jnp.hypot)(tensor([3.0, 0.0], "side"), 4.0).numpy()
    array([5., 4.], dtype=float32)

    Communication: none; a pending sum is reduced first.
    """
    called: str = name or str(getattr(fn, "__name__", "lift"))
    is_ours = sys._getframe(1).f_globals["__name__"] == __name__  # what this module lifts is known to be elementwise

    def lifted(*operands: Operand, **options: Any) -> Tensor:
        return apply(functools.partial(fn, **options) if options else fn, operands, called, ours=is_ours)

    lifted.__name__ = lifted.__qualname__ = called
    lifted.__doc__ = f"Applies `{called}` elementwise, by name.\n\nCommunication: none; a pending sum is reduced first."
    return operation(lifted, called if called.isidentifier() else "lift")


def apply(
    fn: Callable[..., Any], operands: tuple[Operand, ...], name: str, pending: str = "", ours: bool = True
) -> Tensor:
    """Applies a function of arrays that is elementwise: known to be, if it is `ours`.

    A pending sum stays pending where that is exact: if `pending` is "sum" and all operands are pending alike, or if it
    is "scale" or "divide" and all but one are numbers.
    """
    operands = tuple(_as_operand(x, name) for x in operands)
    xs = [x for x in operands if isinstance(x, Tensor)]
    if not xs:
        return check_tensor(operands[0], f"mx.{name}")
    if _stays_unsettled(operands, xs, pending):
        first = xs[0]
        arrays = [x._array if isinstance(x, Tensor) else x for x in operands]
        array = fn(*arrays) if ours else _call(fn, arrays, [first.dims], placement_of(first), name)
        origin = None  # what is narrower than its origin is sent itself
        if ours and not first._pending and array.dtype.itemsize >= first.dtype.itemsize:
            origin = (lambda array: fn(*(array if isinstance(x, Tensor) else x for x in operands)), first)
        return Tensor(array, first.dims, first.role, first._placement, first._pending, origin)
    shape, role = union(*(x.dims for x in xs)), common_role(xs)
    placement = current().placement(shape, role, operands=[x.dims for x in xs] if len(xs) > 1 else ())

    def aligned(*arrays: Any) -> Any:
        ready = iter([align(a, x.dims, placement) for a, x in zip(arrays, xs, strict=True)])
        values = [next(ready) if isinstance(x, Tensor) else x for x in operands]
        return fn(*values) if ours else _call(fn, values, [x.dims for x in xs], placement, name)

    return Tensor(compute(aligned, xs, role), shape, role)


def _call(fn: Callable[..., Any], operands: list[Any], dims: list[Dims], placement: Placement, name: str) -> Any:
    """Calls a function of which we only hope that it is elementwise, on numbers and on arrays aligned to a shape."""
    shape, wanted = placement.dims, placement.local_shape
    arrays = [x for x in operands if not is_number(x)]

    def on_arrays(*arrays: Any) -> Any:
        ready = iter(arrays)
        array = fn(*(x if is_number(x) else next(ready) for x in operands))
        if len(np.shape(array)) != len(wanted) or any(
            n not in (1, m) for n, m in zip(array.shape, wanted, strict=True)
        ):
            raise ShapeError(
                f"{name} is not elementwise: it returns an array of shape {np.shape(array)}.",
                values=f"{show(shape)}, on one processor {wanted}",
                rule="a lifted function makes each element of its result from one element of each operand.",
                fix="use mx.local for a function of slices, or operations of meshax.",
            )
        return jnp.broadcast_to(array, wanted)

    if any(placement.parts):
        every = list(zip(shape, placement.parts, strict=True))
        check_elementwise(on_arrays, arrays, [tuple(p if d in own else SAME for d, p in every) for own in dims])
    result = call_on_slices(on_arrays, arrays, [placement] * len(arrays))
    return fill_padding(result, placement, shape)  # nothing may flow back through it


def _as_operand(x: Operand, name: str) -> Operand:
    if isinstance(x, Tensor) or is_number(x):
        return x
    if isinstance(x, jax.Array | np.ndarray) and x.ndim == 0:
        check_same_everywhere(x)
        return Tensor(x, ())
    called = name if name.startswith("operator") else f"mx.{name}"
    if isinstance(x, numbers.Number | np.generic):
        raise DtypeError(
            f"{called} does not know numbers of the type {type(x).__name__}.",
            values=repr(x),
            rule="an element is a truth value, an integer, a floating or a complex number of JAX's.",
            fix="convert it first, for example with float.",
        )
    return check_tensor(x, called)


def is_number(x: Any) -> bool:
    """Whether x is a number of Python's or numpy's that JAX has a dtype for."""
    if not isinstance(x, np.generic):
        return isinstance(x, bool | int | float | complex)
    try:
        dtype = jax.dtypes.canonicalize_dtype(x.dtype)
    except TypeError:
        return False
    return jnp.issubdtype(dtype, jnp.number) or dtype == jnp.bool_


def _stays_unsettled(operands: tuple[Operand, ...], xs: list[Tensor], pending: str) -> bool:
    """Whether the function can be applied to the slices as they are."""
    first = xs[0]
    if not first._pending:
        return len(xs) == 1 and first._placement is not None
    if not can_stay_pending(first.dtype):
        return False
    if len(xs) == 1:
        factors = [x for x in operands if x is not first]
        return pending in ("scale", "divide") and all(_scales(x, first.dtype, pending) for x in factors)
    states = {(x.dims, x.role, x._placement, x._pending, x.dtype) for x in xs}
    return pending == "sum" and len(states) == 1 and len(xs) == len(operands)


def _scales(number: Any, dtype: Any, pending: str) -> bool:
    """Whether scaling the parts of a sum by a number scales the sum.

    Infinity and zero do not: of parts that cancel, or that overflow, they make something else. Nor does a division of
    integers, or a factor that changes the dtype: a sum wraps around in its own.
    """
    if jnp.result_type(dtype, number) != dtype:
        return False
    if jnp.issubdtype(dtype, jnp.integer):
        return pending == "scale" and number != 0
    try:
        with np.errstate(over="ignore"):
            factor = np.asarray(number).astype(dtype)
    except (OverflowError, ValueError):  # an integer beyond all floats
        return False
    return bool(np.isfinite(factor) and factor != 0)


def _binary(fn: Callable[..., Any], name: str, pending: str, swapped: bool = False) -> Callable[..., Tensor]:
    def operator(a: Operand, b: Operand) -> Tensor:
        return apply(fn, (b, a) if swapped else (a, b), name, pending)

    return operation(operator, "operator")


def where(condition: Operand, a: Operand, b: Operand) -> Tensor:
    """Takes `a` where the condition holds, else `b`; the element not taken leaves no trace, be it NaN.

    Its gradient is zero; but if `b` came from an operation whose derivative is infinite there (the logarithm of 0),
    zero times infinity is NaN: choose a harmless argument before that operation.

    Communication: none; a pending sum is reduced first.
    """
    # the condition comes last: a mask has few dims, and the result is stored like what it chooses from
    return apply(lambda a, b, condition: jnp.where(condition, a, b), (a, b, condition), "where")


def astype(x: Tensor, dtype: Any) -> Tensor:
    """Casts to a dtype.

    Communication: none; a pending sum is reduced first, in its own dtype.
    """
    return apply(lambda a: a.astype(dtype), (x,), "astype")


def stop_gradient(x: Tensor) -> Tensor:
    """Returns the same value, through which no gradient flows.

    Communication: none; a pending sum is reduced first.
    """
    return apply(jax.lax.stop_gradient, (x,), "stop_gradient")


def negative(x: Tensor) -> Tensor:
    """Negates.

    Communication: none; a pending sum stays pending.
    """
    return apply(operator.neg, (x,), "negative", pending="scale")


def _gelu(x: Any, approximate: bool = True) -> Any:
    return jax.nn.gelu(x) if approximate else 0.5 * x * (1 + compat.erf(x * 0.5**0.5))


def _softplus(x: Any) -> Any:
    """The logarithm of 1 + exp(x). JAX before 0.12 forgets the rule of its own in a loop's second derivative, at 0."""
    x = x * 1.0  # whole numbers and truths are floats here
    return jnp.where(x > 0, x, 0) + jnp.log1p(jnp.exp(jnp.where(x > 0, -x, x)))


# A primitive, because of a `jax.custom_jvp` JAX forgets the rule in a loop's second derivative: it would be 0.5 at 0.
RELU = jax.extend.core.Primitive("relu")
_above_zero = jax.jit(lambda x: jax.lax.max(x, jnp.zeros_like(x)))
RELU.def_impl(_above_zero)
RELU.def_abstract_eval(lambda x: x)
mlir.register_lowering(RELU, mlir.lower_fun(_above_zero, multiple_results=False))
batching.defvectorized(RELU)
# x need not be kept, as y is, and a product may yield y at once. Asked whether y > 0, compilers would look at x instead
ad.defjvp2(RELU, lambda change, y, _: jax.lax.select((y != 0) & (y == y), change, jnp.zeros_like(change)))


exp, log, log1p, expm1 = lift(jnp.exp), lift(jnp.log), lift(jnp.log1p), lift(jnp.expm1)
sqrt, rsqrt, square = lift(jnp.sqrt), lift(jax.lax.rsqrt), lift(jnp.square)
sin, cos, tanh = lift(jnp.sin), lift(jnp.cos), lift(jnp.tanh)
sigmoid, softplus, erf = lift(jax.nn.sigmoid), lift(_softplus, name="softplus"), lift(compat.erf, name="erf")
relu = lift(lambda x: RELU.bind(x.astype(jnp.result_type(x, 0))), name="relu")
gelu, silu = lift(_gelu, name="gelu"), lift(jax.nn.silu)
abs, sign, floor, ceil, round = (lift(f) for f in (jnp.abs, jnp.sign, jnp.floor, jnp.ceil, jnp.round))
maximum, minimum = lift(jnp.maximum), lift(jnp.minimum)
logical_and, logical_or, logical_not = lift(jnp.logical_and), lift(jnp.logical_or), lift(jnp.logical_not)
isnan, isfinite, clip = lift(jnp.isnan), lift(jnp.isfinite), lift(jnp.clip)

_ARITHMETIC = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "and": "&",
    "or": "|", "xor": "^",
}  # fmt: skip
_COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_PENDING = {"add": "sum", "sub": "sum", "mul": "scale", "truediv": "divide"}


def _attach_operators() -> None:
    for name, symbol in (_ARITHMETIC | _COMPARISONS).items():
        fn, called, pending = getattr(operator, f"__{name}__"), f"operator {symbol}", _PENDING.get(name, "")
        setattr(Tensor, f"__{name}__", _binary(fn, called, pending))
        if name in _ARITHMETIC:  # a number divided by a pending sum is no pending sum
            setattr(Tensor, f"__r{name}__", _binary(fn, called, pending if name != "truediv" else "", swapped=True))
    Tensor.__neg__ = operation(negative)  # type: ignore
    Tensor.__abs__ = operation(lambda self: apply(operator.abs, (self,), "abs"), "abs")  # type: ignore
    Tensor.__invert__ = operation(lambda self: apply(operator.invert, (self,), "invert"), "invert")  # type: ignore
    Tensor.astype = operation(astype)  # type: ignore


_attach_operators()
