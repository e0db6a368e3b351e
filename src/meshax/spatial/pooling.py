"""The largest, or the mean, of each window of some dims."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ..compat import Array
from ..dim import Dim, DimLike
from ..layout import current
from ..ops.operands import compute, integers
from ..ops.reduction import lowest
from ..tensors import Tensor, check_tensor
from ..transfer import along, fill_padding, indices
from .slabs import count_slabs
from .sliding import Numbers, Padding, Slide, slides_of, window_dims
from .stretches import fetch_stretches

__all__ = ["max_pool", "mean_pool"]

Sizes = Mapping[DimLike, int]


def max_pool(x: Tensor, windows: Sizes, stride: Numbers | None = None, padding: Padding = "valid") -> Tensor:
    """Takes the maximum of each window; in the gradient, the first of equal ones gets it all.

    Args:
        x: the tensor.
        windows: the size of the window along each dim that it slides along, one to three of them.
        stride: the distance from window to window, by default the window's size: a number, or one for each dim.
        padding: "valid": none; "same", or how many elements before and behind each dim. Padding is never the maximum.

    >>> from meshax import tensor
    >>> max_pool(tensor([1, 5, 3, 2, 4], "length"), {"length": 2}).numpy()
    array([5, 3], dtype=int32)

    Communication: as `mx.conv`; none if the stride is the window's size, and blocks are multiples of it.
    """
    slides = _slides("max_pool", x, windows, stride, padding)
    wide = _wide(x, jnp.bfloat16)
    return _reduced(wide, slides, lax.max, lowest(wide.dtype)).astype(x.dtype)


def mean_pool(x: Tensor, windows: Sizes, stride: Numbers | None = None, padding: Padding = "valid") -> Tensor:
    """Averages each window: the sum of the elements of x in it, divided by their number. Padding never enters a mean.

    Args:
        x: the tensor; floats narrower than float32 are added up in float32, and so are integers.
        windows: the size of the window along each dim that it slides along, one to three of them.
        stride: the distance from window to window, by default the window's size: a number, or one for each dim.
        padding: "valid": none; "same", or how many elements before and behind each dim. The mean of a window that
            lies in padding altogether is zero.

    >>> from meshax import tensor
    >>> mean_pool(tensor([1.0, 5.0, 3.0], "length"), {"length": 2}, padding="same").numpy()
    array([3., 3.], dtype=float32)

    Communication: as `mx.max_pool`.
    """
    slides = _slides("mean_pool", x, windows, stride, padding)
    is_inexact = jnp.issubdtype(x.dtype, jnp.inexact)
    total = _reduced(_wide(x if is_inexact else x.astype(jnp.float32), jnp.float32), slides, lax.add, 0)
    placement = current().placement(total.dims)

    def divide(array: Array) -> Array:
        for slide in slides:
            array = array / along(
                _num_real(slide, indices(placement, slide.new)), total.dims.index(slide.new), array.ndim
            )
        return array

    return Tensor(compute(divide, [total]), total.dims).astype(x.dtype if is_inexact else jnp.float32)


def _num_real(slide: Slide, windows: Array) -> Array:
    """Returns how many elements of the dim itself lie in each window, at least 1."""
    first = windows * slide.stride - slide.before
    inside = jnp.minimum(first + slide.taps, slide.dim.size) - jnp.maximum(first, 0)
    return jnp.maximum(inside, 1).astype(jnp.float32)


def _slides(op: str, x: Tensor, windows: Sizes, stride: Numbers | None, padding: Padding) -> Sequence[Slide]:
    named = window_dims(op, check_tensor(x, f"mx.{op}").dims, windows)
    sizes: dict[Dim, int] = {dim: integers(op, window=size)[0] for dim, size in named.items()}
    return slides_of(op, sizes, {d.name: n for d, n in sizes.items()} if stride is None else stride, 1, padding)


def _wide(x: Tensor, least: Any) -> Tensor:
    """Returns a floating tensor in at least this precision."""
    is_narrow = jnp.issubdtype(x.dtype, jnp.floating) and jnp.finfo(x.dtype).bits < jnp.finfo(least).bits
    return x.astype(jnp.float32) if is_narrow else x


def _reduced(x: Tensor, slides: Sequence[Slide], combine: Callable[..., Array], fill: Any) -> Tensor:
    """Reduces each window by one local reduction of XLA's; `fill` is what does not change it."""
    setting, news = current(), {slide.dim: slide.new for slide in slides}
    placement = setting.placement(x.dims)
    shape = tuple(news.get(dim, dim) for dim in x.dims)
    reads = [slide.reads(placement.count(slide.dim)) for slide in slides]
    by_dim = {slide.dim: (slide.taps, slide.local(placement.count(slide.dim))) for slide in slides}
    sizes = [by_dim[dim][0] if dim in by_dim else 1 for dim in x.dims]
    strides = [by_dim[dim][1].stride if dim in by_dim else 1 for dim in x.dims]
    margins = [by_dim[dim][1].padding if dim in by_dim else (0, 0) for dim in x.dims]

    def reduce(array: Array) -> Array:
        array = fetch_stretches(array, placement, reads, fill)
        array = _reduce_windows(array, np.asarray(fill, array.dtype)[()], combine, sizes, strides, margins)
        return fill_padding(array, setting.placement(shape), tuple(news.values()))

    return Tensor(compute(reduce, [x]), shape)


def _reduce_windows(
    x: Array, fill: Any, combine: Callable[..., Array], sizes: list[int], strides: list[int], margins: list[Any]
) -> Array:
    """Reduces the windows of a local array: by slabs, where windows lie side by side."""
    slid = [i for i, size in enumerate(sizes) if size > 1]
    rest = [n for n, size in zip(x.shape, sizes, strict=True) if size == 1]
    count, i = 1, max(slid, key=lambda i: x.shape[i], default=0)
    if sizes == strides and not any(map(any, margins)) and x.shape[i] % sizes[i] == 0:
        count = count_slabs(math.prod(rest[:-1]), x.shape[i] // sizes[i])
    if count == 1:
        return lax.reduce_window(x, fill, combine, sizes, strides, margins)
    window = [*sizes[:i], 1, *sizes[i:]]
    x = x.reshape(*x.shape[:i], count, x.shape[i] // count, *x.shape[i + 1 :])
    x = lax.reduce_window(x, fill, combine, window, window, "VALID")
    return x.reshape(*x.shape[:i], -1, *x.shape[i + 2 :])
