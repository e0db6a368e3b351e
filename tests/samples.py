"""Tensors that several tests begin with."""

import math

import numpy as np

import meshax as mx


def counting(*dims, dtype=np.float32):
    """0, 1, 2, ... in the order of storage: values that differ by position."""
    shape = [dim.size for dim in dims]
    return mx.tensor(np.arange(math.prod(shape)).reshape(shape).astype(dtype), dims)
