"""Every row of the table of what operations communicate is charged, and as much as a trace under the layout has."""

import re
from pathlib import Path

import jax
import numpy as np
import pytest

import meshax as mx
from meshax.plan.cost.hardware import KNOWN
from meshax.plan.cost.timing import Network
from meshax.plan.reading.primitives import KINDS
from meshax.plan.search.graph import Graph
from meshax.plan.search.prices import Prices

a, b, c, d, ab, vocab, k = mx.dims(a=16, b=32, c=8, d=24, ab=512, vocab=40, k=4)
mx.dims(other=32, more=16, w=3, parts=2)
AXES = {"rows": 2, "cols": 4}


def described(*dims, dtype=np.float32):
    return mx.Tensor(jax.ShapeDtypeStruct(tuple(x.size for x in dims), dtype), dims)


def squared(fn):
    """Uses a result at once: what is pending is summed."""
    return lambda *xs: mx.square(fn(*xs))


X, Y, IDS, TABLE = described(a, b), described(b, c), described(a, dtype=np.int32), described(vocab, c)
TAP = mx.Dim("w", 3)
TAPS, SQUARE = described(TAP, c), (TAP, mx.Dim("v", 5))


def gradients(fn):
    return lambda x, y: mx.grad(lambda both: mx.sum(mx.square(fn(*both))))((x, y))


# The operation, its operands, the layout, and the kinds of collectives it needs.
ROWS = {
    "elementwise": (lambda x: mx.tanh(x) * 2, [X], "a:rows b:cols", ""),
    "broadcast": (lambda x, y: x + mx.sum(y, c), [X, Y], "a:rows", ""),
    "einsum": (squared(lambda x, y: mx.einsum(x, y, over=b)), [X, Y], "b:cols", "all-reduce"),
    "einsum, its result split": (
        squared(lambda x, y: mx.einsum(x, y, over=b).rename(a="more")), [X, Y], "b:cols more:cols", "reduce-scatter",
    ),
    "sum": (squared(lambda x: mx.sum(x, b)), [X], "b:rows+cols", "all-reduce"),
    "mean": (squared(lambda x: mx.mean(x, a)), [X], "a:rows", "all-reduce"),
    "var": (squared(lambda x: mx.var(x, b)), [X], "b:cols", "all-reduce"),
    "max": (lambda x: mx.max(x, b), [X], "b:cols", "all-reduce"),
    "min": (lambda x: mx.min(x, b), [X], "b:cols", "all-reduce"),
    "all": (lambda x: mx.all(x > 0, b), [X], "b:cols", "all-reduce"),
    "any": (lambda x: mx.any(x > 0, b), [X], "b:cols", "all-reduce"),
    "argmin": (lambda x: mx.argmin(x, b), [X], "b:cols", "all-reduce"),
    "softmax_cross_entropy": (lambda x, i: mx.softmax_cross_entropy(x, i, over=b), [X, IDS], "b:cols", "all-reduce"),
    "where": (lambda x: mx.where(x > 0, x, -1.0), [X], "a:rows b:cols", ""),
    "arange zeros ones full": (
        lambda x: x + mx.arange(b) + mx.zeros((a,)) + mx.ones((a,)) + mx.full((a,), 2.0), [X], "a:rows b:cols", "",
    ),
    "local": (lambda x: mx.local(lambda x: x * 2, x, out="a b", splittable="a b"), [X], "a:rows b:cols", ""),
    "while_loop": (
        lambda x: mx.while_loop(lambda s: mx.max(s) < 3, lambda s: s + 1, mx.sum(x, a)), [X], "b:cols", "all-reduce",
    ),
    "cond": (
        lambda x: mx.cond(mx.max(x) > 0, lambda x: mx.square(mx.sum(x, b)), lambda x: mx.sum(x, b) * 0, x), [X],
        "b:cols", "all-reduce",
    ),
    "remat": (mx.remat(squared(lambda x: mx.sum(x, b))), [X], "b:cols", "all-reduce"),
    "value_and_grad": (
        lambda x, y: mx.value_and_grad(lambda y: mx.sum(mx.tanh(mx.einsum(x, y, over=b))))(y), [X, Y], "a:rows",
        "all-reduce",
    ),
    "prod": (lambda x: mx.prod(x, b), [X], "b:cols", "all-gather"),
    "argmax": (lambda x: mx.argmax(x, b), [X], "b:cols", "all-reduce"),
    "logsumexp": (lambda x: mx.logsumexp(x, b), [X], "b:cols", "all-reduce"),
    "softmax": (lambda x: mx.softmax(x, b), [X], "b:cols", "all-reduce"),
    "top_k": (lambda x: mx.top_k(x, b, k), [X], "b:cols", "all-gather"),
    "rename, split alike": (squared(lambda x: x.rename(b="other")), [X], "b:cols other:cols", ""),
    "rename, not split any more": (squared(lambda x: x.rename(b="other")), [X], "b:cols", "all-gather"),
    "rename, split from now on": (squared(lambda x: x.rename(b="other")), [X], "other:cols", ""),
    "rename, an axis moves": (
        squared(lambda x: x.rename(a="more", b="other")), [X], "b:cols more:cols", "all-to-all",
    ),
    "reshape of an unsplit group": (squared(lambda x: mx.reshape(x, ab)), [X], "", ""),
    "reshape, the first dim split alike": (squared(lambda x: mx.reshape(x, ab)), [X], "a:cols ab:cols", ""),
    "reshape of a split group": (squared(lambda x: mx.reshape(x, ab)), [X], "b:cols", "all-gather"),
    "slice": (lambda x: mx.slice(x, b, 3, 20), [X], "b:cols", "permute"),
    "pad": (lambda x: mx.pad(x, b, 3, 5), [X], "b:cols", "permute"),
    "concat": (lambda x: mx.concat([x, x * 2], b), [X], "b:cols", "permute"),
    "stack": (lambda x: mx.stack([x, x * 2], "parts"), [X], "b:cols", ""),
    "unstack": (lambda x: mx.unstack(x, a)[3] * 2, [X], "a:cols", "all-gather"),
    "shift": (lambda x: mx.shift(x, b, 2), [X], "b:cols", "permute"),
    "shift around": (lambda x: mx.shift(x, b, 2, wrap=True), [X], "b:cols", "permute"),
    "flip": (lambda x: mx.flip(x, b), [X], "b:cols", "permute"),
    "windows": (lambda x: mx.windows(x, b, mx.Dim("w", 3), before=1, after=1), [X], "b:cols", "permute"),
    "conv": (lambda x, y: mx.conv(x, y, {"b": "w"}), [X, TAPS], "b:cols", "permute"),
    "conv along two dims": (
        lambda x, y: mx.conv(x, y, {"b": "w", "a": "v"}, stride={"a": 2}), [X, described(*SQUARE)], "b:cols a:rows",
        "permute",
    ),
    "conv, channels split": (
        squared(lambda x, y: mx.conv(x, y, {"a": "w"}, over=b)), [X, described(TAP, b, c)], "b:cols", "all-reduce",
    ),
    "conv, taps split": (lambda x, y: mx.conv(x, y, {"b": "w"}), [X, TAPS], "w:cols", "all-gather"),
    "conv and its derivatives": (
        gradients(lambda x, y: mx.conv(x, y, {"b": "w"}, stride=2)), [X, TAPS], "b:cols a:rows", "permute all-reduce",
    ),
    "conv of groups and its derivatives": (
        gradients(lambda x, y: mx.conv(x, y, {"b": "w"})), [X, described(TAP, a)], "b:cols", "permute all-reduce",
    ),
    "conv_transpose": (lambda x, y: mx.conv_transpose(x, y, {"b": "w"}, stride=2), [X, TAPS], "b:cols", "permute"),
    "conv_transpose and its derivatives": (
        gradients(lambda x, y: mx.conv_transpose(x, y, {"b": "w"}, stride=2)), [X, TAPS], "b:cols",
        "permute all-reduce",
    ),
    "max_pool": (lambda x: mx.max_pool(x, {"b": 3}, 2, "same"), [X], "b:cols", "permute"),
    "max_pool and its derivative": (
        mx.grad(lambda x: mx.sum(mx.square(mx.max_pool(x, {"b": 3}, 2, "same")))), [X], "b:cols", "permute",
    ),
    "mean_pool": (lambda x: mx.mean_pool(x, {"b": 3}, 2, "same"), [X], "b:cols", "permute"),
    "resize by a factor": (lambda x: mx.resize(x, {"b": 64}), [X], "b:cols", ""),
    "gather": (squared(lambda t, i: mx.gather(t, i, vocab)), [TABLE, IDS], "vocab:cols", "all-reduce"),
    "gather, an axis shared": (
        squared(lambda t, i: mx.gather(t, i, vocab)), [TABLE, IDS], "vocab:cols a:cols", "all-gather reduce-scatter",
    ),
    "scatter_add": (
        squared(lambda t, i, x: mx.scatter_add(t, i, x, vocab)), [TABLE, IDS, described(a, c)], "a:cols", "all-reduce",
    ),
    "scatter, an axis shared": (
        squared(lambda t, i, x: mx.scatter_add(t, i, x, vocab)), [TABLE, IDS, described(a, c)], "a:cols vocab:cols",
        "all-gather",
    ),
    "sort": (lambda x: mx.sort(x, b), [X], "b:cols", "all-gather"),
    "argsort": (lambda x: mx.argsort(x, b), [X], "b:cols", "all-gather"),
    "cumsum": (lambda x: mx.cumsum(x, b), [X], "b:cols", "all-gather"),
    "one_hot": (lambda i: mx.one_hot(i, vocab), [IDS], "a:rows vocab:cols", ""),
    "random": (lambda x: x + mx.random.normal(jax.random.key(0), (a, b)), [X], "a:rows b:cols", ""),
    "scan along a split dim": (
        lambda x: mx.scan(lambda s, y: (mx.tanh(s + y), s), mx.zeros(a), x, over=b)[0], [X], "b:cols", "all-gather",
    ),
}  # fmt: skip


# What a search traces for real (the roles), or nobody splits a program for.
LEFT_OUT = {"debug_print", "grad", "random.categorical"}


def test_every_operation_of_the_table_has_a_row():
    page = (Path(__file__).parents[3] / "docs" / "communication.md").read_text(encoding="utf-8")
    firsts = [
        line.split("|")[1] for line in page.splitlines() if line.startswith("| `") or line.startswith("| element")
    ]
    named = {name for first in firsts for name in re.findall(r"`([a-z_.]+)`", first)}
    assert named and named <= {word for row in ROWS for word in re.split(r"[ ,]+", row)} | LEFT_OUT


def priced(fn, args, rules):
    graph, layout = Graph(fn, args), mx.Layout(rules)
    bit = {axis: 1 << i for i, axis in enumerate(AXES)}
    masks = {name: np.array([sum(bit[x] for x in dict(layout.rules).get(name, ()))]) for name in graph.sizes}
    return Prices(graph, Network(KNOWN["cpu"], AXES, dict.fromkeys(AXES, 1)), masks)


@pytest.mark.parametrize("row", ROWS)
def test_every_row_is_charged(row):
    fn, args, rules, kinds = ROWS[row]
    prices = priced(fn, args, rules)
    report = mx.spmd(fn, mx.Mesh("rows:2 cols:4", abstract=True), rules).explain(*args)
    sent = {kind: sum(x.wire_bytes * x.count for x in report.collectives if x.kind == kind) for kind in KINDS}
    assert {kind for kind in KINDS if sent[kind]} == set(kinds.split())
    assert {kind: int(prices.wire_by_kind[kind][0]) for kind in KINDS} == sent
