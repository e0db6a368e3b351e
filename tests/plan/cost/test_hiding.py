"""What is hidden behind computation, by hand: only what does not wait, once, in one turn of a loop."""

from dataclasses import replace

import jax
import numpy as np
import pytest

import decoder
import meshax as mx
from meshax.plan.cost.hardware import KNOWN, Hardware, Link
from meshax.plan.cost.hiding import hidden_times
from meshax.plan.cost.timing import Network, kernel_time
from meshax.plan.reading.primitives import KINDS

rows, inner, cols, layers = mx.dims(rows=64, inner=48, cols=48, layers=5)
MACHINE = Hardware("machine", {"float32": 1e9}, 1e9, 1e12, Link(0.0, 1e9), hides=KINDS)
SLOW_LINKS = replace(MACHINE, inside=Link(0.0, 1e5))
FSDP = mx.Layout("rows:data", params="inner:data")


def struct(*dims, role=None):
    x = mx.tensor(jax.ShapeDtypeStruct([d.size for d in dims], np.float32), dims)
    return mx.param(x) if role else x


def explain(fn, *args, layout=FSDP, overlap=True):
    report = mx.spmd(fn, mx.Mesh("data:4", abstract=True), layout).explain(*args)
    report.overlap = overlap
    return report


def product(x, w):
    return mx.rename(mx.einsum(x, w, over=inner), {cols: inner})


def hidden(report, machine=MACHINE):
    network = Network.of(machine, report.setting.mesh)
    pairs = zip(report.collectives, report.hidden_times(network), strict=True)
    return [(c.kind, round(seconds / (network.collective_time(c) * c.count), 9)) for c, seconds in pairs]


X, W = struct(rows, inner), struct(inner, cols, role="param")


def test_a_gather_that_the_only_product_waits_for_is_exposed():
    report = explain(product, X, W)
    assert hidden(report) == [("all-gather", 0.0)]


def test_a_gather_is_hidden_behind_a_product_that_does_not_need_it():
    """Of two layers one after the other, the second's parameters travel during the first's product."""
    report = explain(lambda x, a, b: product(product(x, a), b), X, W, W)
    assert hidden(report) == [("all-gather", 0.0), ("all-gather", 1.0)]
    time = report.time(MACHINE)
    assert time.exposed == pytest.approx(time.communication / 2) and time.hidden == time.communication - time.exposed
    assert time.total == time.compute + time.memory + time.exposed == report.seconds(MACHINE)


def test_a_second_of_computation_hides_one_of_communication():
    """And of links that are slow, no more than the first product takes; the rest is exposed."""
    report = explain(lambda x, a, b: product(product(x, a), b), X, W, W)
    first = report.kernels.own[[k.step.name for k in report.kernels.own].index("dot_general")]
    (_, second) = report.hidden_times(Network.of(SLOW_LINKS, report.setting.mesh))
    assert second == pytest.approx(kernel_time(first, SLOW_LINKS).total)


def test_a_second_of_computation_hides_once():
    """Two gathers share what one product leaves them."""

    def branches(x, a, b, c):
        h = product(x, a)
        return product(h, b), product(h, c)

    report = explain(branches, X, W, W, W)
    _, b, c = report.hidden_times(Network.of(SLOW_LINKS, report.setting.mesh))
    each = next(kernel_time(k, SLOW_LINKS).total for k in report.kernels.own if k.step.name == "dot_general")
    assert b == pytest.approx(2 * each)  # behind the product of a, and behind that of c
    assert c == pytest.approx(each)  # behind that of b: the product of a is taken


def test_nothing_is_hidden_unless_it_is_asked_for():
    report = explain(lambda x, a, b: product(product(x, a), b), X, W, W, overlap=False)
    time = report.time(MACHINE)
    assert time.hidden == 0.0 and time.exposed == time.communication


def test_nothing_is_hidden_that_a_compiler_does_not_start_early():
    report = explain(lambda x, a, b: product(product(x, a), b), X, W, W)
    assert report.time(replace(MACHINE, hides=("permute",))).hidden == 0.0
    assert report.time(KNOWN["cpu"]).hidden == 0.0
    assert KNOWN["tpu-v5p"].hides == ("all-gather", "permute") and KNOWN["h200"].hides == KINDS


def test_a_loop_hides_what_does_not_wait_in_the_same_turn():
    """The first gather of a turn is exposed in every turn; nothing outside is hidden behind the loop."""
    stack = struct(layers, inner, cols, role="param")

    def loop(x, a, b, last):
        x, _ = mx.scan(lambda x, w: (product(product(x, w[0]), w[1]), None), x, (a, b), over=layers)
        return product(x, last)

    report = explain(loop, X, stack, stack, W)
    assert hidden(report) == [("all-gather", 0.0), ("all-gather", 1.0), ("all-gather", 0.0)]
    assert report.collectives[1].count == 5


def test_what_a_loop_carries_one_turn_ahead_is_hidden():
    split = mx.Dim("split", 48)
    whole = lambda w: mx.rename(w, {split: inner})  # noqa: E731

    def loop(x, first, stack):
        def turn(carry, following):
            x, w = carry
            return (product(x, w), whole(following)), None

        return mx.scan(turn, (x, whole(first)), stack, over=layers)[0][0]

    report = explain(loop, X, struct(split, cols), struct(layers, split, cols), layout="rows:data split:data")
    gathers = [(c.count, share) for c, (_, share) in zip(report.collectives, hidden(report), strict=True)]
    assert gathers == [(1, 0.0), (5, 1.0)]


def test_sums_of_a_step_and_their_parts():
    """What is hidden is never more than what is sent, nor than what is computed."""
    mesh = mx.Mesh("data:2 model:4", abstract=True)
    layout = mx.Layout("batch:data heads:model d_ff:model vocab:model", params="d_model:data")
    report = mx.spmd(decoder.sgd, mesh, layout).explain(decoder.init(), *decoder.tokens())
    report.overlap = True
    for machine in KNOWN.values():
        network = Network.of(machine, mesh)
        each = hidden_times(report.kernels, report.collectives, network)
        whole = [network.collective_time(c) * c.count for c in report.collectives]
        assert all(0.0 <= part <= all_of_it * 1.000001 for part, all_of_it in zip(each, whole, strict=True))
        time = report.time(machine)
        assert time.hidden == sum(each) <= time.compute + time.memory
        assert (time.hidden > 0) == (machine.name != "cpu")
