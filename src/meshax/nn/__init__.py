"""Layers: Equinox modules whose parameters are named tensors.

A layer is made by its `init(key, ...)`, which takes the dims it maps between; `stack` dims come first, so that the
layers of a model are made at once and looped over with `mx.scan`. A layer computes in the dtype of what it is given,
and its parameters are cast to it.
"""

from .attention import Attention
from .convolution import Conv, ConvTranspose
from .dropout import Dropout
from .feed_forward import FeedForward
from .image_norms import BatchNorm, GroupNorm, InstanceNorm
from .linear import Embedding, Linear
from .losses import cross_entropy, dice, weighted_cross_entropy
from .norms import LayerNorm, RMSNorm
from .pooling import MaxPool, MeanPool, Upsample

__all__ = [
    "Attention", "BatchNorm", "Conv", "ConvTranspose", "Dropout", "Embedding", "FeedForward", "GroupNorm",
    "InstanceNorm", "LayerNorm", "Linear", "MaxPool", "MeanPool", "RMSNorm", "Upsample", "cross_entropy", "dice",
    "weighted_cross_entropy",
]  # fmt: skip
