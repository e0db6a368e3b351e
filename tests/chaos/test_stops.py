"""Processes that are stopped for a while or for good, killed, or raise: all are gone in time, or all go on."""

import os
import signal
import time

import pytest

from launched import arguments, check_positions, last_step, launched, wait_gone
from processes import environment
from runs import write_text

pytestmark = pytest.mark.chaos

OPTIONS = ["--save-every", "10", "--eval-every", "500", "--mesh", "data:2 model:1"]
SILENCE = 5.0
# Makes any process raise when it gets this signal, wherever it is.
RAISES = """
import signal
def fail(number, frame):
    raise RuntimeError("no luck")
signal.signal(signal.SIGUSR1, fail)
"""


@pytest.fixture
def text(tmp_path):
    return write_text(tmp_path / "text")


def test_processes_that_are_stopped_for_a_while_go_on(tmp_path, text):
    """One after the other, and both at once."""
    run = tmp_path / "run"
    with launched(2, arguments(text, run, 120, *OPTIONS)) as processes:
        assert processes.wait_until(lambda: last_step(run) > 10), processes.said
        children = processes.children()
        for stopped in ([children[0]], [children[1]], children):
            for number in (signal.SIGSTOP, signal.SIGCONT):
                for pid in stopped:
                    os.kill(pid, number)
                time.sleep(6 if number == signal.SIGSTOP else 0.5)
        assert processes.finish()[0] == 0, processes.said
    assert last_step(run) == 120
    check_positions(run)


FAILURES = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP, "raising": signal.SIGUSR1}


@pytest.mark.parametrize("what", FAILURES)
@pytest.mark.parametrize("process", [0, 1])
def test_all_are_gone_within_the_bound(tmp_path, text, what, process):
    run = tmp_path / "run"
    tmp_path.joinpath("sitecustomize.py").write_text(RAISES)
    paths = os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]])
    command = arguments(text, run, 100_000, *OPTIONS, "--silence-limit", f"{SILENCE:g}")
    with launched(2, command, PYTHONPATH=paths) as processes:
        assert processes.wait_until(lambda: last_step(run) > 10), processes.said
        children = processes.children()
        os.kill(children[process], FAILURES[what])
        failed = time.monotonic()
        status, _ = processes.finish()
        wait_gone(children)
    gone_after = time.monotonic() - failed
    print(f"process {process} {what}: all gone after {gone_after:.1f} s, exit status {status}")
    assert gone_after < SILENCE + 20
    words = {
        "killed": f"meshax: process {process} was ended by SIGKILL in step ",
        "stopped": f"meshax: process {process} (pid {children[process]} on ",
        "raising": "RuntimeError: no luck",
    }
    assert status and words[what] in processes.said, processes.said
    assert what != "stopped" or "has said nothing for 5 seconds" in processes.said


def test_a_launcher_restarts_until_it_is_done(tmp_path, text):
    """A process that is killed, one that is stopped, one that raises; the time that was lost is said."""
    run = tmp_path / "run"
    tmp_path.joinpath("sitecustomize.py").write_text(RAISES)
    paths = os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]])
    command = arguments(text, run, 200, *OPTIONS, "--silence-limit", f"{SILENCE:g}")
    with launched(2, command, ["--max-restarts", "5"], PYTHONPATH=paths) as processes:
        for number, after in zip(FAILURES.values(), (20, 70, 120)):
            assert processes.wait_until(lambda after=after: last_step(run) > after), processes.said
            os.kill(processes.children()[1], number)
        assert processes.finish()[0] == 0, processes.said
    print([line for line in processes.said.splitlines() if "restarts: " in line])
    assert "meshax: restarts: 3; " in processes.said and last_step(run) == 200
    check_positions(run)
