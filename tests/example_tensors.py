"""Tensors that several tests begin with: their values differ from place to place."""

import math

import numpy as np

import meshax as mx


def counting(*dims, dtype=np.float32):
    """Returns 0, 1, 2, ... in the order of storage."""
    shape = [dim.size for dim in dims]
    return mx.tensor(np.arange(math.prod(shape)).reshape(shape).astype(dtype), dims)


def numbers(*dims, scale=1.0):
    """Returns float32 numbers between -1 and 1, times the scale."""
    shape = [dim.size for dim in dims]
    return mx.tensor((scale * np.sin(1.3 * np.arange(math.prod(shape)) + 0.4)).reshape(shape).astype(np.float32), dims)
