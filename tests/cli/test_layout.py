import json
from pathlib import Path
from types import SimpleNamespace

import pytest

import meshax as mx
from meshax.cli import main

TINY = str(Path(__file__).parents[2] / "examples" / "transformer.py") + ":tiny"


@pytest.fixture
def searched(monkeypatch):
    """What was searched for; two candidates are found."""
    asked = []
    mesh = mx.Mesh("data:2 model:4", abstract=True)
    layouts = mx.Layout("batch:data heads:model"), mx.Layout("batch:data+model", params="d_model:data")
    found = [
        SimpleNamespace(
            layout=layout, mesh=mesh, seconds=0.002 * (n + 1), memory=10**9, wire_bytes=5000, why=f"why {n}."
        )
        for n, layout in enumerate(layouts)
    ]
    monkeypatch.setattr(
        "meshax.plan.search.layout_search.search",
        lambda fn, args, meshes, **more: asked.append((meshes, more)) or found,
    )
    return asked


def test_the_search(searched, capsys):
    options = ["--processors", "8", "--hardware", "h200", "--memory", "16GB", "--pin", "batch:data", "vocab:model"]
    assert main(["layout", TINY, *options, "--exclude", "d_model", "d_k"]) == 0
    ((meshes, asked),) = searched
    assert meshes is None and asked["processors"] == 8 and asked["hardware"].name == "h200" and asked["memory"] == 16e9
    assert asked["pins"] == {"batch": ("data",), "vocab": ("model",)} and asked["exclude"] == ("d_model", "d_k")
    assert asked["donate"] == (0, 1)
    out = capsys.readouterr().out
    assert 'data:2 model:4 │ "batch:data heads:model"' in out and "2 ms" in out
    assert out.endswith("1. why 0.\n2. why 1.\n")


def test_json(searched, capsys):
    assert main(["layout", TINY, "--mesh", "data:2 model:4", "--json"]) == 0
    ((meshes, asked),) = searched
    assert meshes == [mx.Mesh("data:2 model:4", abstract=True)] and asked["memory"] is None
    data = json.loads(capsys.readouterr().out)
    assert data["hardware"] and data["candidates"][1] == {
        "mesh": {"data": 2, "model": 4}, "layout": "batch:data+model", "param_layout": "d_model:data",
        "optimizer_layout": "", "seconds": 0.004, "memory": 10**9, "wire_bytes": 5000, "why": "why 1.",
    }  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("left_out", ["", "d_model d_k d_ff layers length"])
def test_a_real_search(left_out, capsys):
    exclude = ["--exclude", *left_out.split()] if left_out else []
    assert main(["layout", TINY, "--mesh", "data:2 model:2", "--hardware", "h200", *exclude, "--json"]) == 0
    candidates = json.loads(capsys.readouterr().out)["candidates"]
    seconds = [float(f"{c['seconds']:.3g}") for c in candidates]  # what differs in the fourth digit is equally fast
    assert seconds and seconds == sorted(seconds)


def test_usage_messages(capsys):
    assert main(["layout", TINY]) == 2
    assert "tiny has no mesh of its own.\n  fix: give --mesh" in capsys.readouterr().err
    assert main(["layout", TINY, "--mesh", "data:2", "--processors", "8"]) == 2
    assert capsys.readouterr().err.startswith("meshax: --mesh or --processors: one of the two.\n")
    assert main(["layout", TINY, "--processors", "-4"]) == 2
    assert capsys.readouterr().err.startswith("meshax: there are no -4 processors.\n")
    assert main(["layout", "--preset", "tiny", "--processors", "8", "--model.keep", "auto"]) == 2
    assert capsys.readouterr().err == (
        "meshax: --model.keep auto is of one layout, and layouts are compared here with one thing kept.\n"
        "  fix: name what is kept, as in --model.keep products; explain and plan choose it for a layout.\n"
    )
    assert main(["layout", TINY, "--processors", "8", "--memory", "much"]) == 2
    assert capsys.readouterr().err.startswith(
        "meshax: 'much' is not a size of memory.\n"
        "  rule: a size is a positive number and a unit: kB, MB, GB, TB, or KiB, MiB, GiB, TiB.\n"
        "  fix: write for example 16GB, 8GiB or 80e9.\n"
    )


def test_writing_a_token(searched, capsys):
    asked = ["layout", "--decode", "--preset", "tiny", "--slots", "4", "--processors", "8", "--hardware", "h200"]
    assert main(asked) == 0
    assert "the first: 2,000 tokens/s: 4 in a call" in capsys.readouterr().out
    (_, more) = searched[0]
    assert more["hardware"].overhead == 1e-6 and more["hardware"].name == "h200"
    assert more["exclude"] == ("pages", "parts", "stop")
