"""Which products processors compute alike, and which they do not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoder
import meshax as mx

batch, inner, outer, turns = mx.dims(batch=8, inner=16, outer=32, turns=3)


def struct(*dims, dtype=np.float32):
    return mx.tensor(jax.ShapeDtypeStruct([d.size for d in dims], dtype), dims)


X, W = struct(batch, inner), mx.param(struct(inner, outer))
PRODUCT = 2 * batch.size * inner.size * outer.size


def product(x, w):
    return mx.einsum(x, w, over=inner)


def explain(fn, layout, *args, mesh="data:2 model:4"):
    return mx.spmd(fn, mx.Mesh(mesh, abstract=True), layout).explain(*args)


def found(fn, layout, *args, mesh="data:2 model:4"):
    return [(d.axes, d.flops, d.share) for d in explain(fn, layout, *args, mesh=mesh).duplicates]


@pytest.mark.parametrize(
    ("layout", "duplicates"),
    [
        ("", [(("data", "model"), PRODUCT, 7 / 8)]),
        ("batch:data", [(("model",), PRODUCT // 2, 3 / 4)]),
        ("outer:model", [(("data",), PRODUCT // 4, 1 / 2)]),
        ("batch:data outer:model", []),
        ("batch:data+model", []),
        ("inner:model", [(("data",), PRODUCT // 4, 1 / 2)]),  # each processor sums a part of its own
        (mx.Layout("batch:data", params="inner:model"), [(("model",), PRODUCT // 2, 3 / 4)]),  # gathered: the same
    ],
)
def test_a_product_that_no_rule_splits_is_done_by_all(layout, duplicates):
    assert found(product, layout, X, W) == duplicates


def test_a_duplicate_has_its_line_and_what_a_rule_would_save():
    report = explain(product, "batch:data", X, W)
    (duplicate,) = report.duplicates

    assert duplicate.line == f"test_replication.py:{product.__code__.co_firstlineno + 1}"
    assert duplicate.op == "einsum"
    assert duplicate.wasted == report.duplicated_flops == PRODUCT // 2 * 3 // 4
    assert "done twice: einsum at test_replication.py" in str(report) and "no rule splits it over 'model'" in str(
        report
    ), str(report)


def test_axes_of_one_processor_do_nothing_twice():
    assert found(product, "batch:data", X, W, mesh="data:2 model:1") == []


def loss(w, x):
    return mx.sum(mx.square(product(x, w)))


def test_parameters_cast_to_copies_are_still_the_same():
    """Their type says that they may differ; all that differs is the batch."""

    def both(w, x):
        return mx.grad(loss)(w, x), mx.einsum(w, w.rename(inner="other"), over=outer)

    def inside(w, x):
        decay = lambda w: mx.sum(mx.einsum(w, w.rename(inner="other"), over=outer))  # noqa: E731
        return mx.value_and_grad(lambda w, x: loss(w, x) + decay(w))(w, x)

    mx.Dim.declare({"other": "inner, renamed"})
    squares = 2 * inner.size**2 * outer.size
    assert found(both, "batch:data", W, X, mesh="data:2") == [(("data",), squares, 1 / 2)]
    # backward, all but the first processor multiply zeros: those products are not the same
    assert found(inside, "batch:data", W, X, mesh="data:2") == [(("data",), squares, 1 / 2)]


def test_full_data_parallelism_does_nothing_twice():
    report = explain(decoder.sgd, "batch:data", decoder.init(), *decoder.tokens(), mesh="data:8")
    assert report.flops > 0
    assert report.duplicates == []


def test_tensor_parallelism_alone_does_every_product_once_along_its_axis():
    layout = "heads:model d_ff:model vocab:model"
    report = explain(decoder.sgd, layout, decoder.init(), *decoder.tokens(), mesh="model:4")
    assert report.duplicates == []


BODIES = {
    "scan": lambda x, w: mx.scan(lambda c, _: (product(c, w).rename(outer="inner"), None), x, over=turns)[0],
    "while": lambda x, w: mx.while_loop(lambda c: mx.sum(c) < 9.0, lambda c: product(c, w).rename(outer="inner"), x),
    "cond": lambda x, w: mx.cond(mx.sum(w) > 0, lambda x: product(x, w), lambda x: product(x, -w), x),
}


@pytest.mark.parametrize(("name", "times"), [("scan", turns.size), ("while", 1), ("cond", 2)])
def test_products_in_loops_and_branches(name, times):
    square = mx.param(struct(inner, mx.Dim("outer", inner.size)))
    count = 2 * batch.size * inner.size**2 * times

    assert found(BODIES[name], "batch:data", X, square, mesh="data:2") == []
    assert found(BODIES[name], "", X, square, mesh="data:2") == [(("data",), count, 1 / 2)]


def test_a_carry_that_comes_to_differ_differs_from_the_second_turn_on():
    def fn(x, w):
        start = mx.zeros((batch, mx.Dim("inner", inner.size)))
        return mx.scan(lambda c, _: (product(c, w).rename(outer="inner") + x, None), start, over=turns)[0]

    assert found(fn, "batch:data", X, struct(inner, mx.Dim("outer", inner.size)), mesh="data:2") == []


def test_a_branch_that_processors_choose_differently_makes_different_results():
    def fn(x, w):
        picked = mx.local(lambda a: jnp.where(a[:1, :1] > 0, a, -a), x, out=x.dims, splittable="batch")
        return product(picked, w)

    assert found(fn, "batch:data", X, W, mesh="data:2") == []


@pytest.mark.parametrize(
    ("fn", "same"),
    [
        (lambda x, w: product(mx.sum(x, batch), w), True),  # reduced: all have the sum
        (lambda x, w: product(x.rename(batch="whole"), w), True),  # gathered
        (lambda x, w: product(mx.shift(x, batch, 1), w), False),  # permuted
        (lambda x, w: mx.einsum(mx.sum(x, batch).rename(inner="s"), w.rename(inner="s"), over="s"), False),  # scattered
        (lambda x, w: mx.einsum(x.rename(batch="whole", inner="s"), w.rename(inner="s"), over="s"), False),  # exchanged
        (lambda x, w: product(mx.max(x, batch), w), True),
        (lambda x, w: product(mx.arange(batch).astype(jnp.float32) * mx.sum(x, batch), w), False),  # own numbers
    ],
)
def test_what_collectives_make_the_same(fn, same):
    mx.Dim.declare({"whole": "batch, renamed", "s": "inner, renamed"})
    duplicates = found(fn, "batch:data s:data", X, W, mesh="data:2")

    assert bool(duplicates) == same
    assert all(axes == ("data",) for axes, _, _ in duplicates)
