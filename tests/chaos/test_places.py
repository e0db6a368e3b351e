"""A run that goes on elsewhere each time it is killed: with fewer or more processes, under other layouts."""

import os
import random
import signal

import pytest

from launched import SEED, arguments, last_step, launched, losses, rows, wait_gone, whole_run
from runs import write_text

pytestmark = pytest.mark.chaos

STEPS = 12  # at each place
PLACES = [
    (2, "data:2 model:1", "data"),
    (1, "data:2 model:2", "data+model"),
    (4, "data:4 model:1", "fsdp"),
    (2, "data:1 model:4", "model"),
    (3, "data:3 model:1", "fsdp"),
    (4, "data:2 model:2", "data+model"),
]


def test_other_processes_and_layouts_at_each_restart(tmp_path):
    """Also meshes that the batch does not divide by: the same batches, the same losses."""
    text, run, draw = write_text(tmp_path / "text"), tmp_path / "run", random.Random(SEED)
    for number, (processes, mesh, layout) in enumerate(PLACES, start=1):
        command = arguments(text, run, STEPS * len(PLACES), "--mesh", mesh, "--layout", layout)
        with launched(processes, command) as one:
            if number < len(PLACES):
                instant = STEPS * number - draw.randrange(STEPS // 2)
                assert one.wait_until(lambda instant=instant: last_step(run) >= instant), one.said
                children = one.children()
                os.kill(draw.choice(children), signal.SIGKILL)
                assert one.finish()[0], one.said
                wait_gone(children)
            else:
                assert one.finish()[0] == 0, one.said
        print(f"{processes} processes, {mesh}, {layout}: up to step {last_step(run)}", flush=True)
    whole_run(text, tmp_path / "whole", STEPS * len(PLACES), 2, ["--mesh", "data:2 model:1", "--layout", "data"])
    here, there = ([loss for _, loss, _ in losses(one)] for one in (run, tmp_path / "whole"))
    assert len(here) == len(there) == STEPS * len(PLACES)
    assert here == pytest.approx(there, rel=1e-5)
    here, there = (rows(one)[-1]["eval_loss"] for one in (run, tmp_path / "whole"))
    print(f"held-out loss {here}, of a run in one place {there}")
    assert here == pytest.approx(there, rel=1e-5)
