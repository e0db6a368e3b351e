"""What Weights & Biases gets: told to a stand-in that notes it, and, for real, offline."""

import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

import meshax as mx
from meshax.extras import ExtraError
from meshax.train.metrics import Metrics
from meshax.train.tracking import check_tracker, open_tracker
from messages import pinned
from runs import write_text

ROOT = Path(__file__).parents[2]


@pytest.fixture
def noted(monkeypatch):
    """A module in the place of wandb, and what it was told."""
    told = []
    run = types.SimpleNamespace(
        log=lambda values, step: told.append(("log", step, values)),
        finish=lambda exit_code: told.append(("finish", exit_code)),
    )
    module = types.ModuleType("wandb")
    module.Settings = lambda **options: options
    module.init = lambda **options: told.append(("init", options)) or run
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return told


def metrics(directory, first=0):
    return Metrics(directory, first, open_tracker("wandb", directory, {"steps": 7}))


def test_it_gets_what_is_measured(noted, tmp_path):
    written = metrics(tmp_path)
    written.write(3, loss=0.5, norm=float("nan"))
    written.close()
    (_, options), *rest = noted
    assert options["project"] == "meshax" and options["name"] == tmp_path.name and options["dir"] == str(tmp_path)
    assert options["config"] == {"steps": 7} and options["resume"] == "allow"
    assert rest == [("log", 3, {"loss": 0.5}), ("finish", 0)]


def test_a_run_that_goes_on_keeps_its_name_and_one_that_fails_says_so(noted, tmp_path, monkeypatch):
    metrics(tmp_path).close()
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    again = metrics(tmp_path, 2)
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        again.close()
    first, second = (options for kind, *options in noted if kind == "init")
    assert first[0]["id"] == second[0]["id"] and second[0]["project"] == "mine"
    assert noted[-1] == ("finish", 1)


def test_without_a_name_there_is_none():
    check_tracker("")
    assert open_tracker("", Path(), {}) == []


def missing():
    """Looks for a package that is not there."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("importlib.util.find_spec", lambda name: None)
        check_tracker("wandb")


test_messages = pinned(
    {
        "an unknown one": (
            mx.ArgumentError,
            lambda: check_tracker("wandv"),
            """
            there is no tracker 'wandv'.
              fix: did you mean "wandb"?
            """,
        ),
        "not installed": (
            ExtraError,
            missing,
            """
            reports to a tracker need wandb.
              fix: pip install 'meshax[wandb]'.
            """,
        ),
    }
)


@pytest.mark.exhaustive
def test_offline_for_real(tmp_path):
    """The package itself: standard output stays ours, and what was logged is in its file."""
    options = {"vocab": 300, "batch": 8, "length": 32, "steps": 4, "track": "wandb", "out": "run"}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    words += ["--data.text", write_text(tmp_path / "text"), "--json"]
    command = [sys.executable, "-m", "meshax", "train", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "WANDB_MODE": "offline"}
    environment.pop("XLA_FLAGS", None)
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["perplexity"] > 1
    (file,) = tmp_path.glob("run/wandb/offline-run-*/*.wandb")
    data = file.read_bytes()
    assert all(name in data for name in (b"tokens_per_second", b"eval_loss", b"seconds_left", b"weight_decay"))
    assert (tmp_path / "run" / "wandb.id").read_text() in file.name
