import json
from pathlib import Path

import pytest

from meshax.cli import main
from meshax.errors import MeshaxError

TINY = str(Path(__file__).parents[2] / "examples" / "transformer.py") + ":tiny"
ARGUMENTS = ["plan", TINY, "--mesh", "data:2 model:4", "--topology", "tpu v4:2x2x1", "--layout", "data+model"]


@pytest.fixture
def apart(monkeypatch):
    """What was asked of the other process, which answers at once."""
    asked = []

    def answer(request, on_stage):
        asked.append(request)
        on_stage("compiling")
        return {"plan": {"fits": True}, "text": "fits\n"}

    monkeypatch.setattr("meshax.plan.compile.worker.plan_apart", answer)
    monkeypatch.setattr("meshax.plan.compile.topologies.check_compiler", lambda topology: None)
    return asked


def test_the_request(apart, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "90")
    assert (
        main([*ARGUMENTS, "--html", "page.html", "--hardware", "h100x8@400Gbit/s", "--overlap", "--rings", "model"])
        == 0
    )
    out, err = capsys.readouterr()
    assert out == "fits\n" and "compiling" in err
    assert apart == [
        {
            "target": TINY, "topology": "tpu v4:2x2x1", "mesh": "data:2 model:4", "layout": "data+model",
            "params": "", "optimizer": "", "rings": "model", "html": "page.html", "hardware": "h100x8@400Gbit/s",
            "overlap": True, "width": 90,
        }
    ]  # fmt: skip


def test_a_preset_is_named_to_a_process_that_knows_presets(monkeypatch, capsys):
    asked = []

    def answer(request, on_stage, module):
        asked.append((json.loads(request["target"]), module))
        return {"plan": {}, "text": ""}

    monkeypatch.setattr("meshax.plan.compile.worker.plan_apart", answer)
    monkeypatch.setattr("meshax.plan.compile.topologies.check_compiler", lambda topology: None)
    assert main(["plan", "--preset", "tiny", *ARGUMENTS[2:]]) == 0
    wanted = {"name": "tiny", "model": {}, "sizes": {"batch": 0, "length": 0}}
    assert asked.pop() == (wanted, "meshax.train.preset_steps")
    assert main(["plan", "--preset", "tiny", "--decode", "--slots", "2", *ARGUMENTS[2:]]) == 0
    assert asked == [({"name": "tiny", "model": {}, "slots": 2, "context": 0}, "meshax.decode.planning")]
    assert main(["plan", "--preset", "tinny", *ARGUMENTS[2:]]) == 2
    assert capsys.readouterr().err.endswith(
        'meshax: there is no preset \'tinny\'.\n  fix: did you mean "tiny" or "wmt-tiny"?\n'
    )


def test_json(apart, capsys):
    assert main([*ARGUMENTS, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"fits": True}


def test_an_error_of_the_other_process(apart, monkeypatch, capsys):
    def fail(request, on_stage):
        raise MeshaxError("the other process failed.")

    monkeypatch.setattr("meshax.plan.compile.worker.plan_apart", fail)
    assert main(ARGUMENTS) == 1
    assert "meshax: the other process failed." in capsys.readouterr().err


def test_a_missing_compiler(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(ARGUMENTS) == 1
    err = capsys.readouterr().err
    assert err.startswith("meshax: the TPU compiler is not installed.") and "pip install 'meshax[tpu]'" in err


def test_virtual_processors_need_no_other_compiler(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["plan", TINY, "--mesh", "data:2 model:2", "--topology", "cpu", "--layout", "data", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["fits"] and data["topology"] == "cpu" and data["mesh"] == {"data": 2, "model": 2}
    assert 0.9 < data["estimated_memory"]["peak"] / data["memory"]["total"] < 1.25


@pytest.mark.exhaustive
def test_what_is_planned_keeps_what_fits(capsys):
    asked = ["plan", "--preset", "tiny", "--batch", "8", "--length", "16", "--model.layers", "1", "--topology", "cpu"]
    asked += ["--mesh", "data:2 model:2", "--layout", "data", "--hardware", "h100", "--model.keep", "auto"]
    assert main([*asked, "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["keep"] == "everything" and "choosing what to keep" in err
    assert main([*asked, "--preset", "tinny"]) == 2
    assert "meshax: there is no preset 'tinny'.\n" in capsys.readouterr().err


def test_a_target_that_uses_jax_at_once(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)  # the tests' own virtual processors
    file = tmp_path / "arrays.py"
    file.write_text(
        "import jax.numpy as jnp, meshax as mx\n"
        "x = mx.tensor(jnp.ones(8) * 2, mx.Dim('batch', 8))\n"
        "def step():\n"
        "    return mx.sum, (x,)\n"
    )
    assert main(["plan", f"{file}:step", "--topology", "cpu", "--mesh", "data:4", "--layout", "data", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["collectives_by_kind"]["all-reduce"]["compiled"]["tensors"] == 1


def test_a_programs_own_mesh(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    file = tmp_path / "own.py"
    file.write_text(
        "import meshax as mx\n"
        "batch = mx.Dim('batch', 8)\n"
        "def step():\n"
        "    mesh = mx.Mesh('data:4', abstract=True)\n"
        "    return mx.spmd(lambda x: mx.sum(x * x), mesh, 'batch:data'), (mx.ones(batch),)\n"
    )
    assert main(["plan", f"{file}:step", "--topology", "CPU", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mesh"] == {"data": 4}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--mesh", "data:4", "--topology", "tpu v4:2x2x1"],
            "the mesh has 4 processors, the topology 'tpu v4:2x2x1' has 8.",
        ),
        (
            ["--mesh", "data:8", "--topology", "cpu", "--html", "nowhere/page.html"],
            "'nowhere/page.html' cannot be written.",
        ),
    ],
)
def test_usage_messages(arguments, words, capsys):
    assert main(["plan", TINY, *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"meshax: {words}\n")


@pytest.mark.tpu
def test_a_plan(tmp_path, capsys):
    page = tmp_path / "page.html"
    assert main([*ARGUMENTS, "--json", "--html", str(page)]) == 0
    out, err = capsys.readouterr()
    data = json.loads(out)
    assert data["fits"] and data["topology"] == "tpu v4:2x2x1" and data["tokens"] == 1024
    assert data["collectives_by_kind"]["all-reduce"]["compiled"]["tensors"] > 0
    assert list(data["took"]) == ["loading", "tracing", "lowering", "compiling", "reading"]
    assert "compiling" in err and "libtpu" not in err
    assert page.exists()


AS_MEASURED = ["--model.keep", "everything", "--model.dropout", "0", "--model.logit-jitter", "0", "--length", "256"]


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("preset", "batch", "gib"), [("lm-0.14b", 128, 9.4), ("lm-1.28b", 64, 36.1), ("lm-4.90b", 32, 83.9)]
)
def test_the_memory_of_a_gpu_that_is_not_there_is_that_of_one_that_was(preset, batch, gib, capsys):
    """The peaks were measured on an H200, with jax 0.11.2."""
    asked = ["plan", "--preset", preset, "--batch", str(batch), "--mesh", "data:1", "--layout", "none", *AS_MEASURED]
    assert main([*asked, "--topology", "gpu h200:1", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (
        plan["fits"] and plan["hardware"] == "h200" and plan["memory"]["total"] == pytest.approx(gib * 2**30, rel=0.02)
    )


@pytest.mark.cuda
def test_gradients_leave_gpus_while_the_backward_pass_goes_on_where_that_is_asked_for(capsys):
    """Otherwise those of unrolled layers are one reduce-scatter after the last product. What is sent stays the same."""
    asked = ["plan", "--preset", "lm-0.14b", "--batch", "64", "--length", "256", "--model.layers-as", "unrolled"]
    asked += ["--mesh", "data:8", "--layout", "fsdp", "--topology", "gpu h200:8", "--json"]
    beside = []
    for option in ([], ["--overlap"]):
        assert main([*asked, *option]) == 0
        plan = json.loads(capsys.readouterr().out)
        for kind in ("all-gather", "reduce-scatter"):
            moved = plan["collectives_by_kind"][kind]
            assert all(moved["ours"][of] == moved["compiled"][of] for of in ("bytes", "tensors"))
        sent = [one for one in plan["collectives"] if one["kind"] == "reduce-scatter"]
        hidden = sum(one["bytes"] * one["count"] for one in sent if one["beside"] == "products")
        beside.append(hidden / sum(one["bytes"] * one["count"] for one in sent))
    assert beside[0] < 0.01 and beside[1] > 0.6


@pytest.mark.tpu
def test_a_volume_that_one_core_cannot_hold(capsys):
    """All cores have the same, so that each stands for one alone."""
    asked = ["plan", "--preset", "unet3d-512", "--mesh", "rows:2 cols:4", "--layout", "none"]
    assert main([*asked, "--topology", "tpu v3:2x2", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert not plan["fits"] and plan["missing"] > 100e9
    assert "exceeds available HBM (15.48G)" in plan["refusal"]
    assert plan["estimated_memory"]["peak"] > plan["memory_limit"]


@pytest.mark.exhaustive
def test_a_plan_of_writing_a_token(capsys):
    asked = ["plan", "--decode", "--preset", "tiny", "--slots", "2", "--context", "64", "--topology", "cpu"]
    assert main([*asked, "--mesh", "model:4", "--layout", "model", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["fits"] and plan["tokens"] == 2 and plan["tokens_per_second"] == 2 / plan["seconds"]
    cache = 2 * 2 * 64 * 8 * 16 * 4 * 2 // 4
    assert plan["memory"]["shared"] >= cache and plan["memory"]["temporaries"] < cache  # it is updated in place
