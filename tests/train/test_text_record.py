"""A run that was stopped goes on with the tokens it has stored, bit for bit; its text may be gone."""

import json
import random
import shutil
from dataclasses import replace

import jax
import numpy as np
import pytest
from rich.console import Console

from meshax.errors import TrainingError
from meshax.tensors import is_tensor
from meshax.train.loop import Run, run_config
from meshax.train.metrics import read_metrics
from meshax.train.options import DataOptions
from runs import WORDS, small, write_text

QUIET = Console(quiet=True)
ONE = {"mesh": "x:1", "layout": "none"}


def config(folder, **changes):
    """A mixture of three sources: a folder, a file of lines, JSON lines in another field."""
    data = DataOptions(
        text=(str(folder / "text"), str(folder / "lines.ndjson"), str(folder / "records.jsonl")),
        weights=(5, 3, 2),
        field=("text", "body"),
        lines=True,
    )
    given = dict(data=data, steps=6, save_every=2, keep_last=9, eval_every=6) | ONE
    return small(folder, **(given | changes))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("record")
    write_text(folder / "text")
    for name, field, count in (("lines.ndjson", "text", 900), ("records.jsonl", "body", 400)):
        draw = random.Random(name)
        lines = [json.dumps({field: " ".join(draw.choices(WORDS, k=8))}) for _ in range(count)]
        (folder / name).write_text("\n".join(lines))
    return folder


def parameters(run):
    state, _ = run.restored()
    return [np.asarray(leaf.array) for leaf in jax.tree.leaves(state, is_leaf=is_tensor) if is_tensor(leaf)]


def losses(run):
    rows = read_metrics(run.directory / "metrics.jsonl")
    return {row["step"]: row["loss"] for row in rows if "loss" in row}


@pytest.mark.exhaustive
def test_a_run_goes_on_without_its_text(folder, tmp_path):
    whole = Run(config(folder), QUIET)
    result = whole.train()
    assert [tokens.folder.name for tokens in whole.examples.train.files] == ["train-1", "train-2", "train-3"]
    assert len(whole.examples.held_out.files) == 3

    moved = tmp_path / "moved"
    shutil.copytree(whole.directory, moved)
    for path in moved.glob("checkpoints/*-step-[46]"):
        shutil.rmtree(path)
    gone = tmp_path / "gone"
    for name in ("text", "lines.ndjson", "records.jsonl"):
        shutil.move(folder / name, gone)
        gone = gone.with_name(f"{gone.name}_")
    again = Run(replace(config(folder), out=str(moved)), QUIET)
    assert again.checkpoints.latest() == 2
    assert again.train() == result
    assert losses(again) == losses(whole)
    assert all(np.array_equal(a, b) for a, b in zip(parameters(again), parameters(whole), strict=True))

    read_only = Run(run_config(moved), QUIET, read_only=True)
    assert read_only.evaluate(read_only.restored()[0].model) == result

    with pytest.raises(TrainingError) as raised:
        Run(replace(config(folder), data=replace(whole.config.data, weights=(1, 1, 1), errors="strict")), QUIET)
    assert str(raised.value) == (
        f"the run in '{whole.directory}' cannot go on with other text.\n"
        "  values: data.errors was 'skip', is 'strict'; data.weights was [5, 3, 2], is [1, 1, 1]\n"
        "  rule: a run goes on with the tokens that it has stored; the text itself may be gone.\n"
        "  fix: give the options as they were, or choose another out=."
    )


def test_tokens_in_a_cache_are_those_of_one_text_each(tmp_path):
    """Two texts share a cache, and neither takes the other's tokens."""
    examples = {}
    for name, lines in (("one", 120), ("two", 150), ("one", 120)):
        text = write_text(tmp_path / name, lines=lines)
        data = DataOptions(text=(text,), cache=str(tmp_path / "cache"))
        run = Run(small(tmp_path, out=f"run-{name}", data=data, **ONE), QUIET)
        fingerprint = run.examples.train.fingerprint
        assert examples.setdefault(name, run.examples.train.tokens.tolist()) == run.examples.train.tokens.tolist()
        assert run.examples.train.folder.parent.parent == tmp_path / "cache" and fingerprint
    assert len(list((tmp_path / "cache").iterdir())) == 2
