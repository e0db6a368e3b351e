"""Layers that make images smaller and larger are their operations."""

import numpy as np

import meshax as mx
from example_tensors import numbers
from meshax import nn

x = numbers(*mx.dims(batch=2, height=6, width=8))


def test_layers_are_their_operations():
    windows = {"height": 3, "width": 2}
    for layer, wanted in (
        (nn.MaxPool(windows), mx.max_pool(x, windows)),
        (nn.MeanPool(windows, 1, "same"), mx.mean_pool(x, windows, 1, "same")),
        (nn.Upsample({"height": 2}), mx.resize(x, {"height": 12})),
        (nn.Upsample({"width": 3}, "linear"), mx.resize(x, {"width": 24}, "linear")),
    ):
        np.testing.assert_array_equal(layer(x).numpy(), wanted.numpy())
        assert hash(layer) == hash(layer)  # a part of programs
