"""docs/logs.md: its run, in real processes; stopped and resumed it is the same; its file of options is the same run."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from rich.console import Console

from meshax.train.loop import Run, run_config

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "logs.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```console\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
pytestmark = pytest.mark.exhaustive


def masked(line):
    """A line without figures, which differ between machines."""
    return re.sub(r"[\d,.:]*\d(?:e[+-]\d+)?", "#", " ".join(line.split())).replace("# GB", "# MB")


def start(folder, words, log):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "JAX_ENABLE_COMPILATION_CACHE": "0"}
    environment.pop("XLA_FLAGS", None)
    with open(folder / log, "w") as file:
        command = [sys.executable, "-m", "meshax", *words]
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=file)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder where the page's commands have run."""
    folder = tmp_path_factory.mktemp("logs")
    text, train = (line.removeprefix("$ ") for line in BLOCKS[0].splitlines())
    subprocess.run(text, shell=True, check=True, cwd=folder)
    assert start(folder, shlex.split(train)[1:], "log.txt").wait(timeout=300) == 0, (folder / "log.txt").read_text()
    return folder


def train_words(out):
    words = shlex.split(BLOCKS[0].splitlines()[1])[2:]
    return [*words[:-1], out]


def final(run):
    """The weights of the last checkpoint of a run."""
    state, extra = Run(run_config(run), Console(quiet=True), read_only=True).restored()
    assert extra["step"] == 200
    return [np.asarray(leaf) for leaf in jax.tree.leaves(state)]


def assert_same(one, other):
    there, here = final(one), final(other)
    assert here and all(np.array_equal(a, b) for a, b in zip(here, there, strict=True))


def test_every_line_of_the_page_is_there(folder):
    lines = {masked(line) for line in (folder / "log.txt").read_text().splitlines()}
    shown = [masked(line) for line in BLOCKS[1].splitlines()]
    assert len(shown) > 10 and not [line for line in shown if line not in lines]
    steps = re.findall(r"^step +(\d+)/200  loss ", (folder / "log.txt").read_text(), re.MULTILINE)
    assert steps == [str(step) for step in range(20, 201, 20)]


def test_what_is_measured_is_explained_and_is_there(folder):
    named = set(re.findall(r"\| `(\w+)` \|$", PAGE, re.MULTILINE))
    rows = (folder / "runs/numbers/metrics.jsonl").read_text().splitlines()
    assert json.loads(rows[0]).keys() - {"step"} == named


def test_stopped_and_resumed_it_ends_with_the_same_weights(folder):
    words = train_words("runs/stopped")
    process, limit = start(folder, words, "stopped.txt"), time.monotonic() + 240
    while "step  60/200" not in (folder / "stopped.txt").read_text():
        assert process.poll() is None and time.monotonic() < limit, (folder / "stopped.txt").read_text()
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == 143
    assert start(folder, words, "resumed.txt").wait(timeout=300) == 0
    said = (folder / "stopped.txt").read_text() + (folder / "resumed.txt").read_text()
    assert {masked(line) for line in BLOCKS[2].splitlines()} <= {masked(line) for line in said.splitlines()}
    assert "changed: " not in said
    assert_same(folder / "runs/numbers", folder / "runs/stopped")


def test_the_file_of_options_is_the_same_run(folder):
    words = ["train", "--config", "runs/numbers/config.toml", "--out", "runs/again"]
    assert start(folder, words, "again.txt").wait(timeout=300) == 0, (folder / "again.txt").read_text()
    assert_same(folder / "runs/numbers", folder / "runs/again")
