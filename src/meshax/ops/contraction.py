"""Products summed over dims.

The local product runs on the slices. Where a summed dim is split, the result is a pending sum: its first use decides
whether it becomes an all-reduce or a reduce-scatter.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from ..dim import Dims, DimsLike, as_list, select, show, union, without
from ..errors import DtypeError, ShapeError
from ..layout import current
from ..tensors import Tensor, check_tensor
from ..transfer import fill_padding
from .operands import compute, describe
from .reduction import any as any_
from .reduction import sum as sum_

__all__ = ["einsum"]

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def einsum(*xs: Tensor, out: DimsLike | None = None, over: DimsLike | None = None) -> Tensor:
    """Multiplies tensors by name and sums over the dims that `out` leaves out, or that `over` names.

    >>> from meshax import tensor
    >>> a, b = tensor([[1.0, 2.0]], "i j"), tensor([[3.0], [4.0]], "j k")
    >>> einsum(a, b, out="i k").numpy()
    array([[11.]], dtype=float32)

    Communication: none, if no summed dim is split; otherwise a pending sum, reduced by its first use.
    """
    if not xs:
        raise ShapeError(
            "mx.einsum needs at least one tensor.", fix="write for example mx.einsum(x, w, out=(batch, hidden))."
        )
    xs = tuple(check_tensor(x, "mx.einsum") for x in xs)
    if (out is None) == (over is None):
        raise ShapeError(
            "mx.einsum takes either out= or over=.",
            values=describe(xs),
            fix="name the dims of the result (out=), or the dims to sum over (over=).",
        )
    if len({x.dtype for x in xs}) > 1:
        raise DtypeError(
            "the operands of mx.einsum have different dtypes.",
            values=" and ".join(f"{show(x.dims)} {x.dtype}" for x in xs),
            rule="a product is computed in one dtype, so that none is slower than it looks.",
            fix="cast one operand: x.astype(w.dtype).",
        )
    if jnp.issubdtype(xs[0].dtype, jnp.floating) and jnp.finfo(xs[0].dtype).bits < 16:
        # most backends have no products of these, and some of them have no zero to mask with
        return einsum(*(x.astype(jnp.float32) for x in xs), out=out, over=over).astype(xs[0].dtype)
    every = union(*(x.dims for x in xs))
    result = select(every, as_list(out)) if out is not None else without(every, select(every, over or ()))
    summed = without(every, result)
    xs = _sum_colliding_alone(xs, every, summed)
    every = union(*(x.dims for x in xs))
    pending = frozenset(current().placement(every, operands=[x.dims for x in xs]).over(summed))
    letters = dict(zip((dim.name for dim in every), _LETTERS, strict=False))
    *terms, last = ("".join(letters[d.name] for d in dims) for dims in (*(x.dims for x in xs), result))

    dtype = xs[0].dtype
    multiply: Callable[..., Any] = partial(jnp.einsum, f"{','.join(terms)}->{last}")
    if pending and dtype == jnp.float16:
        multiply = in_float32(multiply)

    def product(*arrays: Any) -> Any:
        arrays = tuple(_mask(a, x.dims) for a, x in zip(arrays, xs, strict=True))
        return _mask(multiply(*arrays), result)

    total = Tensor(compute(product, xs), result, pending=pending)
    return total if total.dtype == dtype else total.astype(dtype)


def in_float32(multiply: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a product of float16 give float32: a part of the sum may overflow where the whole does not.

    The backward pass is that of the product as it is, whose operands are float16.
    """
    wide = jax.custom_vjp(partial(multiply, preferred_element_type=jnp.float32))
    wide.defvjp(
        lambda *arrays: (wide(*arrays), arrays),
        lambda arrays, ct: jax.vjp(multiply, *arrays)[1](ct.astype(jnp.float16)),
    )
    return wide


def _mask(array: Any, shape: Dims) -> Any:
    """Zeroes all padding: a product forward is a sum over other dims backward, and 0 * NaN is NaN."""
    return fill_padding(array, current().placement(shape), shape)


def _sum_colliding_alone(xs: tuple[Tensor, ...], every: Dims, summed: Dims) -> tuple[Tensor, ...]:
    """Sums first over dims that only one operand has, if their axis splits a dim of another operand too."""
    setting, owners = current(), {dim: [x for x in xs if dim in x.dims] for dim in summed}
    done = []
    for x in xs:
        axes_elsewhere = {axis for dim in every if dim not in x.dims for axis in setting.placement((dim,)).axes}
        alone = [d for d in x.dims if d in summed and len(owners[d]) == 1]
        colliding = [d for d in alone if axes_elsewhere & setting.placement((d,)).axes]
        reduce = any_ if x.dtype == jnp.bool_ else sum_
        done.append(reduce(x, over=colliding).astype(x.dtype) if colliding else x)
    return tuple(done)
