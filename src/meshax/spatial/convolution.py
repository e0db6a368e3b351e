"""Convolutions, and their transposes, by names.

Each processor fetches what its windows reach of its neighbours (`stretches.py`), and convolves what it has then, in one
convolution of XLA's: windows are never written to memory. What is left is as in `mx.einsum`: padding is masked, and a
split contracted dim gives a pending sum.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..compat import Array
from ..dim import Dim, DimLike, Dims, DimsLike, find, select, show, union, without
from ..errors import DtypeError, ShapeError
from ..layout import Axes, current
from ..ops.contraction import in_float32
from ..ops.operands import compute, describe
from ..ops.reduction import sum as sum_
from ..ops.resharding import rename
from ..tensors import Tensor, check_tensor
from ..transfer import fill_padding
from .slabs import by_slabs
from .sliding import Local, Numbers, Padding, Slide, slides_of, spreads_of, window_dims
from .stretches import fetch_stretches, own

__all__ = ["conv", "conv_transpose"]

Windows = Mapping[DimLike, DimLike]


def conv(
    x: Tensor,
    kernel: Tensor,
    windows: Windows,
    over: DimsLike = (),
    stride: Numbers = 1,
    dilation: Numbers = 1,
    padding: Padding = "same",
) -> Tensor:
    """Slides a kernel along dims: `y[j] = sum over taps t and over: x[j * stride - before + t * dilation] * kernel[t]`.

    Args:
        x: the tensor.
        kernel: the weights of the taps. Dims that both have, and that are not summed over, stay: groups. The kernel's
            other dims come last.
        windows: for each dim of x along which the kernel slides (one to three) the kernel's dim of taps.
        over: the dims that are summed over as well.
        stride: the distance from window to window: a number, or one for each dim.
        dilation: the distance from tap to tap: a number, or one for each dim.
        padding: zeros around x. "same" as JAX has it: a dim of size n gets ceil(n / stride) windows, and the odd zero
            comes behind; "valid": none; or how many before and behind each dim.

    >>> from meshax import tensor
    >>> x, kernel = tensor([1.0, 2.0, 4.0, 8.0], "length"), tensor([1.0, 1.0, 1.0], "taps")
    >>> conv(x, kernel, {"length": "taps"}).numpy()
    array([ 3.,  7., 14., 12.], dtype=float32)

    Communication: none, if no dim with a window is split; otherwise one permute for each side on which windows reach
    out of a block, or several if they reach past the neighbour; the gradient by x sends as much back. A processor sends
    what its block grows by: from blocks n_i, out of which windows reach l_i places to the left and r_i to the right,
    `product of (n_i + l_i + r_i) - product of n_i` elements for each one of the other dims (less between two
    processors, where one permute carries both sides; blocks that do not fit the stride may read more). A split dim of
    `over` gives a pending sum; the gradient by the kernel is one over the axes of windows and batch.
    """
    return _convolve("conv", x, kernel, windows, over, stride, dilation, padding)


def conv_transpose(
    x: Tensor,
    kernel: Tensor,
    windows: Windows,
    over: DimsLike = (),
    stride: Numbers = 1,
    dilation: Numbers = 1,
    padding: Padding = "same",
) -> Tensor:
    """Does the transpose of `mx.conv`: adds `x[i] * kernel[t]` to place `i * stride - before + t * dilation` of y.

    The arguments are those of the convolution that it is the transpose of, but for `over`: dims of x, those that the
    convolution would give. A dim of size n gets n * stride elements under "same" padding, and otherwise
    (n - 1) * stride + (taps - 1) * dilation + 1, less the padding.

    >>> from meshax import tensor
    >>> x, kernel = tensor([1.0, 2.0, 4.0], "length"), tensor([1.0, 10.0], "taps")
    >>> conv_transpose(x, kernel, {"length": "taps"}, stride=2).numpy()
    array([ 1., 10.,  2., 20.,  4., 40.], dtype=float32)

    Communication: as `mx.conv`. Along a dim of which c elements are cut off at the left, a window of k taps reaches
    floor((k - 1 - c) / stride) places to the left and ceil(c / stride) to the right, if blocks are multiples of the
    stride; none if the kernel is as long as the stride.
    """
    return _convolve("conv_transpose", x, kernel, windows, over, stride, dilation, padding)


def _convolve(op: str, x: Tensor, kernel: Tensor, windows: Windows, over: DimsLike, *how: Any) -> Tensor:
    x, kernel = check_tensor(x, f"mx.{op}"), check_tensor(kernel, f"mx.{op}")
    dtype = _common_dtype(op, x, kernel)
    if jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 16:  # as in mx.einsum
        x, kernel = x.astype(jnp.float32), kernel.astype(jnp.float32)
    pairs = {dim: find(kernel.dims, tap) for dim, tap in window_dims(op, x.dims, windows).items()}
    slides_for: Callable[..., Sequence[Slide]] = slides_of if op == "conv" else spreads_of
    slides = slides_for(op, {dim: tap.size for dim, tap in pairs.items()}, *how)
    kernel, taps = _whole_taps(op, x, kernel, list(pairs.values()))
    summed = select(without(union(x.dims, kernel.dims), (*pairs, *taps)), over)
    x, kernel = _sum_alone(x, kernel, summed), _sum_alone(kernel, x, summed)
    total = _product(x, kernel, taps, slides, tuple(dim for dim in x.dims if dim in summed))
    return total if total.dtype == dtype else total.astype(dtype)


def _product(x: Tensor, kernel: Tensor, taps: Dims, slides: Sequence[Slide], over: Dims) -> Tensor:
    setting = current()
    outs = without(kernel.dims, (*x.dims, *taps))
    pending = frozenset(setting.placement((*x.dims, *outs), operands=[x.dims, kernel.dims]).over(over))
    placement, news = setting.placement(x.dims), {slide.dim: slide.new for slide in slides}
    reads = [slide.reads(placement.count(slide.dim)) for slide in slides]
    steps = [slide.local(placement.count(slide.dim)) for slide in slides]
    groups = tuple(dim for dim in x.dims if dim in kernel.dims and dim not in over)
    batch = without(x.dims, (*news, *groups, *over))
    result = (*(news.get(dim, dim) for dim in x.dims if dim not in over), *outs)
    order = (*batch, *news.values(), *groups, *outs)
    multiply: Callable[..., Array] = partial(
        _one_convolution, num_groups=len(groups), num_summed=len(over), steps=steps
    )
    if pending and x.dtype == jnp.float16:
        multiply = in_float32(multiply)

    def product(array: Array, weights: Array) -> Array:
        array = fill_padding(array, placement, without(x.dims, [read.dim for read in reads if read.is_split]))
        array = fetch_stretches(array, placement, reads)
        array = jnp.transpose(array, [x.dims.index(dim) for dim in (*batch, *news, *groups, *over)])
        weights = fill_padding(weights, setting.placement(kernel.dims), kernel.dims)
        weights = jnp.transpose(weights, [kernel.dims.index(dim) for dim in (*taps, *over, *groups, *outs)])
        array = multiply(array, weights)
        for i, (slide, step) in enumerate(zip(slides, steps, strict=True), len(batch)):
            array = _cut_block(array, i, step, placement.of(slide.dim))
        array = jnp.transpose(array, [order.index(dim) for dim in result])
        return fill_padding(array, setting.placement(result), result)

    return Tensor(compute(product, [x, kernel]), result, pending=pending)


def _one_convolution(
    x: Array, kernel: Array, num_groups: int, num_summed: int, steps: list[Local], preferred_element_type: Any = None
) -> Array:
    """Convolves [batch dims, windows, groups, summed] with [taps, summed, groups, others], all of them local."""
    rank = len(steps)
    first = x.ndim - rank - num_groups - num_summed
    batch, sizes = x.shape[:first], x.shape[first : first + rank]
    groups = x.shape[first + rank : first + rank + num_groups]
    taps, others = kernel.shape[:rank], kernel.shape[rank + num_summed + num_groups :]
    letters = "DHW"[3 - rank :]
    convolve: Callable[..., Array] = partial(
        lax.conv_general_dilated,
        window_strides=[step.stride for step in steps],
        lhs_dilation=[step.operand_dilation for step in steps],
        rhs_dilation=[step.tap_dilation for step in steps],
        dimension_numbers=(f"N{letters}C", f"{letters}IO", f"N{letters}C"),
        feature_group_count=math.prod(groups),
        preferred_element_type=preferred_element_type,
    )
    x = x.reshape(math.prod(batch), *sizes, math.prod(x.shape[first + rank :]))
    kernel = kernel.reshape(*taps, math.prod(kernel.shape[rank : rank + num_summed]), math.prod((*groups, *others)))
    if steps[0].is_transposed:
        kernel = jnp.flip(kernel, range(rank))
        if current().mesh.platform == "gpu" and not groups:
            convolve = _for_cudnn(convolve, steps, taps)
    out = by_slabs(partial(convolve, rhs=kernel), x, steps, taps)
    return out.reshape(*batch, *out.shape[1:-1], *groups, *others)


def _for_cudnn(spread: Callable[..., Array], steps: list[Local], taps: Sequence[int]) -> Callable[..., Array]:
    """Returns a transpose with its kernel's gradient as cuDNN finds a convolution's: JAX's has an image as filter."""
    rank, letters = len(taps), "DHW"[3 - len(taps) :]
    numbers = f"C{letters}N", f"I{letters}O", f"{letters}CN"
    strides, dilations = [step.tap_dilation for step in steps], [step.operand_dilation for step in steps]
    margins: Any = [[(n - 1) * s.tap_dilation - m for m in s.padding] for n, s in zip(taps, steps, strict=True)]

    def gradient(x: Array, change: Array) -> Array:
        return jnp.flip(lax.conv_general_dilated(change, x, strides, margins, None, dilations, numbers), range(rank))

    product = jax.custom_jvp(lambda x, kernel: spread(x, rhs=kernel, padding=[step.padding for step in steps]))
    product.defjvps(
        lambda tangent, _, x, kernel: product(tangent, kernel),
        lambda tangent, out, x, kernel: jax.linear_transpose(partial(gradient, x), out)(tangent)[0],
    )
    return lambda x, rhs, padding: product(x, rhs)


def _cut_block(x: Array, position: int, step: Local, axes: Axes) -> Array:
    """Returns this processor's block of what a convolution gave, which may begin elsewhere on each processor."""
    if x.shape[position] == step.block:
        return x
    return lax.dynamic_slice_in_dim(x, own(step.begins, axes), step.block, position)


def _sum_alone(x: Tensor, other: Tensor, over: Dims) -> Tensor:
    """Sums over dims that the other operand does not have."""
    alone = [dim for dim in over if dim in x.dims and dim not in other.dims]
    return sum_(x, alone) if alone else x


def _common_dtype(op: str, x: Tensor, kernel: Tensor) -> Any:
    if x.dtype != kernel.dtype:
        raise DtypeError(
            f"tensor and kernel of mx.{op} have different dtypes.",
            values=f"{show(x.dims)} {x.dtype} and {show(kernel.dims)} {kernel.dtype}",
            rule="a product is computed in one dtype, so that none is slower than it looks.",
            fix="cast one of them: kernel.astype(x.dtype).",
        )
    return x.dtype


def _whole_taps(op: str, x: Tensor, kernel: Tensor, taps: Sequence[Dim]) -> tuple[Tensor, Dims]:
    """Returns the kernel with its dims of taps under names that no rule splits."""
    names = [tap.name for tap in taps]
    known = {dim.name for dim in x.dims}
    if len(set(names)) < len(names) or known & set(names):
        raise ShapeError(
            f"a dim of taps of mx.{op} is a dim of the tensor too, or slides along two dims.",
            values=f"{describe([x, kernel])}, taps {', '.join(names)}",
            rule="each dim of x that a window slides along has a dim of the kernel of its own.",
            fix="rename the kernel's dim.",
        )
    rules = dict(current().layout.rules)
    unsplit = {name: f"{name}_unsplit" for name in names if name in rules}
    return rename(kernel, unsplit) if unsplit else kernel, tuple(Dim(unsplit.get(t.name, t.name), t.size) for t in taps)
