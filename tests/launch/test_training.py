"""A whole training as real processes: it is stopped, loses one of them, starts again; nothing is lost or done twice."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from launched import arguments, check_positions, final_state, last_step, launched, losses
from meshax.cli.commands import parse_command
from meshax.train.config import TrainConfig
from meshax.train.loop import Run
from processes import environment
from runs import write_text

STEPS = 40
OPTIONS = ["--mesh", "data:2 model:1", "--dropout", "0", "--eval-every", str(STEPS), "--json"]


@pytest.mark.slow
def test_a_run_that_is_stopped_and_loses_a_process_ends_as_one_that_does_not(tmp_path):
    """One process is told to stop; two go on, of which one is killed; two more end it.

    The other run is of this process alone: of two numbers there is but one sum.
    """
    text, run = write_text(tmp_path / "text"), tmp_path / "run"
    stopped_at = stop(text, run)

    with launched(2, arguments(text, run, STEPS, *OPTIONS), ["--max-restarts", "2"]) as processes:
        later = 4 * (stopped_at // 4 + 1)
        assert processes.wait_until(lambda: list(run.glob(f"checkpoints/*-step-{later}"))), processes.said
        os.kill(processes.children()[1], signal.SIGKILL)
        status, out = processes.finish()
        said = processes.said
    assert status == 0, said
    assert "is gone: it was killed, or crashed; process 0 ends too\n" in said
    assert "meshax: process 1 was ended by SIGKILL in step " in said
    assert "meshax: restart 1 of 2 in 1 seconds, from the last checkpoint\n" in said
    assert "meshax: restarts: 1; " in said
    resumed = [int(step) for step in re.findall(r"\[0\] resumed at step (\d+)\n", said)]
    assert resumed[0] == stopped_at and resumed[1] >= later
    check_written_once(run, [0, *resumed])

    whole = tmp_path / "whole"
    Run(TrainConfig.of(parse_command(arguments(text, whole, STEPS, *OPTIONS)).options())).train()
    assert json.loads(out) == json.loads((run / "result.json").read_text())
    assert json.loads(out) == json.loads((whole / "result.json").read_text())
    assert losses(run) == losses(whole) and final_state(run) == final_state(whole)


def stop(text, run):
    """Starts a run in one process, tells it to stop in the middle, and returns the step that it has saved."""
    process = subprocess.Popen(
        [sys.executable, "-m", "meshax", *arguments(text, run, STEPS, *OPTIONS)],
        env=environment(JAX_PLATFORMS="cpu"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        lines = [process.stderr.readline()]
        while lines[-1] and not lines[-1].startswith("step  5/"):
            lines.append(process.stderr.readline())
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 143 and out == "", "".join(lines) + err
    saved = re.search(r"stopped at step (\d+), which is saved; run again, it goes on\nmeshax: interrupted\n\Z", err)
    step = int(saved[1])
    assert 5 <= step < STEPS and final_state(run)[0] == last_step(run) == step
    assert not list(run.rglob("*.partial")) and not list(run.rglob("*.tmp")) and not list(run.rglob("lock.json"))
    return step


def check_written_once(run, starts):
    """Checks that one process has written: every step once, in order, and nothing half."""
    assert [step for step, *_ in losses(run)] == list(range(1, STEPS + 1))
    check_positions(run)
    assert not list(run.rglob("*.partial")) and not list(run.rglob("*.tmp"))
    history = json.loads((run / "config.json").read_text())["history"]
    assert [start["step"] for start in history] == starts
