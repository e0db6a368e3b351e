"""What is written down at each start of a run: options as resolved, versions, a history of changes."""

import json
import platform
import subprocess
from dataclasses import replace

import jax
import pytest

from meshax.train.checkpoint import Damaged
from meshax.train.config import TrainConfig, run_config
from meshax.train.options import OptimizerOptions
from meshax.train.record import check_own, record_start, signature, versions


def started(config, step):
    mesh, layout = config.placed()
    extra = {"step": step} if step else {}
    config.directory().mkdir(exist_ok=True)
    lines = record_start(config, mesh, layout, signature(config, extra), extra)
    return lines, json.loads((config.directory() / "config.json").read_text())


def test_the_first_start_says_what_everything_was(tmp_path):
    config = TrainConfig(out=str(tmp_path), steps=300, vocab=500, model_={"layers": "3"})
    lines, stored = started(config, 0)
    assert lines == []
    assert stored["model"] | {"vocab": 500, "layers": 3, "d_model": 128} == stored["model"]
    assert stored["batch"] == 16 and stored["length"] == 128
    assert stored["optimizer"]["rate"] == 3e-3 and stored["optimizer"]["warmup"] == 30
    assert stored["versions"]["jax"] == jax.__version__
    assert stored["versions"]["python"] == platform.python_version()
    (start,) = stored["history"]
    assert start["step"] == 0 and start["mesh"] == "data:2 model:4" and start["device"] == "cpu"
    assert start["layout"] == '"batch:data heads:model d_ff:model vocab:model"'
    assert run_config(tmp_path).model() == config.model()
    assert "layers = 3  # " in (tmp_path / "config.toml").read_text()


def test_each_start_adds_what_changed_and_says_so(tmp_path, monkeypatch):
    config = TrainConfig(out=str(tmp_path), steps=300)
    started(config, 0)
    lines, stored = started(replace(config, steps=600, mesh="data:8", layout="fsdp"), 200)
    assert lines == [
        'mesh: "" before, "data:8" now',
        'layout: "data+model" before, "fsdp" now',
        "steps: 300 before, 600 now",
        "optimizer.warmup: 30 before, 60 now",
        "optimizer.cooldown: 30 before, 60 now",
    ]
    first, second = stored["history"]
    assert first["changes"] == {} and second["step"] == 200 and second["mesh"] == "data:8"
    assert second["changes"]["steps"] == [300, 600]

    monkeypatch.setattr("jax.__version__", "99.9")
    same = replace(config, steps=600, mesh="data:8", layout="fsdp")
    lines, stored = started(replace(same, optimizer=OptimizerOptions(warmup=60, beta1=0.8)), 400)
    assert lines[0] == "optimizer.beta1: null before, 0.8 now"
    assert lines[1].startswith("versions.jax: ") and lines[1].endswith(' before, "99.9" now')
    assert [start["step"] for start in stored["history"]] == [0, 200, 400]


def test_a_run_that_begins_anew_has_no_history(tmp_path):
    config = TrainConfig(out=str(tmp_path))
    started(config, 0)
    lines, stored = started(replace(config, steps=50), 0)
    assert lines == [] and len(stored["history"]) == 1


def test_a_run_keeps_its_name_and_another_has_another(tmp_path):
    config = TrainConfig(out=str(tmp_path / "run"))
    _, first = started(config, 0)
    _, second = started(replace(config, steps=700), 200)
    assert first["run"] == second["run"] and len(first["run"]) == 16
    _, other = started(replace(config, seed=5), 0)
    _, anew = started(config, 0)
    assert other["run"] != first["run"] == anew["run"]
    assert run_config(config.out).steps == 600  # the name is no option


def test_a_checkpoint_of_another_run_is_told_with_what_differs(tmp_path):
    own = TrainConfig(out=str(tmp_path / "own"))
    started(own, 0)
    other = replace(own, out=str(tmp_path / "other"), optimizer=OptimizerOptions(rate=0.5), mesh="data:8")
    extra = {"step": 7, **json.loads(json.dumps(signature(other)))}
    with pytest.raises(Damaged) as raised:
        check_own(own.out, extra)
    assert str(raised.value) == (
        "the checkpoint of step 7 is of another run than the folder that it is in.\n"
        f"  values: {own.out}: mesh is 'data:8' there, '' here\n"
        "          optimizer.rate is 0.5 there, 0.003 here\n"
        "  rule: a run goes on from its own checkpoints.\n"
        "  fix: remove it; to start from the weights of another run, name its directory: from=."
    )
    same = replace(own, out=other.out)  # what has the same options is the same run
    check_own(own.out, {"step": 7, **signature(same)})


def test_what_has_no_name_may_be_of_any_run(tmp_path):
    """Earlier versions gave none, nor has what was imported; a run's own, wherever it has moved, is its own."""
    config = TrainConfig(out=str(tmp_path))
    check_own(tmp_path, {"step": 7, **signature(config)})
    _, stored = started(config, 0)
    check_own(tmp_path, {"step": 7})
    check_own(tmp_path, {"step": 7, "run": stored["run"]})


def test_of_checkpoints_alone_it_is_said_with_which_options_they_were_saved(tmp_path):
    config = TrainConfig(out=str(tmp_path))
    extra = {"step": 7, **signature(config)}
    changed = replace(config, optimizer=OptimizerOptions(rate=0.5))
    lines = record_start(changed, *config.placed(), signature(changed, extra), extra)
    assert lines == ["optimizer.rate: 0.003 before, 0.5 now"]
    assert json.loads((tmp_path / "config.json").read_text())["run"] == extra["run"]


def test_the_commit_where_there_is_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert "commit" not in versions()

    def git(*words):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        return subprocess.run(["git", *identity, *words], check=True, capture_output=True, text=True).stdout.strip()

    git("init")
    (tmp_path / "a").write_text("a")
    git("add", "a")
    git("commit", "-m", "a")
    assert versions()["commit"] == git("rev-parse", "HEAD")
    (tmp_path / "a").write_text("b")
    assert versions()["commit"] == git("rev-parse", "HEAD") + "-dirty"
    monkeypatch.setenv("PATH", "")
    assert "commit" not in versions()
