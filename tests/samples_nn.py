"""Inputs for layers: numbers that differ from place to place."""

import numpy as np

import meshax as mx


def numbers(*dims, scale=1.0):
    """Returns a tensor of float32 numbers between -1 and 1, times the scale."""
    shape = [dim.size for dim in dims]
    return mx.tensor((scale * np.sin(1.3 * np.arange(np.prod(shape)) + 0.4)).reshape(shape).astype(np.float32), dims)
