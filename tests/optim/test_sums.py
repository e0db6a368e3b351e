"""Many small pending sums, reduced together."""

import numpy as np

import meshax as mx
from meshax.optim.sums import reduce_together

layers, rows, cols = mx.dims(layers=4, rows=6, cols=10)


def arrange(*dims):
    return mx.tensor(np.arange(np.prod([d.size for d in dims]), dtype=np.float32).reshape([d.size for d in dims]), dims)


def sums(a, b, c, d):
    return reduce_together([mx.sum(a), mx.sum(b, over=rows), mx.sum(c), mx.sum(d)])


def test_each_is_what_it_would_be_alone_and_there_is_one_all_reduce():
    args = arrange(rows, cols), arrange(layers, rows), arrange(cols), arrange(layers)
    program = mx.spmd(sums, mx.Mesh("x:2 y:4 z:1"), "rows:x cols:y+z")
    for got, wanted in zip(program(*args), sums(*args), strict=True):
        np.testing.assert_array_equal(got.numpy(), wanted.numpy())
    (only,) = program.explain(*args).collectives
    assert (only.kind, only.axes, only.elements) == ("all-reduce", ("x", "y", "z"), 1 + 4 + 1)


def test_one_that_is_split_itself_is_reduced_by_its_consumer():
    args = arrange(rows, cols), arrange(layers, rows), arrange(cols), arrange(layers)
    program = mx.spmd(sums, mx.Mesh("x:2 y:4"), "rows:x layers:y")
    for got, wanted in zip(program(*args), sums(*args), strict=True):
        np.testing.assert_array_equal(got.numpy(), wanted.numpy())
    found = {(c.axes, c.elements) for c in program.explain(*args).collectives}
    assert found == {(("x", "y"), 2), (("x",), 1)}
