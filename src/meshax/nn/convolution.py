"""Convolutions with parameters, along any of the dims of an image: whichever are split, only borders are sent."""

import math
from collections.abc import Mapping
from typing import Any

import equinox as eqx

from ..dim import Dim, Dims
from ..ops import zeros
from ..sources import operation
from ..spatial import conv, conv_transpose
from ..spatial.sliding import Numbers, Padding
from ..tensors import Tensor, param
from .linear import normal_parameter

_Pairs = tuple[tuple[str, Any], ...]


class Conv(eqx.Module):
    """Slides a kernel along dims, maps some dims to others on the way, and adds a bias if it has one.

    Communication: as `mx.conv`: borders, and a pending sum of the result if the dims mapped from are split.
    """

    weight: Tensor
    bias: Tensor | None
    windows: _Pairs = eqx.field(static=True)
    before: tuple[str, ...] = eqx.field(static=True)
    stride: int | _Pairs = eqx.field(static=True)
    dilation: int | _Pairs = eqx.field(static=True)
    padding: str | _Pairs = eqx.field(static=True)

    @classmethod
    @operation
    def init(
        cls,
        key: Any,
        windows: Mapping[str, Dim],
        before: Dims,
        after: Dims,
        groups: Dims = (),
        stack: Dims = (),
        stride: Numbers = 1,
        dilation: Numbers = 1,
        padding: Padding = "same",
        scale: float = 1.0,
        bias: bool = True,
    ) -> Any:
        """Makes a layer whose results vary as much as what it is given, times `scale`; a bias begins with zeros.

        Args:
            key: for the kernel.
            windows: for each dim along which the kernel slides its dim of taps.
            before: the dims that are summed over.
            after: the new dims, which come last.
            groups: dims that stay, each element with a kernel of its own.
            stack: dims that come first, of a stack of layers.
            stride: as in `mx.conv`.
            dilation: as in `mx.conv`.
            padding: as in `mx.conv`.
            scale: what the results are multiplied by.
            bias: whether to add one.
        """
        taps = tuple(windows.values())
        deviation = scale / math.sqrt(cls._fan_in(math.prod(d.size for d in (*taps, *before)), windows, stride))
        weight = normal_parameter(key, (*stack, *taps, *groups, *before, *after), deviation)
        return cls(
            weight,
            param(zeros((*stack, *groups, *after))) if bias else None,
            tuple((dim, tap.name) for dim, tap in windows.items()),
            tuple(d.name for d in before),
            _static(stride),
            _static(dilation),
            _static(padding),
        )

    @staticmethod
    def _fan_in(products: int, windows: Mapping[str, Dim], stride: Numbers) -> float:
        """Returns how many products an element of the result is a sum of."""
        return products

    @operation
    def __call__(self, x: Tensor) -> Tensor:
        """Applies the layer."""
        return self._apply(conv, x)

    def _apply(self, op: Any, x: Tensor) -> Tensor:
        how = {name: _usable(getattr(self, name)) for name in ("stride", "dilation", "padding")}
        out = op(x, self.weight.astype(x.dtype), dict(self.windows), over=self.before, **how)
        return out if self.bias is None else out + self.bias.astype(x.dtype)


class ConvTranspose(Conv):
    """The transpose of a convolution: makes dims larger by its stride.

    Communication: as `mx.conv_transpose`; none of the operand if kernels are as long as the stride and blocks divide.
    """

    @staticmethod
    def _fan_in(products: int, windows: Mapping[str, Dim], stride: Numbers) -> float:
        strides = [stride if isinstance(stride, int) else stride.get(dim, 1) for dim in windows]
        return max(products / math.prod(strides), 1.0)

    @operation
    def __call__(self, x: Tensor) -> Tensor:
        """Applies the layer."""
        return self._apply(conv_transpose, x)


def _static(value: Any) -> Any:
    """Returns what can be compared and hashed, as parts of a program must."""
    return (
        tuple((str(dim), tuple(n) if isinstance(n, list) else n) for dim, n in value.items())
        if isinstance(value, Mapping)
        else value
    )


def _usable(value: Any) -> Any:
    return dict(value) if isinstance(value, tuple) else value
