"""A whole training as real processes: one of them is killed, it starts again, and nothing is lost or done twice."""

import json
import os
import signal

import pytest

from launched import arguments, final_state, launched, rows
from meshax.cli.commands import parse_command
from meshax.train.config import TrainConfig
from meshax.train.loop import Run
from runs import write_text

STEPS = 16


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("text"))


@pytest.mark.slow
def test_a_run_that_loses_a_process_ends_as_one_that_does_not(tmp_path, text):
    """The other one is of this process alone: of two numbers there is but one sum."""
    whole, run = tmp_path / "whole", tmp_path / "run"
    mesh = ["--mesh", "data:2 model:1", "--json"]
    with launched(2, arguments(text, run, STEPS, *mesh), ["--max-restarts", "2"]) as processes:
        assert processes.wait_until(lambda: list(run.glob("checkpoints/*-step-4"))), processes.said
        os.kill(processes.children()[1], signal.SIGKILL)
        status, out = processes.finish()
        said = processes.said
    assert status == 0, said
    assert "is gone: it was killed, or crashed; process 0 ends too\n" in said
    assert "meshax: process 1 was ended by SIGKILL in step " in said
    assert "meshax: restart 1 of 2 in 1 seconds, from the last checkpoint\n" in said
    assert "[0] resumed at step " in said and "meshax: restarts: 1; " in said
    check_written_once(run)

    Run(TrainConfig.of(parse_command(arguments(text, whole, STEPS, *mesh)).options())).train()
    assert json.loads(out) == json.loads((run / "result.json").read_text())
    assert json.loads(out) == json.loads((whole / "result.json").read_text())
    assert final_state(run) == final_state(whole)


def check_written_once(run):
    """Checks that one process has written: every step once, in order, and nothing half."""
    steps = [row["step"] for row in rows(run) if "loss" in row]
    assert steps == list(range(1, STEPS + 1))
    assert not list(run.rglob("*.partial")) and not list(run.rglob("*.tmp"))
    history = json.loads((run / "config.json").read_text())["history"]
    assert [start["step"] for start in history] == sorted({start["step"] for start in history}) and len(history) == 2
