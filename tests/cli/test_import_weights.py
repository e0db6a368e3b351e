"""`meshax import`, and what can be done with the run: the commands of docs/weights.md, as a user runs them."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from meshax.cli import main
from meshax.weights import Folder
from runs import write_text

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "hugging_face"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(GOLDEN / "llama", "models/llama")
    write_text(tmp_path / "text")
    return tmp_path


def commands():
    """The commands of the page, in their order; a small batch is enough here."""
    page = (ROOT / "docs" / "weights.md").read_text(encoding="utf-8")
    return [shlex.split(line)[1:] for line in re.findall(r"^    (meshax .*)$", page, re.MULTILINE)]


def run(*words):
    """What a command prints, in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "XLA_FLAGS": ""}
    command = [sys.executable, "-W", "error", "-m", "meshax", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.exhaustive
def test_the_commands_of_the_page(folder):
    imported, generated, evaluated, trained, exported, explained, words = commands()
    assert "0.01 M parameters in runs/llama" in run(*imported, "--length", "32")
    assert run(*generated, "--tokens", "5").startswith("the cat")
    before = json.loads(run(*evaluated, "--json"))
    assert before["step"] == 0 and before["loss"] > 1
    run(*trained)
    after = json.loads(run(*evaluated[:2], "runs/mine", *evaluated[3:], "--json"))
    assert after["step"] == 4 and after["loss"] < before["loss"]
    run(*exported)
    assert Folder("models/mine").tensors == Folder("models/llama").tensors
    assert "bytes sent by each processor" in run(*explained)
    run(*words, "--steps", "1")


def test_a_run_to_explain(folder, capsys):
    assert main(["import", "--from", "models/llama", "--out", "runs/llama", "--length", "32"]) == 0
    assert "0.01 M parameters in runs/llama\nnext: meshax generate --run runs/llama" in capsys.readouterr().out
    assert main(["explain", "--run", "runs/llama", "--mesh", "data:2 model:4", "--layout", "data+model", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["wire_bytes"] > 0
    assert main(["explain", "--run", "runs/llama", "--preset", "tiny"]) == 2
    assert "a target, a preset or a run: one of the three." in capsys.readouterr().err


def test_every_end_that_the_folder_names_ends_a_text(folder, capsys, monkeypatch):
    monkeypatch.setattr("meshax.cli.written.use_processors", lambda mesh: None)  # the tests' own

    def written(out):
        assert main(["import", "--from", "models/llama", "--out", out]) == 0
        capsys.readouterr()
        words = ["--prompt", "the cat", "--tokens", "9", "--temperature", "0", "--mesh", "x:1", "--layout", "none"]
        assert main(["generate", "--run", out, *words, "--json"]) == 0
        return json.loads(capsys.readouterr().out)["results"][0]["outputs"][0]["tokens"]

    first = written("runs/one")
    end = next(token for token in first if token < 34)  # of the tokenizer; the model has room for more
    where = Path("models/llama/generation_config.json")
    where.write_text(json.dumps(json.loads(where.read_text()) | {"eos_token_id": [2, end]}))
    assert written("runs/two") == first[: first.index(end)] != first


def test_errors_speak_of_options(folder, capsys):
    Path("models/llama/tokenizer.json").unlink()
    assert main(["import", "--from", "models/llama", "--out", "runs/llama"]) == 1
    assert "or name one: --tokenizer FILE." in capsys.readouterr().err
    assert not Path("runs/llama").exists()
