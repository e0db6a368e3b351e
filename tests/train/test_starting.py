"""Fine-tuning: another run's weights, a new optimizer, step 0, other text; under any layout, layers in either form."""

import contextlib
import dataclasses
import shutil
import tempfile
from pathlib import Path

import jax
import numpy as np
import pytest
from rich.console import Console

import meshax as mx
from extent import some
from meshax.errors import TrainingError
from meshax.launch.peers import Peers
from meshax.train import starting
from meshax.train.config import TrainConfig
from meshax.train.loop import Run
from meshax.train.metrics import read_metrics
from meshax.train.options import DataOptions, OptimizerOptions
from meshax.train.starting import make_directory, weights_of
from messages import pinned
from runs import small, write_text

LAYOUTS = {
    "whole": dict(mesh="x:1", layout="none"),
    "sharded, unrolled": dict(mesh="data:8", layout="fsdp", layers_as="unrolled"),
    "split, looped": dict(layout="sequence", layers_as="loop"),
}


def arrays(model):
    return [leaf.numpy() for leaf in jax.tree.leaves(model, is_leaf=lambda x: isinstance(x, mx.Tensor))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("starting")
    write_text(folder / "text")
    write_text(folder / "other", files=3, lines=90)
    return folder


@pytest.fixture(scope="module")
def source(folder):
    """A run to start from, and its last model."""
    run = Run(small(folder, steps=3, layers_as="loop", dropout=0.0), Console(quiet=True))
    run.train()
    return run, run.restored()[0].model


def tuning(folder, source, **changes):
    data = DataOptions(text=(str(folder / "other" / "*.txt"),))
    fields = dict(from_=str(source.directory), out=str(folder / "tuned"), data=data, steps=2, log_every=1)
    return TrainConfig(**fields | dict(optimizer=OptimizerOptions(rate=1e-3, warmup=0)) | changes)


@pytest.mark.parametrize("name", some(LAYOUTS, "sharded, unrolled"))
def test_it_begins_where_the_other_ended(name, folder, source, capsys):
    shutil.rmtree(folder / "tuned", ignore_errors=True)
    run = Run(tuning(folder, source[0], **LAYOUTS[name]))
    assert run.sizes == source[0].sizes and run.model.d_model == source[0].model.d_model
    assert run.examples.vocabulary.fingerprint == source[0].examples.vocabulary.fingerprint
    model, extra = weights_of(source[0].directory, run.model, run.mesh, run.layout)
    before = run.evaluate(model, run.config.eval_batches)
    first = run.tensors(next(run.examples.stream(run.sizes, run.config.seed)))
    sums = run.evaluate_batch(model, first)
    assert extra["step"] == 3

    run.train()
    rows = read_metrics(run.directory / "metrics.jsonl")
    assert [row["step"] for row in rows] == [0, 1, 2, 2]
    assert rows[0]["eval_loss"] == before.loss
    assert rows[1]["loss"] == pytest.approx(float(sums["loss"]) / float(sums["count"]), rel=1e-5)
    assert rows[1]["loss"] < 0.9 * read_metrics(source[0].directory / "metrics.jsonl")[0]["loss"]
    err = capsys.readouterr().err
    assert f"starts from the weights of {source[0].directory} at step 3\n" in err.replace("\n ", " ")
    assert "step 0: held-out loss " in err


def test_the_weights_are_the_others(source):
    run, model = source
    whole = weights_of(run.directory, run.model, mx.Mesh("x:1"), mx.Layout(""))[0]
    unrolled = dataclasses.replace(run.model, layers_as="unrolled")
    apart = weights_of(run.directory, unrolled, mx.Mesh("data:8"), mx.Layout("batch:data", params="d_model:data"))[0]
    assert all(np.array_equal(a, b) for a, b in zip(arrays(whole), arrays(model), strict=True))
    for a, b in zip(arrays(apart.layers[1]), arrays(whole.layers), strict=True):
        np.testing.assert_array_equal(a, b[1])


@pytest.mark.exhaustive
def test_it_goes_on_when_the_other_is_gone(folder, source, tmp_path):
    """What it needs, it has from the first checkpoint on; and it is known where it came from."""
    copy = tmp_path / "source"
    shutil.copytree(source[0].directory, copy)
    config = tuning(folder, source[0], from_=str(copy), out=str(tmp_path / "run"), **LAYOUTS["whole"])
    Run(config, Console(quiet=True)).train()
    shutil.rmtree(copy)
    longer = dataclasses.replace(config, steps=3)
    assert Run(longer, Console(quiet=True)).train().count > 0
    with pytest.raises(
        mx.MeshaxError, match="holds a run of another model.\n  values: from is '.*/source' there, '' here"
    ):
        plain = dataclasses.replace(longer, from_="", vocab=300, batch=8, length=32, layers_as="loop")
        Run(plain, Console(quiet=True))


@pytest.mark.parametrize(("name", "rate"), [("adamw", 1e-5), ("sgd", 3e-3)])
def test_adamws_rate_is_the_others(name, rate, tmp_path):
    """That of an imported model is small, with care; that of another optimizer says nothing."""
    source = TrainConfig(out=str(tmp_path), optimizer=OptimizerOptions(name, 1e-5)).resolved()
    (tmp_path / "config.json").write_text(source.to_json())
    config = TrainConfig(from_=str(tmp_path), out=str(tmp_path / "new"))
    assert config.resolved().optimizer.rate == rate


def checked(**changes):
    """Checks a run that starts from one in a folder of its own, runs/x."""

    def run():
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            Path("runs/x").mkdir(parents=True)
            Path("runs/x/config.json").write_text(TrainConfig(preset="lm-0.14b", vocab=300).resolved().to_json())
            TrainConfig(**{"from_": "runs/x", "out": "runs/y", **changes}).check()

    return run


class Three(Peers):
    """A process of three; the others see what the first writes, or do not."""

    processes = 3

    def __init__(self, process, seen_by):
        self.process, self.seen_by, self.name = process, seen_by, "seen-by-all-1.tmp"

    def gather(self, name, value=None):
        if name == "a file of the first process":
            self.name = value or self.name
            return [(self.name, [0]), ("", [1, 2])]
        assert value == (self.process in self.seen_by)
        return [(True, self.seen_by), (False, [one for one in range(3) if one not in self.seen_by])]


@pytest.mark.parametrize(("process", "left"), [(0, ["events"]), (1, ["seen-by-all-1.tmp"])])
def test_a_directory_that_all_processes_see(tmp_path, process, left):
    """The first process makes a file for the others, and removes it; also one of a start that was killed."""
    tmp_path.joinpath("run").mkdir()
    tmp_path.joinpath("run", "seen-by-all-1.tmp").touch()
    make_directory(tmp_path / "run", Three(process, [0, 1, 2]))
    assert [path.name for path in tmp_path.joinpath("run").iterdir()] == left


def unseen(process):
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), pytest.MonkeyPatch.context() as patch:
        patch.setattr(starting, "_SEEN_WITHIN", 0.2)
        try:
            make_directory(Path("run"), Three(process, [0]))
        finally:
            assert not list(Path("run").glob("seen*"))


test_messages = pinned(
    {
        **{
            f"not seen, process {process}": (
                TrainingError,
                lambda process=process: unseen(process),
                """
                the processes do not see the same directory.
                  values: run: what process 0 writes there is not seen by processes 1, 2
                  rule: all processes of a run write their parts of a checkpoint into one directory.
                  fix: choose an out= on a file system that all hosts share.
                """,
            )
            for process in (0, 2)
        },
        "no run": (
            TrainingError,
            checked(from_="runs/z"),
            """
            there is no run in 'runs/z'.
              fix: name the directory that meshax train or import wrote (out=).
            """,
        ),
        "no directory": (
            mx.ArgumentError,
            checked(out=""),
            """
            a run that starts from 'runs/x' has no directory of its own.
              fix: give another out=.
            """,
        ),
        "its directory": (
            mx.ArgumentError,
            checked(out="runs/../runs/x"),
            """
            a run that starts from 'runs/x' has no directory of its own.
              fix: give another out=.
            """,
        ),
        "another preset": (
            mx.ArgumentError,
            checked(preset="lm-0.22b"),
            """
            preset is 'lm-0.22b', and the run in 'runs/x' has the model of 'lm-0.14b'.
              fix: leave out preset=.
            """,
        ),
        "another vocabulary": (
            mx.ArgumentError,
            checked(data=DataOptions(vocabulary="vocabulary.json")),
            """
            the run in 'runs/x' has a vocabulary already, which its weights are for.
              fix: leave out data.vocabulary=.
            """,
        ),
        "another model": (
            mx.ArgumentError,
            checked(model_={"d_ff": 512, "layers_as": "unrolled"}, vocab=600),
            """
            the weights in 'runs/x' do not fit another model.
              values: d_ff is 4096 there, 512 here; vocab is 300 there, 600 here
              rule: a run that starts from another's weights has its model.
              fix: leave these fields out.
            """,
        ),
    }
)
