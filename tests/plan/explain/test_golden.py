"""Stored lists of collectives: what is written, what counts as the same, how a difference reads."""

import jax
import numpy as np
import pytest

import meshax as mx
from meshax.plan.explain.golden import as_json, checked, difference, from_json, records

row, col = mx.dims(row=4, col=6)
X = mx.tensor(jax.ShapeDtypeStruct((4, 6), np.float32), (row, col))


def softmax(x):
    return mx.softmax(x, over=col)


def made(fn=softmax, layout="col:x"):
    return records(mx.spmd(fn, mx.Mesh("x:2", abstract=True), layout).explain(X))


def record(**changes):
    one = {"kind": "all-reduce", "axes": ["x"], "shape": [4], "dtype": "float32", "count": 1, "phase": "forward"}
    return one | {"op": "softmax", "line": "train.py: mx.softmax(x)"} | changes


def test_records_name_lines_by_their_text():
    line = "test_golden.py: return mx.softmax(x, over=col)"
    assert made() == [record(dtype="int32", line=line), record(line=line)]


def test_records_alike_are_counted_together():
    def twice(x):
        for _ in range(2):
            x = mx.softmax(x, over=col)
        return x

    assert [r["count"] for r in made(twice)] == [2, 2]


def test_a_file_has_one_record_on_each_line():
    text = as_json(made())
    assert len(text.splitlines()) == 2 + len(made())
    assert from_json(text) == made()
    assert from_json(as_json([])) == []


@pytest.mark.parametrize("wrong", [{"kind": "all-reduce"}, [1], [{"kind": "all-reduce"}], [record(more=1)]])
def test_anything_else_is_refused(wrong):
    with pytest.raises(mx.ArgumentError, match=r"this is not a list of collectives\."):
        checked(wrong)


@pytest.mark.parametrize(
    ("before", "now", "text"),
    [
        ([record()], [record()], ""),
        ([record(), record(op="max")], [record(op="max"), record()], ""),  # the order does not count
        (
            [],
            [record()],
            "  train.py: mx.softmax(x)\n    + all-reduce over x of float32[4], forward, softmax: 1 x 16 bytes",
        ),
        (
            [record(count=1200, dtype="bfloat16", axes=["x", "y"])],
            [],
            "  train.py: mx.softmax(x)\n    - all-reduce over x+y of bfloat16[4], forward, softmax: 1,200 x 8 bytes",
        ),
        (
            [record(count=2)],
            [record(count=3)],
            "  train.py: mx.softmax(x)\n"
            "    ~ all-reduce over x of float32[4], forward, softmax: 3 x 16 bytes, before 2 x 16 bytes",
        ),
        (
            [record()],
            [record(shape=[8, 4])],
            "  train.py: mx.softmax(x)\n"
            "    ~ all-reduce over x of float32[8,4], forward, softmax: 1 x 128 bytes, before float32[4], 1 x 16 bytes",
        ),
        (
            [record(line="a.py: one"), record(line="a.py: two")],
            [record(line="a.py: one", kind="permute"), record(line="")],
            "  a.py: one\n    + permute over x of float32[4], forward, softmax: 1 x 16 bytes\n"
            "    - all-reduce over x of float32[4], forward, softmax: 1 x 16 bytes\n"
            "  no line\n    + all-reduce over x of float32[4], forward, softmax: 1 x 16 bytes\n"
            "  a.py: two\n    - all-reduce over x of float32[4], forward, softmax: 1 x 16 bytes",
        ),
    ],
)
def test_differences_are_told_by_line(before, now, text):
    assert difference(before, now) == text
