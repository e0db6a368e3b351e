"""What models of images have in common: the names of their dims, and a convolution with its norm.

The channels of what goes through a network are `features`. A convolution makes `filters` of them, which become the next
features: split `features` over an axis, and each convolution ends in a reduce-scatter over it.
"""

import math
from typing import Any

import equinox as eqx

from ..dim import Dim
from ..errors import ArgumentError
from ..nn import BatchNorm, Conv
from ..nn.image_norms import Observed
from ..tensors import Tensor

PLACES = ("x", "y", "z")
GLOSSARY = {
    "batch": "images or volumes",
    "x": "places along the first side of an image",
    "y": "places along the second side",
    "channel": "numbers at each place of an image, as it is read",
    "features": "channels of what goes through the network",
    "filters": "channels that a convolution makes, before they are the next features",
    "classes": "what is told apart",
    "kx": "taps of a kernel along x",
    "ky": "taps of a kernel along y",
}
RELU = math.sqrt(2)  # what a kernel is scaled by, where half of its results become zero


def taps(size: int, rank: int) -> dict[str, Dim]:
    """Returns for each side of an image the dim of the taps of a kernel."""
    return {place: Dim(f"k{place}", size) for place in PLACES[:rank]}


def features(size: int) -> tuple[Dim]:
    """Returns the channels of what goes through a network."""
    return (Dim("features", size),)


def filters(size: int) -> tuple[Dim]:
    """Returns the channels that a convolution makes."""
    return (Dim("filters", size),)


class NormedConv(eqx.Module):
    """A convolution whose results are normalised over the batch."""

    conv: Conv
    norm: BatchNorm

    @classmethod
    def init(cls, key: Any, before: int, after: int, size: int, rank: int, momentum: float, **how: Any) -> "NormedConv":
        """Makes one with a kernel of this size along every side; its bias is the norm's."""
        kernel = Conv.init(key, taps(size, rank), features(before), filters(after), scale=RELU, bias=False, **how)
        return cls(kernel, BatchNorm.init(features(after), momentum))

    def __call__(self, x: Tensor, training: bool) -> tuple[Tensor, Observed | None]:
        """Returns the result, and in training what the norm has observed."""
        x = self.conv(x).rename(filters="features")
        return self.norm.train(x) if training else (self.norm(x), None)

    def updated(self, observed: Observed) -> "NormedConv":
        """Returns the layer with what was observed taken into its running statistics."""
        return NormedConv(self.conv, self.norm.updated(observed))


def updated(layers: Any, observed: Any) -> Any:
    """Returns a tree of layers, each `NormedConv` in it with what it has observed: a tree alike."""
    if isinstance(layers, NormedConv):
        return layers.updated(observed)
    return tuple(updated(layer, one) for layer, one in zip(layers, observed, strict=True))


def check_counts(config: Any, *names: str) -> None:
    """Raises unless these fields of a configuration are at least 1."""
    for name in names:
        if getattr(config, name) < 1:
            raise ArgumentError(f"the model's {name} is {getattr(config, name)}.", fix="give a number, 1 or more.")
