import json
from pathlib import Path

from meshax.cli import main

TINY = str(Path(__file__).parents[2] / "examples" / "transformer.py") + ":tiny"
MESH = ["--mesh", "data:2 model:4"]


def test_the_report_and_the_time(capsys):
    assert main(["explain", TINY, *MESH, "--layout", "data+model", "--hardware", "h200"]) == 0
    out, err = capsys.readouterr()
    assert "all-reduce" in out and "bytes sent by each processor" in out
    assert " a call predicted on h200, " in out.splitlines()[-1]
    assert err == ""


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
