"""Ctrl-C and SIGTERM, in this process and in real ones: always a clean end, never a crash, nothing lost."""

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from extent import some
from meshax.interrupts import Stopped, finishing
from meshax.train.checkpoint.manifest import read_manifest
from meshax.train.loop import Run, run_config
from runs import small, write_text

ROOT = Path(__file__).parents[1]
SEED = 20  # of the instants
WITHIN = 10.0  # seconds, also while XLA compiles; 5 are the rule elsewhere
CRASHES = ("Traceback", "terminate called", "pure virtual", "Segmentation", "Fatal Python error", "Exception ignored")
SMALL = ["--vocab", "300", "--batch", "8", "--length", "32", "--log-every", "1", "--eval-every", "1000"]
SMALL += ["--save-every", "1000"]


def test_an_interrupt_that_gets_lost_is_raised_again():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Stopped), finishing("finishing the step, then saving") as work:
        work.check()
        with contextlib.suppress(KeyboardInterrupt):  # as a call back of JAX's does
            signal.raise_signal(signal.SIGINT)
        work.check()
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_work_that_has_begun_comes_to_its_end(number, status):
    before = signal.getsignal(number)
    done = []
    with pytest.raises(Stopped) as stopped, finishing("finishing the step, then saving") as work:
        work.begin()
        signal.raise_signal(number)
        done.append("the step")
        work.check()
        done.append("another one")
    assert done == ["the step"] and stopped.value.status == status
    assert signal.getsignal(number) is before


def test_the_second_ctrl_c_does_not_wait():
    with pytest.raises(KeyboardInterrupt) as interrupt, finishing("finishing the step, then saving") as work:
        work.begin()
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("it waited")
    assert not isinstance(interrupt.value, Stopped)


def test_a_signal_after_the_last_check_is_not_lost():
    with pytest.raises(Stopped), finishing("finishing the step, then saving") as work:
        work.begin()
        work.check()
        signal.raise_signal(signal.SIGTERM)


def test_a_thread_can_train_too():
    seen = []

    def work():
        with finishing("finishing the step, then saving") as work:
            work.begin()
            work.check()
            seen.append("done")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == ["done"]


def test_who_ignores_ctrl_c_goes_on_ignoring_it():
    """As a shell makes it for what runs in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with finishing("finishing the step, then saving") as work:
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            signal.raise_signal(signal.SIGINT)
            work.check()
    finally:
        signal.signal(signal.SIGINT, before)


def weights(directory):
    """Returns every array of the last checkpoint of a run, as bytes."""
    run = Run(run_config(directory), read_only=True)
    state, extra = run.restored()
    return extra["step"], [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state)]


def stoppable(folder, out):
    return small(folder, out, save_every=100, eval_every=5, mesh="data:2", layout="data")


def signal_when(run, number, what, at):
    """Makes a run get a signal in the middle of a step, or of an evaluation after a step."""
    step, evaluate, steps, sent = run.step, run.evaluate_batch, [], []

    def once(now):
        if now == (what, at) and not sent:
            sent.append(now)
            signal.raise_signal(number)

    def take_step(*arguments):
        steps.append(arguments)
        once(("step", len(steps)))
        return step(*arguments)

    def evaluate_one(*arguments):
        once(("evaluation", len(steps)))
        return evaluate(*arguments)

    vars(run).update(step=take_step, evaluate_batch=evaluate_one)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    write_text(folder / "text")
    Run(stoppable(folder, "whole")).train()
    return folder


@pytest.mark.exhaustive
@pytest.mark.parametrize("at", [("step", 7), ("evaluation", 5), ("evaluation", 12)], ids=str)
def test_a_run_that_is_stopped_has_saved_and_goes_on_as_if_it_never_was(uninterrupted, at, capsys):
    config = stoppable(uninterrupted, f"stopped at {at[0]} {at[1]}")
    run = Run(config)
    signal_when(run, signal.SIGTERM, *at)
    with pytest.raises(Stopped) as stopped:
        run.train()
    assert stopped.value.status == 143
    assert f"stopped at step {at[1]}, which is saved; run again, it goes on\n" in capsys.readouterr().err
    assert weights(config.out)[0] == at[1]

    Run(config).train()
    assert weights(config.out) == weights(uninterrupted / "whole")


def start(*arguments, script=None):
    """Starts a command in a process group of its own, as a terminal does."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "XLA_FLAGS": ""}
    command = ["-c", script] if script else ["-m", "meshax", *map(str, arguments)]
    return subprocess.Popen(
        [sys.executable, *command], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def wait_until(true, process, seconds=120):
    limit = time.monotonic() + seconds
    while not true():
        assert process.poll() is None and time.monotonic() < limit, process.communicate()
        time.sleep(0.02)


def catches_sigterm(process):
    """Whether a process has begun to wait for signals: before, it is Python's alone."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        caught = re.search(r"SigCgt:\s+(\w+)", Path(f"/proc/{process.pid}/status").read_text())
        return bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)
    return False


def send(process, number=signal.SIGINT):
    """Sends a signal to all of a command, as a terminal does, and returns what it does then."""
    os.killpg(process.pid, number)
    sent = time.monotonic()
    out, err = process.communicate(timeout=120)
    seconds = time.monotonic() - sent
    assert process.returncode == 128 + number, (process.returncode, err)
    assert not [word for word in CRASHES if word in out + err], err
    assert err.endswith("meshax: interrupted\n"), err
    assert seconds < WITHIN, f"{seconds:.1f} s: {err}"
    return seconds, out, err


def check_whole(run):
    """Checks that nothing in the directory of a run is half written."""
    left = [path for path in run.rglob("*") if re.search(r"\.partial$|\.tmp$|lock\.json$", path.name)]
    assert not left, left
    for path in run.rglob("*.json"):
        json.loads(path.read_text())
    for folder in run.glob("checkpoints/*-step-*"):
        read_manifest(folder)


DRAW = random.Random(SEED)
INSTANTS = sorted(round(DRAW.uniform(0, 20), 3) for _ in range(50))


@pytest.mark.slow
@pytest.mark.parametrize("instant", some(INSTANTS, *INSTANTS[2:14:5]))
def test_ctrl_c_at_a_random_instant_ends_a_run_cleanly(tmp_path, instant):
    """Half of them on a short text: while that is compiled and trained on, the other is still read."""
    run = tmp_path / "run"
    text = ["--data.text", write_text(tmp_path / "text"), *SMALL] if INSTANTS.index(instant) % 2 else []
    process = start("train", *text, "--steps", 100_000, "--out", run)
    wait_until(lambda: catches_sigterm(process), process)
    time.sleep(instant)
    seconds, _, err = send(process)
    check_whole(run)
    print(f"seed {SEED}, {instant} s: ended after {seconds:.2f} s, {err.splitlines()[-2:]}")


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("instant", sorted(round(DRAW.uniform(0, 30), 3) for _ in range(10)))
def test_ctrl_c_while_a_run_compiles_and_trains(tmp_path, instant):
    """However long it takes to come there."""
    run = tmp_path / "run"
    text = ["--data.text", write_text(tmp_path / "text"), "--mesh", "data:2 model:1", *SMALL]
    process = start("train", *text, "--steps", 100_000, "--out", run)
    wait_until(lambda: list(run.glob("tokens/held_out/manifest.json")), process)
    time.sleep(instant)
    seconds, _, err = send(process)
    check_whole(run)
    print(f"seed {SEED}, {instant} s: ended after {seconds:.2f} s, {err.splitlines()[-2:]}")
    if "stopped at step" in err:
        assert list(run.glob(f"checkpoints/*-step-{re.search('stopped at step ([0-9]+)', err)[1]}"))


LATER = """
import sys, time
from pathlib import Path
from meshax import interrupts
from meshax.files import Lock, write_whole
interrupts.end_on_signals()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_leaves_no_lock_and_no_part_of_a_file(tmp_path, number):
    script = f"""{LATER}
lock = Lock(Path({str(tmp_path)!r}))
import os
os.fsync = lambda _: (print("ready", flush=True), time.sleep(60))
write_whole(Path({str(tmp_path / "file")!r}), "words")
"""
    process = start(script=script)
    assert process.stdout.readline() == "ready\n" and len(list(tmp_path.iterdir())) == 2
    send(process, number)
    assert not list(tmp_path.iterdir())


def test_a_second_ctrl_c_leaves_at_once():
    """Also where no line of Python runs, as while XLA compiles."""
    process = start(
        script=LATER + "with interrupts.finishing('finishing the step, then saving') as work:\n"
        "    work.begin(); print('ready', flush=True); __import__('hashlib').pbkdf2_hmac('sha256', b'', b'', 10**9)"
    )
    assert process.stdout.readline() == "ready\n"
    os.killpg(process.pid, signal.SIGINT)
    assert process.stderr.readline() == "meshax: finishing the step, then saving; again, and it leaves at once\n"
    assert process.poll() is None
    seconds, _, _ = send(process)
    assert seconds < 5


TINY = f"{ROOT / 'examples' / 'transformer.py'}:tiny"
COMMANDS = {
    "explain": [
        *("explain", "--preset", "lm-0.67b", "--mesh", "data:2 model:4", "--layout", "data+model"),
        *("--model.layers", "96", "--model.layers-as", "unrolled"),
    ],
    "layout": ["layout", TINY, "--processors", "8"],
    "plan": ["plan", TINY, "--mesh", "data:2 model:4", "--topology", "cpu"],
    "bench step": ["bench", "step", "--preset", "tiny"],
    "bench step beside": ["bench", "step", "--preset", "tiny", "--beside", "jax"],
    "bench calibrate": ["bench", "calibrate"],
}


@pytest.mark.slow
@pytest.mark.parametrize("number", some([signal.SIGINT, signal.SIGTERM], signal.SIGINT))
@pytest.mark.parametrize("command", some(COMMANDS, "layout"))
def test_every_command_ends_cleanly(command, number):
    process = start(*COMMANDS[command])
    wait_until(lambda: catches_sigterm(process), process)
    time.sleep(random.Random(SEED + number).uniform(1, 3))
    _, out, _ = send(process, number)
    assert out == ""


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("command", "instant"),
    [(["eval"], instant) for instant in (0.5, 1.0, 2.0)]  # it is done soon
    + [(["generate", "--prompt", "the", "--tokens", "2000"], instant) for instant in (0.5, 2.0, 4.5)],
    ids=str,
)
def test_commands_on_a_run_end_cleanly(uninterrupted, command, instant, number):
    process = start(*command, "--run", uninterrupted / "whole")
    wait_until(lambda: catches_sigterm(process), process)
    time.sleep(instant)
    _, out, _ = send(process, number)
    assert out == "" or (command[0] == "generate" and out.startswith("the"))  # it writes as it goes


def test_the_processes_of_a_command_end_with_it(tmp_path):
    """A program that is measured in a process of its own, and what that has started."""
    (tmp_path / "measured.py").write_text(
        "import json, os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(json.dumps({'doing': f'{os.getpid()} {child.pid}'}), flush=True)\n"
        "time.sleep(60)\n"
    )
    script = f"""{LATER}
import os
from meshax.bench import turns
os.environ["PYTHONPATH"] = {str(tmp_path)!r} + os.pathsep + os.environ.get("PYTHONPATH", "")
next(turns.in_turns("measured", ["ours"], {{}}, 1, False, lambda words: print(words, flush=True)))
"""
    process = start(script=script)
    children = [Path("/proc", pid) for pid in process.stdout.readline().removeprefix("ours: ").split()]
    assert len(children) == 2 and all(child.exists() for child in children)
    send(process)
    wait_gone = time.monotonic() + 5
    while any(child.exists() for child in children) and time.monotonic() < wait_gone:
        time.sleep(0.02)
    assert not any(child.exists() for child in children)


def test_ctrl_c_at_a_terminal():
    """The key itself: the cursor that a progress bar hides is there again, and the bar is not drawn over the words."""
    script = f"""{LATER}
import os
from rich.progress import Progress
leave = os._exit
os._exit = lambda status: (time.sleep(0.3), leave(status))  # a busy machine: the bar is drawn meanwhile
with Progress() as bar:
    bar.add_task("x")
    time.sleep(60)
"""
    helper = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn([sys.executable, '-c', sys.argv[1]])))"
    process = subprocess.Popen(
        [sys.executable, "-c", helper, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "TERM": "xterm"},
    )  # fmt: skip
    seen = b""
    while b"?25l" not in seen:
        seen += os.read(process.stdout.fileno(), 1 << 12)
    os.write(process.stdin.fileno(), b"\x03")
    seen += process.communicate(timeout=60)[0]
    assert process.returncode == 130
    assert seen.rindex(b"?25h") > seen.rindex(b"?25l") and seen.endswith(b"meshax: interrupted\r\n")
