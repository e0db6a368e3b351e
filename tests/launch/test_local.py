"""Processes that are started, heard and ended together: real ones, of a few lines."""

import os
import re
import signal
import sys
import time

import pytest

from meshax.interrupts import finishing
from meshax.launch.local import Outcome, Processes

BEGIN = "import os, sys, time, signal\nprocess = int(os.environ['MESHAX_PROCESS'])\n"


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr("meshax.launch.local._END_BY_ITSELF_WITHIN", 0.5)
    monkeypatch.setattr("meshax.launch.local._END_WITHIN", 1.0)


def run(script, number=3):
    processes = Processes([sys.executable, "-c", BEGIN + script], [dict(os.environ)] * number)
    begin = time.monotonic()
    outcome = processes.wait()
    assert all(process.poll() is not None for process in processes.processes)
    return outcome, time.monotonic() - begin


def test_lines_have_the_number_of_their_process(capfd):
    outcome, _ = run("print('out', process); print('err', process, file=sys.stderr)")
    out, err = capfd.readouterr()
    assert outcome == Outcome(0)
    assert out == "out 0\n" and sorted(err.splitlines()) == [
        "[0] err 0",
        "[1] err 1",
        "[1] out 1",
        "[2] err 2",
        "[2] out 2",
    ]


def test_greetings_of_gloo_are_not_shown(capfd):
    run("print('[Gloo] Rank 0 is connected', file=sys.stderr)")
    assert capfd.readouterr() == ("", "")


def test_every_process_has_its_place(capfd):
    run("print(*(os.environ[f'MESHAX_{name}'] for name in ('PROCESSES', 'PROCESS')), file=sys.stderr)", 2)
    assert sorted(capfd.readouterr().err.splitlines()) == ["[0] 2 0", "[1] 2 1"]


def test_the_first_that_fails_ends_all_and_is_named():
    outcome, seconds = run("sys.exit('no luck') if process == 1 else time.sleep(60)")
    assert (outcome.status, outcome.process, outcome.lines) == (1, 1, ("no luck",)) and seconds < 10
    assert outcome.describe() == (
        "process 1 failed with exit status 1 before its first step, and said last:\n  no luck"
    )


def test_who_ended_because_of_another_is_not_the_cause():
    outcome, _ = run("time.sleep(0.3 if process == 2 else 0); sys.exit(7 if process == 2 else 69)")
    assert (outcome.status, outcome.process) == (7, 2)


def test_a_killed_process():
    outcome, _ = run("os.kill(os.getpid(), signal.SIGKILL) if process == 2 else time.sleep(60)")
    assert (outcome.status, outcome.process) == (137, 2)
    assert outcome.describe() == "process 2 was ended by SIGKILL before its first step."


def test_who_does_not_listen_is_killed():
    outcome, seconds = run(
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "time.sleep(1); process == 0 and sys.exit(3)\n"
        "os.kill(os.getpid(), signal.SIGSTOP) if process == 1 else time.sleep(60)"
    )
    assert (outcome.status, outcome.process) == (3, 0) and seconds < 10


def test_steps_are_heard_of():
    script = "steps = int(os.environ['MESHAX_LAUNCHER'].split(',')[1])\n"
    script += "os.write(steps, b'1 4\\n0 6\\n1 5\\n'); sys.exit(process)"
    outcome, _ = run(script, 2)
    assert outcome.step == 5 and outcome.begun_after > 0
    assert outcome.describe() == "process 1 failed with exit status 1 in step 5."


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_given_on(number):
    script = (
        "signal.signal(signal.SIGTERM, lambda n, _: sys.exit(128 + n))\n"
        "signal.signal(signal.SIGINT, lambda n, _: sys.exit(128 + n))\n"
        "print('ready', file=sys.stderr, flush=True); time.sleep(60)"
    )
    processes = Processes([sys.executable, "-c", BEGIN + script], [dict(os.environ)] * 2)
    with finishing(processes):
        while not all(processes._lines):
            time.sleep(0.02)
        signal.raise_signal(number)
        outcome = processes.wait()
    assert outcome.status == 128 + number and re.match(r"process \d was ended by SIG", outcome.describe())
