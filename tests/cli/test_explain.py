import json
import re
import sys
from pathlib import Path

import pytest

from extent import some
from meshax.cli import main
from plan.explain.test_html import data_in

TINY = str(Path(__file__).parents[2] / "examples" / "transformer.py") + ":tiny"
MESH = ["--mesh", "data:2 model:4"]
# Examples, milliseconds and GiB, as measured: benchmarks/results/language_models_gpu.md.
MEASURED = {
    "lm-4.90b": (32, 409.2, 83.9),
    "lm-1.28b": (128, 401.4, 64.9),
}


def test_the_report_and_the_time(capsys):
    assert main(["explain", TINY, *MESH, "--layout", "data+model", "--hardware", "h200"]) == 0
    out, err = capsys.readouterr()
    assert "all-reduce" in out and "bytes sent by each processor" in out
    assert " a call predicted on h200, " in out.splitlines()[-1]
    assert err == ""


def test_exposed_and_hidden_communication(capsys):
    command = ["explain", TINY, *MESH, "--layout", "fsdp", "--hardware", "tpu-v5p"]
    assert main(command) == 0
    plain = capsys.readouterr().out
    assert plain.splitlines()[-1].endswith(", all of it exposed") and "hidden" not in plain
    assert main([*command, "--overlap"]) == 0
    out = capsys.readouterr().out
    number = r"[\d.]+ \w+"
    assert re.search(rf"communication {number}, {number} of it exposed and {number} hidden behind computation$", out)
    assert " hidden " in out and re.search(r"all-gather .* [1-9]\d*% ", out)
    assert re.search(r"reduce-scatter .* 0% ", out) and not re.search(r"reduce-scatter .* [1-9]\d*% ", out)


def test_exposed_and_hidden_communication_as_data(capsys, tmp_path):
    page = str(tmp_path / "page.html")
    command = ["explain", TINY, *MESH, "--layout", "fsdp", "--hardware", "h200", "--json", "--html", page]
    assert main(command) == 0
    plain = json.loads(capsys.readouterr().out)
    assert main([*command, "--overlap"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["overlap"] and not plain["overlap"]
    assert data_in(Path(page).read_text(encoding="utf-8"))["collectives"] == data["collectives"]
    for one, is_asked in ((data, True), (plain, False)):
        time, hidden = one["time"]["h200"], [c["hidden_seconds"]["h200"] for c in one["collectives"]]
        assert time["hidden"] == pytest.approx(sum(hidden)) and bool(sum(hidden)) == is_asked
        assert time["exposed"] == pytest.approx(time["communication"] - time["hidden"])
        assert one["seconds"] == time["total"] == pytest.approx(time["compute"] + time["memory"] + time["exposed"])
        assert ("runs beside" in time["assumes"]) == is_asked
    assert data["seconds"] < plain["seconds"] and data["utilization"] > plain["utilization"]


def test_rings_send_the_same_and_hide_it(capsys):
    command = ["explain", "--preset", "lm-0.14b", "--batch", "64", *MESH, "--layout", "sequence", "--overlap", "--json"]
    reports = []
    for more in ([], ["--rings", "model"]):
        assert main([*command, "--hardware", "tpu-v5p", *more]) == 0
        reports.append(json.loads(capsys.readouterr().out))
    plain, ringed = reports
    assert ringed["layout"].endswith('rings="model")') and ringed["wire_bytes"] == plain["wire_bytes"]
    assert ringed["time"]["tpu-v5p"]["exposed"] < 0.7 * plain["time"]["tpu-v5p"]["exposed"]
    assert main(["explain", TINY, *MESH, "--layout", "sequence", "--rings", "modle"]) == 1
    assert "rings: no mesh axis 'modle'; did you mean \"model\"?" in capsys.readouterr().err


def test_a_preset_is_built_directly(capsys):
    """Nothing of ours is loaded as if it were a user's file."""
    folders, modules = list(sys.path), set(sys.modules)
    assert main(["explain", "--preset", "tiny", *MESH, "--layout", "data+model", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["collectives"]
    assert sys.path == folders
    assert not [name for name in set(sys.modules) - modules if name.startswith("target_")]


def test_what_fits_is_kept(capsys):
    limit, asked = 8 * 2**30, ["explain", "--preset", "tiny", "--batch", "12000", *MESH, "--layout", "data", "--json"]
    asked += ["--hardware", "tpu-v2", "--model.keep"]
    needs = {}
    for keep in ("auto", "everything"):
        assert main([*asked, keep]) == 0
        needs[keep] = json.loads(capsys.readouterr().out)
    assert needs["auto"]["keep"] == "products" and "keep" not in needs["everything"]
    assert needs["auto"]["memory"]["peak"] <= 0.9 * limit < needs["everything"]["memory"]["peak"]


def test_what_is_kept_is_said(capsys):
    asked = ["explain", "--preset", "tiny", "--model.keep", "auto", *MESH, "--layout", "data", "--hardware", "tpu-v2"]
    assert main(asked) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    assert said == "the backward pass keeps everything: 19.2 MB of 8.59 GB predicted"
    assert main([*asked, "--batch", "600000"]) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.startswith("the backward pass keeps nothing, and does not fit: ")
    assert main(["explain", "--decode", "--preset", "tiny", "--mesh", "model:4", "--model.keep", "auto"]) == 0
    assert "backward" not in capsys.readouterr().out
    assert main(["explain", TINY, "--model.keep", "auto", *MESH]) == 2
    assert "--model.*, --batch and --length are of a preset's step." in capsys.readouterr().err


def test_json(capsys):
    assert main(["explain", TINY, *MESH, "--layout", "fsdp", "--hardware", "tpu-v4", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["hardware"] == "tpu-v4" and data["seconds"] > 0 and 0 <= data["utilization"] < 1
    assert data["seconds"] == data["time"]["tpu-v4"]["total"]
    assert {c["kind"] for c in data["collectives"]} >= {"all-gather", "reduce-scatter"}


def test_roles(capsys):
    rules = ["--layout", "batch:data", "--param-layout", "d_model:data", "--optimizer-layout", "d_model:model"]
    assert main(["explain", TINY, *MESH, *rules, "--json"]) == 0
    wanted = 'Layout("batch:data", params="d_model:data", optimizer="d_model:model")'
    assert json.loads(capsys.readouterr().out)["layout"] == wanted


def test_a_page(tmp_path, capsys):
    assert main(["explain", TINY, *MESH, "--html", str(tmp_path / "page.html")]) == 0
    assert "</html>" in (tmp_path / "page.html").read_text()
    assert "no communication" in capsys.readouterr().out


def test_the_page_opens_on_the_hardware_that_was_asked_for(tmp_path, monkeypatch):
    page = tmp_path / "page.html"
    assert main(["explain", TINY, *MESH, "--hardware", "h100", "--html", str(page)]) == 0
    assert data_in(page.read_text(encoding="utf-8"))["hardware"] == "h100"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # nothing was calibrated
    assert main(["explain", TINY, *MESH, "--html", str(page)]) == 0
    assert data_in(page.read_text(encoding="utf-8"))["hardware"] == "cpu"


def test_a_program_that_returns_nothing(tmp_path, capsys):
    (tmp_path / "nothing.py").write_text(
        "import meshax as mx\n\n\ndef nothing():\n    return (lambda x: None), (mx.zeros(mx.Dim('rows', 4)),)\n"
    )
    assert main(["explain", f"{tmp_path}/nothing.py:nothing", *MESH, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["collectives"] == []


def test_writing_a_token(capsys):
    asked = ["explain", "--decode", "--preset", "tiny", "--mesh", "model:4", "--layout", "model", "--hardware", "h200"]
    assert main([*asked, "--slots", "3", "--context", "64"]) == 0
    *_, speed, reading = capsys.readouterr().out.splitlines()
    assert speed.endswith(" tokens/s: 3 in a call") and reading.startswith(
        "weights 658 kB, cache 98.4 kB on each processor: "
    )
    assert main([*asked, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["tokens_per_second"] == 1 / data["seconds"] and data["seconds"] == data["time"]["h200"]["total"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([TINY, "--decode"], "--decode is of a preset or a run, whose texts have --slots and --context."),
        (["--preset", "tiny", "--decode", "--length", "8"], "--decode is of a preset or a run"),
        (["--preset", "tiny", "--slots", "2"], "--slots and --context are of texts that are written."),
        (["--preset", "tiny", "--decode", "--slots", "-1"], "there are no such texts."),
    ],
)
def test_what_is_not_written(arguments, words, capsys):
    assert main(["explain", *arguments, *MESH]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("preset", some(MEASURED, "lm-4.90b"))
def test_a_step_is_priced_as_the_hardware_runs_it(preset, capsys):
    """The kernels and the unrolled layers of a GPU, on a machine that has none."""
    batch, milliseconds, gibibytes = MEASURED[preset]
    step = ["--preset", preset, "--batch", str(batch), "--length", "256", "--model.keep", "everything"]
    plain = ["--model.dropout", "0", "--model.logit-jitter", "0"]  # as it is measured
    assert main(["explain", *step, *plain, "--mesh", "data:1", "--hardware", "h200", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["seconds"] * 1e3 == pytest.approx(milliseconds, rel=0.06)
    assert data["memory"]["peak"] / 2**30 == pytest.approx(gibibytes, rel=0.06)
