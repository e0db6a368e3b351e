"""The reported collectives are those of the program: the same as in its StableHLO, with the right lines and phases."""

from collections import Counter

import jax
import numpy as np
import optax
import pytest

import decoder
import hlo
import meshax as mx
import stablehlo
from meshax import optim
from meshax.plan.compile.hlo import compiled_collectives
from meshax.plan.reading.communication import wire_bytes
from test_communication import ALONG_A_SPLIT_DIM, PENDING, col, place, row, struct

MESH = "data:2 model:4"
TENSOR = "heads:model d_ff:model vocab:model"
OPTIMIZER = optim.from_optax(optax.adam(1e-3))


def adam(w, state, inputs, targets):
    value, grads = mx.value_and_grad(decoder.loss)(w, inputs, targets)
    return *OPTIMIZER.apply(grads, state, w), value


def with_remat(policy):
    layer = mx.remat(decoder.layer, policy=policy)
    return lambda *args: decoder.sgd(*args, loss=lambda *a: decoder.loss(*a, layer=layer))


def in_microbatches(*args):
    return decoder.sgd(*args, microbatches=4, over="batch")


ZERO_3 = mx.Layout("batch:data", params="d_model:data")
PROGRAMS = {
    "data": (decoder.sgd, "batch:data"),
    "tensor": (decoder.sgd, TENSOR),
    "data and tensor": (decoder.sgd, f"batch:data {TENSOR}"),
    "ZeRO-1": (adam, mx.Layout("batch:data", optimizer="d_model:data")),
    "ZeRO-3": (decoder.sgd, ZERO_3),
    "sequence": (decoder.sgd, f"length:model {TENSOR}"),
    "remat": (with_remat(None), TENSOR),
    "remat, collectives kept": (with_remat("collectives"), TENSOR),
    "microbatches": (in_microbatches, "batch:data"),
    "microbatches, ZeRO-3": (in_microbatches, ZERO_3),
    "loss": (decoder.loss, f"batch:data {TENSOR}"),
    "gradients returned": (mx.value_and_grad(decoder.loss), f"batch:data {TENSOR}"),
    "gradients of microbatches returned": (
        mx.value_and_grad(decoder.loss, microbatches=4, over="batch"),
        f"batch:data {TENSOR}",
    ),
}


def made(name):
    """Returns a program of the table, and its arguments."""
    fn, layout = PROGRAMS[name]
    program, w = mx.spmd(fn, mx.Mesh(MESH), layout), decoder.init()
    state = (mx.spmd(OPTIMIZER.init, program.mesh, program.layout)(w),) if fn is adam else ()
    return program, (w, *state, *decoder.tokens())


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_report_counts_what_is_in_the_program(name):
    program, args = made(name)
    found = stablehlo.collectives(program, *args)

    assert found
    assert stablehlo.reported(program, *args) == found


@pytest.mark.parametrize("name", ["tensor", "data and tensor", "ZeRO-1", "microbatches"])
def test_the_compiler_keeps_what_is_reported(name):
    program, args = made(name)
    reported = Counter()
    for c in program.explain(*args).collectives:
        reported[c.kind, c.elements] += c.count
    kept = {
        (kind, n): times for kind, counts in hlo.operands(program.compile(*args)).items() for n, times in counts.items()
    }

    assert kept == reported


@pytest.mark.parametrize(("name", "sums"), [("data", 1), ("data and tensor", 1), ("ZeRO-3", 0)])
def test_gradients_are_summed_together_as_the_compiler_does(name, sums):
    program, args = made(name)
    gradients = [c for c in program.explain(*args).collectives if c.phase == "backward" and c.axes == ("data",)]
    compiled = compiled_collectives(program.compile(*args).as_text())

    joined = Counter(c.joined for c in gradients if c.kind == "all-reduce")
    assert joined == ({False: 1, True: parameters(args[0]) - 1} if sums else {})
    assert not any(c.joined for c in gradients if c.kind != "all-reduce")
    assert len([c for c in compiled if c.kind == "all-reduce" and len(c.operands) > 1 and c.group == 2]) == sums


def test_a_second_update_does_not_join_the_first():
    def twice(w, *batch):
        w, _ = decoder.sgd(w, *batch)
        return decoder.sgd(w, *batch)

    args = decoder.init(), *decoder.tokens()
    found = mx.spmd(twice, mx.Mesh(MESH), "batch:data").explain(*args).collectives
    gradients = [c for c in found if c.phase == "backward"]
    count = parameters(args[0])
    assert [c.joined for c in gradients] == [False, *[True] * (count - 1)] * 2


def test_large_gradients_go_alone():
    wide, deep = mx.dims(wide=4096, deep=2048)  # 32 MiB of float32
    small = mx.Dim("small", 8)

    def step(w, x):
        a, b, c = (lambda w, name=name: mx.einsum(x, w[name], over=wide) for name in "abc")
        grads = mx.grad(lambda w: mx.sum(a(w) * b(w) * c(w)))(w)
        return jax.tree.map(lambda p, g: p - g, w, grads)

    w = {name: mx.param(struct(wide, deep)) for name in "abc"}
    report = mx.spmd(step, mx.Mesh("data:2", abstract=True), "small:data").explain(w, struct(small, wide))
    sums = [c for c in report.collectives if c.shape == (4096, 2048)]
    assert len(sums) == 3 and not any(c.joined for c in sums)


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_collective_has_a_line_of_the_program_and_an_operation(name):
    program, args = made(name)

    for c in program.explain(*args).collectives:
        file, _, number = c.line.partition(":")
        assert file in ("decoder.py", "test_communication.py"), c
        assert int(number) > 0
        assert c.op, c


def phases(program, *args):
    counts = Counter()
    for c in program.explain(*args).collectives:
        counts[c.phase, c.kind, c.axes] += c.count
    return counts


def parameters(tree):
    return len(jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, mx.Tensor)))


@pytest.mark.parametrize("name", ["data", "microbatches", "gradients returned", "gradients of microbatches returned"])
def test_sums_of_gradients_are_backward(name):
    program, args = made(name)
    found = phases(program, *args)

    assert found["backward", "all-reduce", ("data",)] == parameters(args[0])
    assert not [key for key in found if key[0] == "update"]
    assert found["forward", "all-reduce", ("data",)] == (4 if "microbatches" in name else 1), "the loss"


def test_the_optimizer_gathers_in_the_update():
    program, args = made("ZeRO-1")

    assert phases(program, *args) == {
        ("forward", "all-reduce", ("data",)): 1,
        ("backward", "reduce-scatter", ("data",)): parameters(args[0]),
        ("update", "all-gather", ("data",)): parameters(args[0]),
    }


def test_gathers_and_products_that_are_done_again_are_recomputation():
    program, args = made("ZeRO-3")
    found = phases(program, *args)
    norms = 2 * decoder.LAYERS + 1  # vectors, which are kept; and nothing needs the embedding again
    assert found["recompute", "all-gather", ("data",)] == found["forward", "all-gather", ("data",)] - norms - 1
    assert {phase for phase, kind, _ in found if kind == "reduce-scatter"} == {"backward"}

    program, args = made("remat")
    assert phases(program, *args)["recompute", "all-reduce", ("model",)] == decoder.LAYERS


batch, inner, outer = mx.dims(batch=8, inner=6, outer=4)
W, X = struct(inner, outer), struct(batch, inner)


def squares(w, x):
    return mx.sum(mx.square(mx.einsum(x, w, over=inner)))


def scaled(w, x):
    g = mx.grad(squares)(w, x)
    return w - 0.1 * g


def twice(w, x):
    g = mx.grad(squares)(w, x) + mx.grad(squares)(w, x * 2)
    return w - g / 2


def clipped(w, x):
    g = mx.grad(squares)(w, x)
    return w - g * mx.rsqrt(mx.sum(g * g))


@pytest.mark.parametrize("fn", [scaled, twice])
def test_a_gradient_that_is_scaled_before_it_is_summed_is_backward(fn):
    program = mx.spmd(fn, mx.Mesh("data:2", abstract=True), "batch:data")

    assert phases(program, W, X) == {("backward", "all-reduce", ("data",)): 1}


def test_what_an_optimizer_sums_is_the_update():
    program = mx.spmd(clipped, mx.Mesh("data:2 model:2", abstract=True), "batch:data outer:model")

    assert phases(program, W, X) == {
        ("backward", "all-reduce", ("data",)): 1,
        ("update", "all-reduce", ("model",)): 1,
    }


OPERATIONS = {name: fn for name, (fn, *_) in ALONG_A_SPLIT_DIM.items() if name != "local"} | {
    "while_loop": lambda x, i: mx.while_loop(lambda x: mx.sum(x) < 9.0, lambda x: x + mx.sum(x * x), x),
    "cond": lambda x, i: mx.cond(mx.sum(x) > 0, lambda x: x + mx.sum(x), lambda x: x * mx.max(x), x),
    "scan": lambda x, i: mx.scan(lambda c, _: (c + mx.sum(c), mx.max(c)), x, over=mx.Dim("turns", 5)),
    "scan in a scan": lambda x, i: mx.scan(inner_scan, x, over=mx.Dim("turns", 5))[0],
    "jit": lambda x, i: jax.jit(lambda x: x + mx.sum(x))(x),
    "debug_print": lambda x, i: (mx.debug_print("{x}", x=x), x)[1],
    "var": lambda x, i: mx.var(x),
    "prod": lambda x, i: mx.prod(x, "col"),
    "softmax": lambda x, i: mx.grad(lambda x: mx.sum(mx.softmax(x, "col") ** 2))(x),
    "bfloat16": lambda x, i: mx.sum(x.astype("bfloat16"), "col"),
    "all": lambda x, i: mx.all(x > 0),
    "returned": lambda x, i: mx.sum(x, "col"),
}


def inner_scan(x, _):
    return mx.scan(lambda c, _: (c + mx.sum(c), None), x, over=mx.Dim("inner", 6))[0], None


@pytest.mark.parametrize("layout", ["col:x", "col:x row:y", "col:y+x"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_the_collectives_of_an_operation(name, layout):
    program = mx.spmd(OPERATIONS[name], mx.Mesh("x:4 y:2"), layout)
    args = struct(row, col), struct(place, dtype=np.int32)

    assert stablehlo.reported(program, *args) == stablehlo.collectives(program, *args)
    for c in program.explain(*args).collectives:
        assert c.line.startswith("test_communication.py:")
        assert c.op


@pytest.mark.parametrize("name", PENDING)
def test_pending_sums_and_renames_have_lines(name):
    fn, wanted = PENDING[name]
    i, j, k = mx.dims(i=4, j=3, k=6)
    mx.Dim.declare({"s": "i, renamed", "u": "k, renamed"})
    program = mx.spmd(fn, mx.Mesh("x:2"), "k:x s:x")
    args = struct(i, k), struct(k, j)

    assert stablehlo.reported(program, *args) == stablehlo.collectives(program, *args)
    for c in program.explain(*args).collectives:
        assert c.line.startswith("test_communication.py:")
        assert c.op


def test_an_operation_has_the_name_that_users_know():
    program = mx.spmd(lambda x: mx.exp(mx.sum(x, row)), mx.Mesh("x:2", abstract=True), "row:x")
    assert [c.op for c in program.explain(struct(row, col)).collectives] == ["exp"]

    cube = mx.lift(lambda a: a**3)
    program = mx.spmd(lambda x: cube(mx.sum(x, row)), mx.Mesh("x:2", abstract=True), "row:x")
    assert [c.op for c in program.explain(struct(row, col)).collectives] == ["lift"]


def test_what_no_line_asks_for_has_the_line_of_the_function():
    def renamed(x):
        return x.rename(col="place_of_col")

    program = mx.spmd(renamed, mx.Mesh("x:2", abstract=True), "col:x")
    (gather,) = program.explain(struct(row, col)).collectives

    assert (gather.kind, gather.op) == ("all-gather", "return")
    assert gather.line == f"test_communication.py:{renamed.__code__.co_firstlineno}"


def test_axes_of_one_processor_communicate_nothing():
    program = mx.spmd(lambda x: mx.sum(x), mx.Mesh("x:1 y:2", abstract=True), "row:x")
    assert not program.explain(struct(row, col)).collectives


@pytest.mark.parametrize(
    ("kind", "sent"),
    [("all-reduce", 1500), ("all-gather", 3000), ("reduce-scatter", 750), ("all-to-all", 750), ("permute", 1000)],
)
def test_bytes_sent_in_a_ring_of_4(kind, sent):
    assert wire_bytes(kind, 1000, 4) == sent
