"""One training run that is killed fifty times, ten of them inside of checkpoints, and ends as if it never was."""

import os
import random
import signal
import time
from collections import Counter

import pytest

from launched import (
    SEED,
    arguments,
    check_positions,
    final_state,
    last_step,
    launched,
    losses,
    wait_gone,
    whole_run,
)
from runs import write_text

pytestmark = pytest.mark.chaos

KILLS = int(os.environ.get("MESHAX_KILLS", "50"))
INSIDE = KILLS // 5  # of a checkpoint's writing
STEPS = 1000
OPTIONS = ["--save-every", "10", "--eval-every", "500", "--mesh", "data:2 model:1"]
KINDS = ("inside of a checkpoint", "while it starts", "in training")


class Killed:
    """A run that is started and killed again and again."""

    def __init__(self, folder, seed=SEED):
        self.text, self.run, self.draw = write_text(folder / "text"), folder / "run", random.Random(seed)
        self.kills, self.slowest, self.start_takes = Counter(), 0.0, 12.0
        self.errors = folder / "run.err"

    def once(self, kind):
        """Starts the run, kills one of its processes or the launcher, and looks at what is left."""
        saved, said = self.saved(), self.said()
        with launched(2, arguments(self.text, self.run, STEPS, *OPTIONS)) as processes:
            children = self.wait(processes, kind)
            victims = [0, 1] if kind == KINDS[0] else [0, 1, "launcher"]  # who is left alone would finish its writing
            victim = self.draw.choice(victims if len(children) == 2 else ["launcher"])
            os.kill(processes.popen.pid if victim == "launcher" else children[victim], signal.SIGKILL)
            killed = time.monotonic()
            status, _ = processes.finish()
            wait_gone(children)
        gone_after = time.monotonic() - killed
        assert status and gone_after < 30, self.said()
        if kind != KINDS[1] and saved:
            assert f"resumed at step {saved}\n" in self.said()[len(said) :]
        if kind == KINDS[0] and not self.unfinished():
            kind = KINDS[2]  # too late: all of it was there
        self.kills[kind] += 1
        self.slowest = max(self.slowest, gone_after)
        where = f"at step {last_step(self.run)}, saved {self.saved()}"
        print(f"kill {self.kills.total()}: {kind}, {victim}, {where}, gone after {gone_after:.2f} s", flush=True)
        self.check()

    def wait(self, processes, kind):
        """Waits for the instant, and returns the processes that there are then."""
        began, before = time.monotonic(), last_step(self.run)
        if kind == KINDS[1]:
            instant = began + self.draw.uniform(0, self.start_takes)
            assert processes.wait_until(lambda: time.monotonic() > instant or last_step(self.run) > before), self.said()
            return processes.children()
        removed = processes.wait_until(lambda: not self.unfinished())  # what the kill before has left
        assert removed and processes.wait_until(lambda: self.has_measured_since(began)), self.said()
        children, self.start_takes = processes.children(), time.monotonic() - began
        instant = last_step(self.run) + self.draw.randrange(25)
        is_now = self.unfinished if kind == KINDS[0] else lambda: last_step(self.run) > instant
        assert processes.wait_until(is_now, every=0.001), self.said()
        return children

    def has_measured_since(self, began):
        """Whether a step was written down since an instant; a start forgets those after its checkpoint."""
        path = self.run / "metrics.jsonl"
        is_new = path.exists() and time.time() - path.stat().st_mtime < time.monotonic() - began
        return is_new and last_step(self.run) > self.saved()

    def said(self):
        return self.errors.read_text() if self.errors.exists() else ""

    def unfinished(self):
        """Returns the checkpoints that are being written; older ones may be on their way out."""
        names = [path.stem for path in self.run.glob("checkpoints/*-step-*[0-9].tmp")]
        return [name for name in names if int(name.rpartition("-")[2]) > self.saved()]

    def saved(self):
        """Returns the last step that a checkpoint is of, 0 if there is none."""
        folders = self.run.glob("checkpoints/*-step-*[0-9]")
        return max((int(folder.name.rpartition("-")[2]) for folder in folders), default=0)

    def check(self):
        """Checks that each step has read its own batch, and that the last checkpoint goes on after its own."""
        if self.saved():
            step, data, _ = final_state(self.run)
            assert step == self.saved() and data["position"] == {"next_index": step}
        check_positions(self.run)


def test_kills_at_random_instants_change_nothing(tmp_path):
    killed, begin = Killed(tmp_path), time.monotonic()
    while killed.kills.total() < KILLS or killed.kills[KINDS[0]] < INSIDE:
        number = killed.kills.total()
        killed.once(KINDS[0] if number % 4 == 3 else KINDS[1 + number % 2])
    print(f"{dict(killed.kills)} in {time.monotonic() - begin:.0f} s; all gone after {killed.slowest:.2f} s at most")
    assert len(losses(killed.run)) < STEPS, "it was done before the last kill"
    whole_run(killed.text, killed.run, STEPS, 2, OPTIONS)
    whole_run(killed.text, tmp_path / "whole", STEPS, 2, OPTIONS)
    check_positions(killed.run)
    assert len(losses(killed.run)) == STEPS and losses(killed.run) == losses(tmp_path / "whole")
    assert final_state(killed.run) == final_state(tmp_path / "whole")
