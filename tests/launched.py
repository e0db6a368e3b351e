"""Runs of training as several real processes of `meshax launch`, and what became of them."""

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from meshax.train.checkpoint import Checkpoints
from processes import environment

SEED = int(os.environ.get("MESHAX_CHAOS_SEED", "1"))  # of the instants

# Small enough to compile in a second or two, and with everything: attention, a loss over a split vocabulary, dropout.
SMALL = "--vocab 300 --batch 8 --length 32 --model.layers 1 --model.d-model 32 --model.d-ff 64 --dropout 0.1"
OFTEN = "--save-every 4 --eval-every 8 --eval-batches 2 --log-every 1"


def arguments(text, out, steps, *others):
    """Returns the command line of a run."""
    return [
        "train",
        "--data.text",
        str(text),
        "--out",
        str(out),
        "--steps",
        str(steps),
        *f"{SMALL} {OFTEN}".split(),
        *others,
    ]


class Launched:
    """A launcher and its processes."""

    def __init__(self, processes, command, options=(), prefix=(), **changes):
        words = [*prefix, sys.executable, "-m", "meshax", "launch", "-n", str(processes), *options, "--", *command]
        self.errors = Path(command[command.index("--out") + 1] + ".err")
        self._file = open(self.errors, "a")  # noqa: SIM115
        self.popen = subprocess.Popen(
            words, env=environment(JAX_PLATFORMS="cpu", **changes), stdout=subprocess.PIPE, stderr=self._file, text=True
        )

    @property
    def said(self):
        return self.errors.read_text()

    def children(self):
        """Returns the numbers of the processes, the first first."""
        listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(self.popen.pid)], capture_output=True, text=True)
        return sorted(map(int, listed.stdout.split()))

    def wait_until(self, condition, seconds=240, every=0.01):
        """Waits until something is so; returns whether it came to that before the processes ended."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, self.said
            if self.popen.poll() is not None:
                return False
            time.sleep(every)
        return True

    def finish(self, seconds=240):
        """Waits for the end, and returns the exit status and what was printed."""
        try:
            out, _ = self.popen.communicate(timeout=seconds)
        finally:
            self.close()
        return self.popen.returncode, out

    def close(self):
        if self.popen.poll() is None:
            self.popen.terminate()
            try:
                self.popen.communicate(timeout=30)
            except subprocess.TimeoutExpired:
                self.popen.kill()
        self._file.close()


@contextmanager
def launched(processes, command, options=(), prefix=(), **changes):
    """Starts a launcher, and ends it."""
    one = Launched(processes, command, options, prefix, **changes)
    try:
        yield one
    finally:
        one.close()


def whole_run(text, out, steps, processes, others=()):
    """Trains to the end, and returns what came of it."""
    with launched(processes, arguments(text, out, steps, *others)) as run:
        status, _ = run.finish(900)
        assert status == 0, run.said
    return final_state(out)


def state_of(pid):
    """Returns the state of a process, "" if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0].replace("Z", "")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def wait_gone(pids, seconds=30):
    """Waits until processes are gone."""
    limit = time.monotonic() + seconds
    while left := [pid for pid in pids if state_of(pid)]:
        assert time.monotonic() < limit, f"{left} are still there"
        time.sleep(0.02)


def rows(run):
    """Returns what a run has measured so far."""
    path = Path(run, "metrics.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")] if path.exists() else []


def losses(run):
    """Returns what the losses and the gradients were, step by step."""
    return [(row["step"], row["loss"], row["norm"]) for row in rows(run) if "loss" in row]


def check_positions(run):
    """Checks that the first step has read the first batch, and each the one after."""
    steps = [(row["step"], row["batches_read"]) for row in rows(run) if "loss" in row]
    assert steps == [(step, step) for step in range(1, len(steps) + 1)]


def last_step(run):
    """Returns the last step that is written down, 0 if there is none."""
    return max((row["step"] for row in rows(run)), default=0)


def final_state(run):
    """Returns the step of the last checkpoint, and every array in it as bytes, by name."""
    with Checkpoints(Path(run, "checkpoints"), read_only=True) as checkpoints:
        manifest, reader = checkpoints.on_host()
        arrays = {name: np.asarray(reader.whole(name)) for name in manifest.arrays}
    return manifest.step, manifest.extra["data"], {name: array.tobytes() for name, array in arrays.items()}
