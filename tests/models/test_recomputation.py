"""What the backward pass keeps: a checkpoint only where something is computed again, or forgotten."""

import numpy as np
import pytest

import meshax as mx
from meshax.models.recomputation import keeping

A, B = mx.Dim("a", 3), mx.Dim("b", 4)


@pytest.mark.parametrize(
    ("keep", "layout", "checkpoints"),
    [("everything", "", 0), ("everything", mx.Layout("", params="b:one"), 1), ("products", "", 1), ("nothing", "", 1)],
)
def test_where_there_is_a_checkpoint(keep, layout, checkpoints):
    def run(w):
        layer = keeping(lambda x: mx.sin(x) * x, keep)
        return mx.value_and_grad(lambda w: mx.sum(layer(w * 2)))(w)

    w = mx.param(mx.tensor(np.arange(12.0).reshape(3, 4), [A, B]))
    program = mx.spmd(run, mx.Mesh("one:2"), layout)
    assert str(program.trace(w).jaxpr).count("remat2[") == checkpoints
    total, gradient = program(w)
    x = 2 * np.arange(12.0).reshape(3, 4)
    np.testing.assert_allclose(total.numpy(), np.sum(np.sin(x) * x), rtol=1e-5)
    np.testing.assert_allclose(gradient.numpy(), 2 * (np.cos(x) * x + np.sin(x)), rtol=1e-5, atol=1e-5)
