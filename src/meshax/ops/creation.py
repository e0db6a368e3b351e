"""Tensors made from nothing. Each processor makes its own slice."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from .. import collectives
from ..dim import Dim, Dims, DimsLike, as_list, show, unique
from ..errors import ShapeError
from ..layout import current
from ..tensors import Tensor
from ..transfer import indices

__all__ = ["arange", "full", "ones", "zeros"]


def sized_dims(dims: DimsLike, op: str) -> Dims:
    """Returns the dims of a new tensor, which need sizes: names alone are not enough."""
    listed = as_list(dims)
    nameless = [dim for dim in listed if not isinstance(dim, Dim)]
    if nameless:
        raise ShapeError(
            f"mx.{op} does not know the size of {', '.join(map(repr, nameless))}.",
            rule="a new tensor is made of dims, which have sizes.",
            fix='pass dims, for example mx.dims("batch:32 hidden:64").',
        )
    return unique([dim for dim in listed if isinstance(dim, Dim)])


def one_sized_dim(dim: DimsLike, op: str) -> Dim:
    """Returns the one dim that an operation takes, with its size."""
    shape = sized_dims(dim, op)
    if len(shape) != 1:
        raise ShapeError(f"mx.{op} takes one dim, not {len(shape)}.", values=show(shape), fix="pass one dim.")
    return shape[0]


def places_fit(dim: Dim, op: str) -> Dim:
    """Returns the dim if the places along it are int32, or raises."""
    if dim.size > collectives.LARGEST + 1:
        raise ShapeError(
            f"mx.{op} counts places along dim {dim}, which do not fit into int32.",
            rule=f"places along a dim are int32: at most {collectives.LARGEST + 1} of them.",
            fix="use two dims in its place, for example of 65536 and the rest.",
        )
    return dim


def full(dims: DimsLike, value: Any, dtype: Any = None) -> Tensor:
    """Returns a tensor filled with a number.

    Communication: none.
    """
    shape = sized_dims(dims, "full")
    if isinstance(value, Tensor) or np.ndim(value):
        raise ShapeError(
            f"mx.full fills with a number, not {'a tensor' if isinstance(value, Tensor) else 'an array'}.",
            values=f"{show(shape)} with {value!r}"[:160],
            fix="multiply: mx.ones(dims) * value; or name an array's dims by mx.tensor.",
        )
    placement = current().placement(shape)
    return Tensor(collectives.to_copies(jnp.full(placement.local_shape, value, dtype), placement.axes), shape)


def zeros(dims: DimsLike, dtype: Any = jnp.float32) -> Tensor:
    """Returns a tensor of zeros.

    Communication: none.
    """
    return full(sized_dims(dims, "zeros"), 0, dtype)


def ones(dims: DimsLike, dtype: Any = jnp.float32) -> Tensor:
    """Returns a tensor of ones.

    Communication: none.
    """
    return full(sized_dims(dims, "ones"), 1, dtype)


def arange(dim: Dim) -> Tensor:
    """Returns 0, 1, ... along a dim (int32).

    >>> arange(Dim("length", 3)).numpy()
    array([0, 1, 2], dtype=int32)

    Communication: none.
    """
    dim = places_fit(one_sized_dim(dim, "arange"), "arange")
    return Tensor(indices(current().placement((dim,)), dim), (dim,))
