"""The demo, run as a user runs it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DIGITS = ROOT / "examples" / "digits.py"
LAYOUTS = ["none", "data", "model", "both", "uneven"]


def python(*arguments):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "80", "NO_COLOR": "1"}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, env=environment, cwd=DIGITS.parent, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def demo():
    done = python(DIGITS, "--steps", 25)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rows(output):
    """The cells of the lines of all tables, by their first cell."""
    lines = [[cell.strip() for cell in re.split("[│┃]", line)[1:-1]] for line in output.splitlines()]
    return {cells[0]: cells[1:] for cells in lines if cells}


def test_losses_are_the_same_and_fall(demo):
    table = rows(demo)
    assert table["step"] == LAYOUTS
    first, last = table["1"], table["25"]
    assert len(set(first)) == len(set(last)) == 1
    assert float(last[0]) < float(first[0]) / 2


def test_the_classifier_learns(demo):
    scores = rows(demo)["test accuracy"]
    assert len(set(scores)) == 1
    assert float(scores[0].rstrip("%")) > 80


def test_communication_is_shown(demo):
    table = rows(demo)
    assert table["none"] == ["", "none", "", "", ""]
    # the gradients of three weights and three biases, and the loss
    assert table["data"] == ["batch:rows+cols", "all-reduce", "rows+cols", "7", "131,292"]
    assert table["model"][:3] == ["hidden:rows+cols", "all-reduce", "rows+cols"]


def test_it_says_how_close_the_losses_are_and_what_to_read(demo):
    assert re.search(r"largest relative difference is \d\.\de-\d\d\.\n", demo)
    assert demo.rstrip().splitlines()[-1].startswith("Read next: README.md")


@pytest.mark.exhaustive
def test_losses_that_disagree_are_a_failure():
    done = python("-c", "import digits; digits.TOLERANCE = 0; digits.main()", "--steps", 5)
    assert done.returncode == 1
    assert re.fullmatch(r"The losses disagree: by \d\.\de-\d\d relative, and 0e\+00 is allowed\.\n", done.stderr)


def test_a_difference_in_any_step_of_any_layout_counts():
    code = "import digits; print(digits.max_difference({'none': [4., 2.], 'a': [4., 2.], 'b': [3., 2.]}))"
    assert python("-c", code).stdout == "0.25\n"


def test_wrong_usage():
    done = python(DIGITS, "--steps", 0)
    assert done.returncode == 2
    assert "--steps is at least 1" in done.stderr


def test_help():
    assert "--steps" in python(DIGITS, "--help").stdout
