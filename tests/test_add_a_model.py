"""The page that adds a model: its diffs apply, and what they add is tested, explained and trained."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from runs import write_text

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "add_a_model.md"
COPIED = ("src", "docs", "tests", "pyproject.toml", "CONTRIBUTING.md")


def diffs():
    """Iterates over the file that each diff of the page changes, and the lines that it takes away and adds."""
    text = PAGE.read_text(encoding="utf-8")
    for before, after, body in re.findall(
        r"^```diff\n--- (\S+)\n\+\+\+ b/(\S+)\n@@\n(.*?)^```$", text, re.MULTILINE | re.DOTALL
    ):
        lines = body.splitlines(keepends=True)
        removed, added = ("".join(line[1:] for line in lines if line[0] == sign) for sign in "-+")
        assert (before == "/dev/null") == (not removed)
        yield after, removed, added


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The project with the diffs of the page applied."""
    folder = tmp_path_factory.mktemp("copy")
    for name in COPIED:
        copied = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        (folder / name).parent.mkdir(exist_ok=True)
        copied(ROOT / name, folder / name)
    for name, removed, added in diffs():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        before = path.read_text(encoding="utf-8") if removed else ""
        assert before.count(removed) == 1 if removed else not path.exists()
        path.write_text(before.replace(removed, added) if removed else added, encoding="utf-8")
    return folder


def run(folder, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(folder / "src")}
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_page_changes_one_folder_and_one_line_of_presets():
    source = {name: (removed, added) for name, removed, added in diffs() if name.startswith("src/")}
    folders = {str(Path(name).parent) for name, (removed, _) in source.items() if not removed}
    assert folders == {"src/meshax/models/ngram"}
    changed = {name: pair for name, pair in source.items() if pair[0]}
    assert list(changed) == ["src/meshax/models/presets.py"]
    assert all(text.count("\n") == 1 for text in changed["src/meshax/models/presets.py"])


@pytest.mark.exhaustive
@pytest.mark.slow
def test_what_the_page_adds_passes_its_tests(copy):
    tests = ["tests/models", "tests/test_architecture.py", "-k", "ngram or test_architecture"]
    assert " passed" in run(copy, "pytest", "-q", "-p", "no:xdist", *tests)


@pytest.mark.exhaustive
def test_what_the_page_adds_trains(copy):
    text, out = write_text(copy / "text"), str(copy / "run")
    small = ["--vocab", "300", "--batch", "8", "--length", "32", "--steps", "4", "--model.reach", "3"]
    given = ["--preset", "ngram-tiny", "--data.text", text, "--out", out, *small]
    assert json.loads(run(copy, "meshax", "train", *given, "--json"))["perplexity"] < 500
    written = json.loads(run(copy, "meshax", "generate", "--run", out, "--prompt", "the", "--tokens", "3", "--json"))
    assert len(written["results"][0]["outputs"][0]["tokens"]) <= 3
    laid_out = ["--preset", "ngram-tiny", "--mesh", "data:2 model:4", "--layout", "data+model", "--json"]
    assert json.loads(run(copy, "meshax", "explain", *laid_out))["collectives"]
    from_nothing = ["--preset", "ngram", "--model.reach", "2", "--batch", "8", "--length", "32", *laid_out[2:]]
    assert json.loads(run(copy, "meshax", "explain", *from_nothing))["collectives"]


@pytest.mark.slow
def test_an_option_that_the_model_does_not_have(copy):
    source = "from meshax.train.config import TrainConfig; TrainConfig(preset='ngram-tiny', dropout=0.1).model()"
    environment = {**os.environ, "PYTHONPATH": str(copy / "src")}
    done = subprocess.run([sys.executable, "-c", source], env=environment, capture_output=True, text=True, timeout=300)
    assert "dropout is 0.1, and the model of the preset 'ngram-tiny' has none." in done.stderr
