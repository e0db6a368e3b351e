"""Weights that are means: of the last checkpoints, and the moving average that training keeps; as runs use them."""

import contextlib
import shutil
from dataclasses import replace

import jax
import numpy as np
import pytest
from rich.console import Console

import meshax as mx
from meshax.cli import main
from meshax.errors import TrainingError
from meshax.train.averaging import average_checkpoints
from meshax.train.loop import Run, run_config
from meshax.train.options import OptimizerOptions
from meshax.train.starting import weights_of
from runs import small, write_text


def arrays(tree):
    return [leaf.numpy() for leaf in jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, mx.Tensor))]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of six steps with three checkpoints, stopped after four and continued elsewhere."""
    folder = tmp_path_factory.mktemp("averaging")
    write_text(folder / "text")
    config = small(
        folder, mesh="data:2", layout="data", steps=6, save_every=2, eval_every=6, eval_batches=1, keep_last=3,
        dropout=0.0, optimizer=OptimizerOptions(average=0.5, rate=1e-2),
    )  # fmt: skip
    Run(config, Console(quiet=True)).train()
    return config


def checkpoint(config, step, average=False):
    return arrays(weights_of(config.directory(), config.model(), mx.Mesh("x:1"), mx.Layout(""), step, average)[0])


def test_the_mean_of_the_last_checkpoints(run, capsys):
    out = run.directory().with_name("mean")
    assert main(["average", "--run", run.out, "--last", "3", "--out", str(out), "--json"]) == 0
    assert '"steps": [2, 4, 6]' in capsys.readouterr().out
    mean = checkpoint(run_config(out), "latest")
    each = [checkpoint(run, step) for step in (2, 4, 6)]
    for got, *values in zip(mean, *each, strict=True):
        np.testing.assert_allclose(got, np.mean(values, 0, np.float64), rtol=1e-6, atol=1e-8)
        assert got.dtype == values[0].dtype
    assert any(np.abs(got - last).max() > 1e-6 for got, last in zip(mean, each[-1], strict=True))
    assert sorted(path.name for path in out.iterdir() if path.is_dir()) == ["checkpoints"]
    looked = Run(run_config(out, mesh="data:2 model:2", layout="data+model"), Console(quiet=True), read_only=True)
    evaluation = looked.evaluate(looked.restored()[0].model, 1)
    assert 0 < evaluation.loss < 10


def test_a_mean_that_cannot_be_written_leaves_nothing(run, tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(TrainingError) as raised:
        average_checkpoints(run.out, 2, file)
    assert str(raised.value) == (
        f"the mean cannot be written.\n  values: {file}: File exists\n  fix: choose another out=."
    )

    def fails(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("meshax.train.averaging.shutil.copyfile", fails)
    for out in (tmp_path / "new", tmp_path):
        with pytest.raises(TrainingError, match="No space left on device"):
            average_checkpoints(run.out, 2, out)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.exhaustive
def test_layers_apart_are_averaged_too(run):
    """A run that goes on unrolled has checkpoints of either form: those of one form are averaged."""
    other = replace(run, out=str(run.directory().with_name("unrolled")), layers_as="unrolled", steps=2, save_every=1)
    Run(other, Console(quiet=True)).train()
    out = run.directory().with_name("unrolled-mean")
    assert average_checkpoints(other.directory(), 2, out) == [1, 2]
    each = [checkpoint(other, step) for step in (1, 2)]
    for got, *values in zip(checkpoint(run_config(out), 2), *each, strict=True):
        np.testing.assert_allclose(got, np.mean(values, 0, np.float64), rtol=1e-6, atol=1e-8)


def test_the_moving_average_is_saved_resumed_and_used_when_asked(run):
    """Stopped after four steps and resumed, a run has the average of one that went through, bit for bit."""
    whole, last = checkpoint(run, 6, average=True), checkpoint(run, 6)
    assert any(np.abs(a - b).max() > 1e-5 for a, b in zip(whole, last, strict=True))
    parted = replace(run, out=str(run.directory().with_name("parted")))
    shutil.copytree(run.directory(), parted.directory())
    for path in (parted.directory() / "checkpoints").glob("*-step-6"):
        shutil.rmtree(path)
    Run(parted, Console(quiet=True)).train()
    for got, wanted in zip(checkpoint(parted, 6, average=True), whole, strict=True):
        np.testing.assert_array_equal(got, wanted)
    looked = Run(run_config(run.directory()), Console(quiet=True), read_only=True)
    for average, wanted in ((False, last), (True, whole)):
        for got, expected in zip(arrays(looked.restored(average=average)[0].model), wanted, strict=True):
            np.testing.assert_array_equal(got, expected)


def test_a_run_without_an_average_says_so(run):
    config = run_config(run.directory())
    without = replace(config, optimizer=replace(config.optimizer, average=0.0))
    with pytest.raises(TrainingError, match="holds a run of another model"):
        Run(without, Console(quiet=True), read_only=True)
    out = run.directory().with_name("plain")
    with contextlib.suppress(FileExistsError):
        average_checkpoints(run.directory(), 1, out)
    (out / "config.json").write_text(without.to_json())
    looked = Run(run_config(out), Console(quiet=True), read_only=True)
    with pytest.raises(
        TrainingError, match=r"has kept no average of its weights\.\n  fix: train with optimizer.average"
    ):
        looked.restored(average=True)


def test_what_cannot_be_averaged(run):
    with pytest.raises(
        TrainingError, match=r"the last 4 checkpoints cannot be averaged\.\n  values: there are 3: steps 2"
    ):
        average_checkpoints(run.directory(), 4, run.directory().with_name("four"))
    with pytest.raises(TrainingError, match="there is a run in"):
        average_checkpoints(run.directory(), 1, run.directory())
