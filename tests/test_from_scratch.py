"""The essay runs, prints what it claims, needs NumPy only, and sends the bytes that the library sends."""

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import jax
import pytest

import meshax as mx

ESSAY = Path(__file__).parents[1] / "docs" / "from_scratch.py"
LINES = {
    "data": "batch:rows+cols",
    "model": "hidden:rows+cols",
    "both": "batch:rows hidden:cols",
    "sharded": "batch:rows+cols kept:rows+cols",
}
KINDS = ["all-reduce", "all-gather", "reduce-scatter"]


@pytest.fixture(scope="module")
def printed():
    command = [sys.executable, "-W", "error", str(ESSAY)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def table(printed):
    """By layout: the loss, the bytes of weights, and the bytes sent by kind."""
    cells = [line.split() for line in printed.splitlines() if line.startswith("  ")]
    rows = {line[0]: line[-5:] for line in cells if line[0] in {"none", *LINES}}
    numbers = {name: [int(cell.replace(",", "")) for cell in row[1:]] for name, row in rows.items()}
    return {name: (rows[name][0], held, dict(zip(KINDS, sent))) for name, (held, *sent) in numbers.items()}


@pytest.mark.parametrize(
    "line",
    [
        "[batch:4/rows, classes:10/cols]: 10 over 4 are blocks of [3, 3, 3, 1]",
        "[batch:4/rows] pending over cols: 0 bytes sent",
        "[batch:4/rows] after its first use: 24 bytes sent",
        "[batch:4/rows] after its second use: 24 bytes sent",
        "[heads:6/cols, length:8, width:3] to [heads:6/cols, length:8, features:3]: free",
        "[heads:6/cols, length:8, width:3] to [all_heads:6, length:8, width:3]: all-gather 1152",
        "[all_heads:6, length:8, width:3] to [all_heads:6, positions:8/cols, width:3]: free",
        "[heads:6/cols, length:8, width:3] to [all_heads:6, positions:8/cols, width:3]: all-to-all 288",
        "[length:8, width:3] pending over cols to [positions:8/cols, width:3]: reduce-scatter 144",
        "refused: an axis would split two of the dims heads, positions, width",
    ],
)
def test_each_step_prints_what_it_shows(printed, line):
    assert line in [each.strip() for each in printed.splitlines()]


def test_layouts_change_the_bytes_and_not_the_losses(printed, table):
    assert list(table) == ["none", *LINES]
    assert len({loss for loss, _, _ in table.values()}) == 1
    assert len({tuple(sent.values()) for _, _, sent in table.values()}) == len(table)
    assert not any(table["none"][2].values())
    assert all(table[name][1] < table["none"][1] / 3 for name in ("model", "both", "sharded"))
    assert "The same losses under every layout: the largest relative difference is " in printed
    assert all(line in printed for line in LINES.values())


def test_it_needs_numpy_only():
    nodes = list(ast.walk(ast.parse(ESSAY.read_text(encoding="utf-8"))))
    modules = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {module for module in modules if module.split(".")[0] not in sys.stdlib_module_names} == {"numpy"}


@pytest.mark.parametrize("name", LINES)
def test_the_library_sends_the_same(table, name):
    batch, inputs, hidden, outputs = mx.dims(batch=30, inputs=15, hidden=50, outputs=10)

    def loss(w, x, y):
        h = mx.relu(mx.einsum(x, w["w1"], out=(batch, hidden)) + w["b1"])
        error = mx.einsum(h, w["w2"], out=(batch, outputs)) + w["b2"] - y
        return mx.einsum(error, error, out=()) * (1 / 300)

    def step(w, x, y):
        value, grads = mx.value_and_grad(loss)(w, x, y)
        return jax.tree.map(lambda p, g: p - 0.3 * g, w, grads), value

    weights = {
        "w1": mx.param(mx.zeros((inputs, hidden))),
        "b1": mx.zeros(hidden),
        "w2": mx.param(mx.zeros((hidden, outputs))),
        "b2": mx.zeros(outputs),
    }
    stored = "inputs:rows+cols outputs:rows+cols" if name == "sharded" else ""
    layout = mx.Layout(LINES[name].replace("kept:rows+cols", ""), params=stored)
    program = mx.spmd(step, mx.Mesh("rows:2 cols:4", abstract=True), layout)
    report = program.explain(weights, mx.zeros((batch, inputs)), mx.zeros((batch, outputs)))

    sent = Counter({kind: 0 for kind in KINDS})
    for collective in report.collectives:
        if collective.phase != "recompute":  # the essay holds what it has gathered
            sent[collective.kind] += collective.count * collective.wire_bytes
    assert sent == table[name][2]
