"""Real processes that join, run collectives, and end together whatever becomes of one of them."""

import os
import re
import subprocess
import sys
import time

import pytest

from meshax.launch.local import Processes
from processes import environment, free_port

WORKER = """
import os, signal, sys, time
import meshax as mx
from meshax import interrupts
from meshax.launch.joining import join
from meshax.launch.place import Limits, find_place
import jax, numpy as np

process = int(os.environ["MESHAX_PROCESS"])
what, limits, facts = sys.argv[1], Limits(20, *map(float, sys.argv[2:4])), {"seed": 1}
interrupts.end_on_signals()
jax.config.update("jax_num_cpu_devices", 2)
if what == "differ" and process == 2:
    facts = {"seed": 2}
if what == "late" and process == 1:
    time.sleep(4)
peers = join(find_place(), limits, facts)
peers.agree({"mesh": "data"})
mesh, numbers = mx.Mesh("data:-1"), mx.Dim("numbers", 2 * peers.processes)
step = mx.spmd(lambda x: mx.sum(x), mesh, "numbers:data")
x = mx.put(mx.tensor(np.arange(numbers.size, dtype=np.float32), (numbers,)), mesh, "numbers:data")
with interrupts.finishing("finishing the step", peers) as work:
    for number in range(1, 200):
        peers.began(number)
        total = float(step(x))
        work.begin()
        if number == 5 and process == 1:
            if what == "raise":
                raise RuntimeError("no luck")
            if what == "exit":
                sys.exit(3)
            if what == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            if what == "hang":
                time.sleep(60)
            if what == "signal":
                os.kill(os.getpid(), signal.SIGTERM)
        try:
            work.check()
        except interrupts.Stopped as stopped:
            print("stopped at", number, file=sys.stderr)
            peers.done()
            interrupts.end(stopped.status)
print("sum", total, len(jax.devices()))
time.sleep(2.5)
print("skew", *sorted(peers.skew()), file=sys.stderr)
peers.done()
"""


def run(what, number=2, silence=20.0, step=0.0):
    """Starts workers, and returns how they ended, and what they said."""
    command = [sys.executable, "-c", WORKER, what, str(silence), str(step)]
    processes = Processes(command, [environment(JAX_PLATFORMS="cpu")] * number)
    return processes.wait()


def test_processes_join_and_sum(capfd):
    assert run("nothing", 2).status == 0
    out, err = capfd.readouterr()
    assert out == "sum 6.0 4\n" and "[Gloo]" not in err
    assert "[1] sum 6.0 4\n" in err and "[1] skew skew_seconds slowest_process\n" in err


def test_processes_that_differ_all_say_so_before_jax_connects_them(capfd):
    begin = time.monotonic()
    outcome = run("differ", 4)
    err = capfd.readouterr().err
    assert outcome.status == 1 and time.monotonic() - begin < 60
    assert len(re.findall(r"\[\d\]   values: seed: 1 on processes 0, 1, 3; 2 on process 2\n", err)) == 4
    assert "ends too" not in err


def test_an_error_in_one_process_ends_all(capfd):
    outcome = run("raise")
    err = capfd.readouterr().err
    assert (outcome.status, outcome.process, outcome.step) == (1, 1, 5)
    assert "RuntimeError: no luck" in outcome.lines  # JAX may still say that it has lost the others
    assert re.search(
        r"\[0\] meshax: process 1 \(pid \d+ on .*\) failed: RuntimeError: no luck; process 0 ends too", err
    )


def test_a_stopped_process_is_named_within_the_limit(capfd):
    outcome = run("stop", silence=3.0)
    err = capfd.readouterr().err
    assert outcome.status in (69, 137)
    assert re.search(r"\[0\] meshax: process 1 \(pid \d+ on .*\) has said nothing for 3 seconds: it is stopped", err)


def test_a_signal_to_one_stops_all_at_one_place(capfd):
    assert run("signal").status == 143
    places = re.findall(r"\[\d\] stopped at (\d+)\n", capfd.readouterr().err)
    assert len(places) == 2 and len(set(places)) == 1


@pytest.mark.exhaustive
def test_a_process_that_hangs_is_named_and_all_show_where_they_are(capfd):
    assert run("hang", step=3.0).status == 70
    err = capfd.readouterr().err
    assert re.search(r"no step ended within 3 seconds: process 1 \(pid \d+ on .*\) hung", err)
    assert "[0] meshax: where process 0 is:" in err and "[1] meshax: where process 1 is:" in err
    assert re.search(r'\[1\]   File "<string>", line \d+ in <module>', err)


@pytest.mark.exhaustive
def test_a_process_that_leaves_early_ends_all(capfd):
    outcome = run("exit")
    assert outcome.process == 1 and outcome.status == 1
    assert "failed: it ended before the others" in capfd.readouterr().err


@pytest.mark.exhaustive
def test_a_late_process_is_waited_for(capfd):
    assert run("late").status == 0
    assert capfd.readouterr().out == "sum 6.0 4\n"


@pytest.mark.exhaustive
@pytest.mark.parametrize("process", [0, 1])
def test_a_process_that_nobody_joins_says_who_is_missing(process):
    place = f"--coordinator 127.0.0.1:{free_port()} --processes 2 --process {process} --arrival-limit 2".split()
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "meshax", "train", "--mesh", "data:2", *place],
        env=environment(JAX_PLATFORMS="cpu"), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 1 and time.monotonic() - begin < 60
    missing = {
        0: "values: process 1 of 2 did not arrive within 2 seconds",
        1: "meshax: process 0 did not arrive within 2 seconds.",
    }
    assert missing[process] in done.stderr and done.stdout == ""


@pytest.mark.exhaustive
def test_processes_end_with_their_launcher():
    script = f"""
import sys, os
from meshax.launch.local import Processes
processes = Processes([sys.executable, "-c", {WORKER!r}, "stop", "600", "600"], [dict(os.environ)] * 2)
print(*(process.pid for process in processes.processes), flush=True)
processes.wait()
"""
    launcher = subprocess.Popen(
        [sys.executable, "-c", script], env=environment(JAX_PLATFORMS="cpu"), stdout=subprocess.PIPE, text=True,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    with launcher:
        first, second = map(int, launcher.stdout.readline().split())
        limit = time.monotonic() + 60
        while state(second) != "T" and time.monotonic() < limit:
            time.sleep(0.1)
        launcher.kill()
    os.kill(second, 18)
    limit = time.monotonic() + 10
    while (state(first) or state(second)) and time.monotonic() < limit:
        time.sleep(0.1)
    assert not state(first) and not state(second)


def state(pid):
    """Returns the state of a process, "" if it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0].replace("Z", "")
    except FileNotFoundError:
        return ""
