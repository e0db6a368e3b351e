"""One trace for all layouts: names are followed through every operation and its derivative."""

import jax
import numpy as np
import pytest

import meshax as mx
from meshax.plan.search.graph import Graph, summed_names

a, b, c, layers = mx.dims(a=6, b=5, c=4, layers=3)
mx.Dim.declare({"other": "b, renamed"})


def described(*dims, dtype=np.float32):
    return mx.Tensor(jax.ShapeDtypeStruct(tuple(d.size for d in dims), dtype), dims)


def named_steps(graph, name):
    return [step for step in graph.block.all_steps() if step.name == name]


def test_products_and_their_derivatives_have_names():
    graph = Graph(
        lambda x, y: mx.grad(lambda x: mx.sum(mx.tanh(mx.einsum(x, y, over=b))))(x), (described(a, b), described(b, c))
    )
    products = named_steps(graph, "dot_general")
    assert [list(summed_names(p, graph)) for p in products] == [["b"], ["c"]]
    assert {graph.of(p.outputs[0]) for p in products} >= {("a", "c")}
    assert all(None not in graph.of(p.outputs[0]) for p in products)


def test_a_rename_shows_one_tensor_under_two_names():
    graph = Graph(lambda x: x.rename(b="other") * 2, (described(a, b),))
    assert graph.conflicts()["b"] == {"a"} and graph.conflicts()["other"] == {"a"}


def test_dims_that_meet_in_an_operation_conflict():
    graph = Graph(lambda x, y: mx.einsum(x, y, over=b), (described(a, b), described(b, c)))
    assert graph.conflicts() == {"a": {"b", "c"}, "b": {"a", "c"}, "c": {"a", "b"}}


def test_a_lookup_trades_one_dim_for_others():
    """Words may be split over the axis of the table they are looked up in: that is an all-gather, not an error."""
    words = described(a, dtype=np.int32)
    graph = Graph(lambda table, words: mx.gather(table, words, b), (described(b, c), words))
    assert graph.conflicts() == {"a": {"c"}, "b": {"c"}, "c": {"a", "b"}}


def test_names_go_into_loops_and_come_out():
    def fn(x, w):
        return mx.scan(lambda x, w: (mx.tanh(x * w), x), x, w, over=layers)[1]

    graph = Graph(fn, (described(a), described(layers, a)))
    (loop,) = named_steps(graph, "scan")
    assert graph.of(loop.outputs[1]) == ("layers", "a")
    assert all(graph.of(v) in ((), ("a",)) for step in loop.blocks[0].steps for v in step.outputs)


@pytest.mark.parametrize("control", ["while", "cond"])
def test_names_go_through_branches_and_while_loops(control):
    def fn(x):
        if control == "cond":
            return mx.cond(mx.sum(x) > 0, lambda x: x * 2, lambda x: x + 1, x)
        return mx.while_loop(lambda x: mx.sum(x) < 10, lambda x: x + 1, x)

    graph = Graph(fn, (described(a, b),))
    (step,) = named_steps(graph, control)
    assert graph.of(step.outputs[-1]) == ("a", "b")


def test_constants_get_the_names_of_what_they_meet():
    graph = Graph(lambda x: mx.where(mx.arange(a) > 2, x, -1.0), (described(a, b),))
    assert all(graph.of(v) == ("a", "b") for step in named_steps(graph, "select_n") for v in step.inputs if v.shape)
