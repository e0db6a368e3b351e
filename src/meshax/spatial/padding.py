"""Padding: elements of one value, or a dim's own, before and behind it."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..compat import Array, is_traced
from ..dim import Dim, DimLike, find
from ..errors import ArgumentError
from ..layout import current
from ..ops.elementwise import is_number
from ..ops.neighbours import window
from ..ops.operands import compute, integers
from ..ops.shaping import windowed
from ..tensors import Tensor, check_tensor
from ..transfer import fill_padding, indices
from .stretches import own

__all__ = ["pad"]


def pad(x: Tensor, dim: DimLike, before: int, after: int, value: Any = 0, mode: str = "constant") -> Tensor:
    """Puts a number of elements before and after a dim.

    Args:
        x: the tensor.
        dim: the dim.
        before: how many come before its first element.
        after: how many come after its last element.
        value: what they are, if the mode is "constant".
        mode: "constant"; "edge": the first element again, and the last; "reflect": the elements mirrored at the first
            and the last, which are not repeated.

    >>> from meshax import arange, dims
    >>> pad(arange(*dims(length=4)), "length", 2, 1, mode="reflect").numpy()
    array([2, 1, 0, 1, 2, 3, 2], dtype=int32)

    Communication: none, if the dim is not split; otherwise permutes of what changes its processor.
    """
    dim = find(check_tensor(x, "mx.pad").dims, dim)
    before, after = integers("pad", before=before, after=after)
    if before < 0 or after < 0:
        raise ArgumentError(
            f"dim {dim} cannot be padded by {before} and {after}.", fix="use mx.slice to cut elements off."
        )
    new, last = Dim(dim.name, dim.size + before + after), dim.size - 1
    if mode == "constant":
        return windowed(x, dim, new, offset=-before, fill=_padding_value(value, x.dtype))
    if mode == "edge":
        return taken(x, dim, new, lambda places: (places - before).clip(0, last))
    if mode != "reflect":
        raise ArgumentError(
            f"mx.pad has no mode {mode!r}.",
            rule='a mode is "constant", "edge" or "reflect".',
            fix="choose one of these.",
        )
    if max(before, after) > last:
        raise ArgumentError(
            f"dim {dim} cannot be mirrored by {before} and {after}.",
            rule=f"its first and last element are not repeated: it has {last} others.",
            fix='pad by less, or with mode="edge".',
        )
    return taken(x, dim, new, lambda places: last - abs(last - abs(places - before)))


def _padding_value(value: Any, dtype: Any) -> Any:
    if hasattr(value, "dtype") and not isinstance(value, Tensor) and not is_traced(value) and not value.shape:
        value = np.asarray(value)[()]
    if not is_number(value):
        raise ArgumentError(
            f"mx.pad takes a number for value=, not {'a traced value' if is_traced(value) else type(value).__name__}.",
            rule="such a number is part of the program: it is known before the program runs.",
            fix="pad with 0, and choose with mx.where; or use mx.concat.",
        )
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return value
    if isinstance(value, complex | np.complexfloating):
        raise ArgumentError(
            f"{value} is not a real number, as the tensor's elements are.", fix="pad with a real number."
        )
    if jnp.issubdtype(dtype, jnp.integer):
        if not np.isfinite(value) or value != int(value):
            raise ArgumentError(f"{value} is not an integer, as the tensor's elements are.", fix="pad with an integer.")
        least, largest = int(jnp.iinfo(dtype).min), int(jnp.iinfo(dtype).max)
        if not least <= int(value) <= largest:
            raise ArgumentError(
                f"{value} is not one of the numbers of {dtype}.", values=f"{least} to {largest}", fix="cast the tensor."
            )
    return value


def taken(x: Tensor, dim: Dim, new: Dim, source: Callable[[Any], Any]) -> Tensor:
    """Makes element i of the new dim the element `source(i)` of the old one, for arrays i of places.

    What a block of the result reads has to lie close together: all between the first and the last of it is fetched.
    """
    setting, position = current(), x.dims.index(dim)
    placement = setting.placement(x.dims)
    shape = tuple(new if d == dim else d for d in x.dims)
    result = setting.placement(shape)
    block, axes = result.block(new), result.of(new)
    places = [source(np.arange(p * block, min((p + 1) * block, new.size))) for p in range(result.count(new))]
    starts = [int(some.min()) if len(some) else 0 for some in places]
    needs = [int(some.max()) + 1 - start if len(some) else 0 for some, start in zip(places, starts, strict=True)]

    def take(array: Array) -> Array:
        array = window(array, placement, dim, starts, max(needs), needs=needs)
        local = (source(indices(result, new)) - own(starts, axes)).clip(0, max(needs) - 1)
        return fill_padding(jnp.take(array, local, axis=position), result, (new,))

    return Tensor(compute(take, [x]), shape)
