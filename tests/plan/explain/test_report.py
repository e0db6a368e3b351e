"""The report: what it warns of, how it reads, and that making it touches no device."""

import json
from functools import partial

import jax
import numpy as np
import pytest

import meshax as mx
import transformer
from meshax.plan.cost.hardware import KNOWN, Hardware, Link
from messages import pinned
from plan.explain.test_html import data_in

batch, pixels, hidden, classes = mx.dims(batch=128, pixels=784, hidden=1024, classes=10)


def struct(*dims, dtype=np.float32):
    return mx.tensor(jax.ShapeDtypeStruct([d.size for d in dims], dtype), dims)


W = {"in": mx.param(struct(pixels, hidden)), "out": mx.param(struct(hidden, classes))}
IMAGES, LABELS = struct(batch, pixels), struct(batch, dtype=np.int32)


def loss(w, images, labels):
    h = mx.relu(mx.einsum(images, w["in"], over=pixels))
    return mx.mean(mx.softmax_cross_entropy(mx.einsum(h, w["out"], over=hidden), labels, over=classes))


def step(w, images, labels):
    value, grads = mx.value_and_grad(loss)(w, images, labels)
    return jax.tree.map(lambda p, g: p - 0.1 * g, w, grads), value


def explain(fn=step, layout="batch:rows hidden:cols", args=(W, IMAGES, LABELS), mesh="rows:2 cols:4", donate=()):
    return mx.spmd(fn, mx.Mesh(mesh, abstract=True), layout, donate).explain(*args)


def test_padding():
    assert explain().padding == {}
    assert explain(layout="classes:cols").padding == {
        "classes": {"size": 10, "stored": 12, "waste": pytest.approx(1 / 6)}
    }
    assert explain(layout="classes:rows+cols").padding["classes"]["stored"] == 16


def test_rules_that_nothing_uses():
    mx.Dim.declare({"unheard_of": "what this program never makes"})
    layout = mx.Layout("batch:rows unheard_of:cols", params="batch:cols hidden:cols", optimizer="hidden:cols")

    assert explain(layout=layout).unused_rules == ["unheard_of:cols", "params batch:cols", "optimizer hidden:cols"]
    assert explain().unused_rules == []


def test_rings_in_which_nothing_is_sent():
    report = explain(layout=mx.Layout("batch:rows", rings="rows+cols"))

    assert report.unused_rules == report.as_dict()["unused_rules"] == ["rings rows", "rings cols"]
    assert str(report).endswith("\nrules not used by this program: rings rows, rings cols\n")


def test_large_tensors_that_processors_hold_alike():
    (w, *_) = explain(layout="batch:rows+cols").replicated
    assert (w.name, w.dims, w.bytes, w.axes) == (
        "w['in']",
        "[pixels:784, hidden:1024]",
        784 * 1024 * 4,
        ("rows", "cols"),
    )

    names = {r.name: r.axes for r in explain().replicated}
    assert names["w['in']"] == ("rows",)
    assert "images" not in explain(layout="batch:rows pixels:cols").replicated


def test_values_inside_that_processors_hold_alike():
    report = explain(lambda x, w: mx.einsum(x, w, over=pixels), "batch:rows", (IMAGES, W["in"]))
    (inside,) = (r for r in report.replicated if r.dims == "[64, 1024]")

    assert inside.axes == ("cols",)
    assert inside.name.startswith("einsum at test_report.py:")


def test_json_is_the_report():
    report = explain()
    data = json.loads(report.to_json())

    assert data == json.loads(json.dumps(report.as_dict()))
    assert data["program"] == "step"
    assert data["mesh"] == {"rows": 2, "cols": 4}
    assert data["layout"] == 'Layout("batch:rows hidden:cols")'
    assert data["flops"] == report.flops
    assert data["wire_bytes"] == report.wire_bytes == sum(c["wire_bytes"] * c["count"] for c in data["collectives"])
    assert data["memory"] == report.memory
    assert {name: time["total"] for name, time in data["time"].items()} == {h: report.seconds(h) for h in KNOWN}
    assert sum(row["flops"] for row in data["work"]) == report.flops
    assert "def loss(w, images, labels):" in data["sources"]["test_report.py"]["lines"]


def test_tensors_and_their_splits():
    tensors = {t["name"]: t for t in explain().as_dict()["tensors"]}

    assert tensors["w['in']"] == {
        "name": "w['in']",
        "kind": "argument",
        "role": "param",
        "dtype": "float32",
        "dims": [
            {"name": "pixels", "size": 784, "axes": (), "block": 784},
            {"name": "hidden", "size": 1024, "axes": ("cols",), "block": 256},
        ],
        "bytes": 784 * 256 * 4,
    }
    assert tensors["images"]["bytes"] == 64 * 784 * 4
    assert tensors["result[0]['in']"]["kind"] == "result"
    assert tensors["[batch:128, hidden:1024]"]["kind"] == "inside"


def test_a_page_is_written(tmp_path):
    path = explain().to_html(tmp_path / "report.html")
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")


def opened_on(path):
    """The hardware that a page shows at first, and those it can show."""
    data = data_in(path.read_text(encoding="utf-8"))
    return data.get("hardware"), list(data["time"])


def test_a_page_opens_on_the_hardware_that_was_asked_for(tmp_path):
    report, known = explain(), list(KNOWN)
    assert opened_on(report.to_html(tmp_path / "page.html")) == (None, known)
    assert opened_on(report.to_html(tmp_path / "page.html", "h100")) == ("h100", known)
    report.seconds("tpu-v4")
    report.as_dict()
    assert opened_on(report.to_html(tmp_path / "page.html")) == ("tpu-v4", known)
    assert opened_on(report.to_html(tmp_path / "page.html", PEAK)) == (PEAK.name, [*known, PEAK.name])


def test_a_report_is_one_line_where_it_is_not_printed():
    layout = 'Layout("batch:rows hidden:cols")'
    program = f"Program(step, Mesh(rows:2 cols:4, abstract), {layout})"
    assert repr(explain()) == f"Report({program}: 4 collectives, 816,900 bytes sent)"


def returns_nothing(x):
    mx.sum(x)


@pytest.mark.parametrize("columns", ["60", "200"])
def test_a_report_fits_the_terminal(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    lines = str(explain()).splitlines()
    assert max(map(len, lines)) <= int(columns)
    assert any(word in " ".join(lines) for word in ("all-reduce: axes", "│ all-reduce"))


def test_what_a_notebook_shows():
    report = explain()
    page = report._repr_html_()
    for words in (
        "<table>",
        "all-reduce",
        "bytes sent by each processor",
        "Layout(&quot;batch:rows hidden:cols&quot;)",
    ):
        assert words in page
    assert page.count("<tr>") == 1 + len([line for line in str(report).splitlines() if line.startswith("│")])
    assert "<script" not in page and "no communication" in explain(layout="", mesh="one:1")._repr_html_()


def test_a_program_that_returns_nothing(tmp_path):
    """All of it is dead code, as for the compiler."""
    report = explain(returns_nothing, "batch:rows", (IMAGES,))
    assert report.collectives == [] and report.flops == 0 and report.seconds("h100") == 0
    assert report.utilization("h100") == 0 and report.memory["peak"] == 0
    assert "\nno communication\n" in str(report)
    assert report.to_html(tmp_path / "page.html").exists()
    assert explain(lambda x: {}, "", (IMAGES,)).as_dict()["work"] == []


def test_a_program_that_only_prints():
    report = explain(lambda x: mx.debug_print("{x}", x=mx.sum(x)), "batch:rows", (IMAGES,))
    assert [c.kind for c in report.collectives] == ["all-reduce"]


def test_the_text_of_a_report():
    text = str(explain())
    title, table, summary = text.partition("\n")[0], text.partition("┡")[2], text.partition("┘\n")[2].splitlines()

    assert title.split("  ")[0] == 'Program(step, Mesh(rows:2 cols:4, abstract), Layout("batch:rows hidden:cols"))'
    assert "│ all-reduce │ cols │ float32[64,10]   │     1 │      3,840 │ forward  │ softmax_cross_entropy │" in table
    assert summary[:2] == [
        "816,900 bytes sent by each processor",
        "52.4 MFLOPs of matrix products on each processor",
    ]
    assert "of memory at the peak on each processor: parameters 813 kB, " in summary[2]
    assert {line.partition(":")[0] for line in summary[3:]} == {"replicated"}


def test_the_text_of_warnings():
    mx.Dim.declare({"unheard_of": "what this program never makes"})
    text = str(explain(layout="batch:rows classes:cols unheard_of:cols"))

    assert "\npadding: classes:10 is stored as 12, 17% is waste\n" in text
    assert "\nreplicated: w['in'] [pixels:784, hidden:1024], 3.21 MB on all processors along rows+cols\n" in text
    assert text.endswith("\nrules not used by this program: unheard_of:cols\n")


def test_a_program_without_communication_says_so():
    report = explain(lambda x: x + 1, "batch:rows", (IMAGES,))
    assert str(report).startswith(
        'Program(<lambda>, Mesh(rows:2 cols:4, abstract), Layout("batch:rows"))\nno communication\n0 bytes'
    )


PEAK = Hardware("peak", {"float32": 1e12}, memory=1e9, memory_bandwidth=1e30, inside=Link(0.0, 1e30))


def deep(w, x, around=lambda f: f):
    layer = around(lambda w, x: mx.tanh(mx.einsum(x, w, over=hidden)).rename(other="hidden"))
    return mx.sum(layer(w, layer(w, x)))


DEEP = mx.param(struct(hidden, mx.Dim("other", 1024))), struct(batch, hidden)


def test_utilization_counts_what_the_model_needs():
    """On a machine where only products take time, all of it is use; less what is done again or by several."""
    assert explain(mx.grad(deep), "batch:rows+cols", DEEP).utilization(PEAK) == pytest.approx(1)
    assert explain(mx.grad(deep), "batch:rows", DEEP).utilization(PEAK) == pytest.approx(1 / 4)
    # 2 products forward, the same 2 again, 3 backward: nobody asks for the gradient of x
    again = explain(mx.value_and_grad(lambda w, x: deep(w, x, mx.remat)), "batch:rows+cols", DEEP)
    assert again.utilization(PEAK) == pytest.approx(5 / 7)
    assert explain(lambda x: x + 1, "", (IMAGES,)).utilization(PEAK) == 0


def test_seconds_of_named_and_described_hardware():
    report = explain()
    assert report.seconds("h200") == report.seconds(KNOWN["h200"]) == report.time("h200").total > 0
    assert report.seconds("tpu-v2") > report.seconds("tpu-v5p")


def test_explaining_a_large_model_touches_no_device():
    """4.9 billion parameters on 512 processors that are not there."""
    fn, args, donate = transformer.lm_4_90b()
    before = {id(x) for x in jax.live_arrays()}
    layout = "batch:data heads:model d_ff:model vocab:model"
    with jax.transfer_guard("disallow"):
        report = explain(fn, layout, args, "data:32 model:16", donate)
        text = str(report)

    assert not [x for x in jax.live_arrays() if id(x) not in before]
    assert report.memory["parameters"] == pytest.approx(4.9e9 * 4 / 16, rel=0.02)
    assert report.duplicates == []
    assert "all-reduce │ model" in text
    assert 0.05 < report.utilization("tpu-v2") < 1


def test_donated_arguments_are_replaced():
    assert explain(donate=0).memory["results"] == 4
    assert explain().memory["results"] > 800_000


def test_a_partial_function_and_an_object_can_be_explained():
    class Model:
        def __call__(self, w, x):
            return mx.einsum(x, w, over=pixels)

    for fn in (partial(mx.einsum, over=pixels), Model()):
        report = explain(fn, "pixels:rows", (W["in"], IMAGES))
        assert [c.kind for c in report.collectives] == ["all-reduce"]


def branch_on_a_number(x):
    return x if float(mx.sum(x).array) > 0 else -x


TRACER = "traced array with shape float32[]"
RULE = "a program is traced once, with shapes instead of numbers: Python's if, while, int() and float() need numbers."
test_messages = pinned(
    {
        "a function that needs numbers": (
            mx.MeshaxError,
            lambda: explain(branch_on_a_number, "", (IMAGES,)),
            f"""
            the function cannot be traced.
              values: Abstract tracer value encountered where concrete value is expected: {TRACER}
              rule: {RULE}
              fix: use mx.where, mx.cond or mx.while_loop, or pass the number as static data.
            """,
        ),
        "an error of the function's own": (
            ZeroDivisionError,
            lambda: explain(lambda x: 1 / 0, "", (IMAGES,)),
            "division by zero",
        ),
    }
)
