"""A model without a cache writes too."""

import equinox as eqx
import numpy as np

import meshax as mx
from meshax.decode import Engine, Request
from meshax.decode.rereading import Rereading, caching
from meshax.models.contract import CachingModel


class Adder(eqx.Module):
    """Predicts the sum of all tokens before, modulo 7."""

    def __call__(self, tokens):
        so_far = mx.cumsum(tokens, "length").rename(length="positions") % 7
        return mx.one_hot(so_far, mx.Dim("vocab", 7))


def test_it_reads_everything_again():
    adder: CachingModel = caching(Adder())
    assert isinstance(adder, Rereading) and caching(adder) is adder
    for mesh, layout, slots in (("x:1", "", 1), ("data:2 model:4", "batch:data vocab:model length:model", 2)):
        engine = Engine(Adder(), mx.Mesh(mesh), layout, slots=slots, places=24, chunk=3)
        first, second = engine.generate([Request((1, 2), 5), Request((5,) * 18, 4)])
        assert first.tokens == [3, 6, 5, 3, 6] and second.tokens == [6, 5, 3, 6]
        np.testing.assert_allclose(first.log_probabilities, np.log(np.e / (np.e + 6)), atol=1e-6)
