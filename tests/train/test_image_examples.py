"""Runs that tell images apart, made by rules or from files."""

import json
from textwrap import dedent

import numpy as np
import pytest
from rich.console import Console

from meshax.data.shapes import make_image
from meshax.errors import ArgumentError, TrainingError
from meshax.train.config import TrainConfig
from meshax.train.image_examples import ImageExamples
from meshax.train.loop import Run, run_config
from meshax.train.metrics import read_metrics
from meshax.train.options import DataOptions

QUIET = Console(quiet=True)


def config(folder, out="run", **changes):
    """A run of a few steps of a small residual network on shapes."""
    usual = dict(preset="resnet-tiny", model_={"filters": 2}, batch=4, voxels=(16,), steps=4, seed=1, log_every=1)
    usual |= dict(data=DataOptions(cases=20), eval_every=2, save_every=2, eval_batches=1, mesh="data:1 model:1")
    return TrainConfig(out=str(folder / out), **(usual | changes))


def test_shapes_are_there_without_files(tmp_path):
    examples = ImageExamples.open(config(tmp_path), QUIET)
    assert examples.facts() == {"train_images": 20, "held_out_images": 480}
    assert examples.amounts() == (20, 480)
    everything = ImageExamples.open(config(tmp_path, data=DataOptions()), QUIET)
    assert everything.facts()["train_images"] == 8_000
    batches = list(examples.held_out_batches({"batch": 100}))
    assert [batch["weights"].sum() for batch in batches] == [100, 100, 100, 100, 80]


def write_images(folder, count=30):
    images, labels = zip(*(make_image(0, number, (16, 16)) for number in range(count)))
    np.save(folder / "images.npy", np.stack(images))
    np.save(folder / "labels.npy", np.int32(labels))
    return {"images": (str(folder / "images.npy"),), "labels": (str(folder / "labels.npy"),)}


def test_a_tenth_of_the_files_is_held_out_or_what_is_named(tmp_path):
    files = write_images(tmp_path)
    assert ImageExamples.open(config(tmp_path, data=DataOptions(**files)), QUIET).amounts() == (27, 3)
    named = files | {f"validation_{name}": value for name, value in files.items()}
    assert ImageExamples.open(config(tmp_path, data=DataOptions(**named)), QUIET).amounts() == (30, 30)
    assert ImageExamples.other(config(tmp_path), DataOptions(**files), QUIET).amounts() == (30, 30)


@pytest.mark.exhaustive
def test_a_run_learns_and_is_evaluated_again(tmp_path):
    run = Run(config(tmp_path), QUIET)
    run.train()
    result = json.loads((run.directory / "result.json").read_text())
    assert 0 <= result["accuracy"] <= 1 and result["images"] == 480
    assert [row["step"] for row in read_metrics(run.directory / "metrics.jsonl") if "accuracy" in row] == [2, 4]
    looking = Run(run_config(run.directory), QUIET, read_only=True)
    again = looking.evaluate(looking.restored()[0].model)
    assert again.metrics["accuracy"] == pytest.approx(result["accuracy"], abs=1e-6)


@pytest.mark.exhaustive
@pytest.mark.parametrize("layout", ["batch:data x:model", "x:data y:model"])
def test_a_layout_changes_no_loss(tmp_path, layout):
    losses = []
    for out, mesh in (("alone", "data:1 model:1"), ("split", "data:2 model:2")):
        run = Run(config(tmp_path, out, mesh=mesh, layout=layout, steps=3, dtype="float32"), QUIET)
        run.train()
        losses.append([row["loss"] for row in read_metrics(run.directory / "metrics.jsonl") if "loss" in row])
    np.testing.assert_allclose(*losses, rtol=1e-3)


@pytest.mark.exhaustive
def test_the_preset_tells_shapes_apart(tmp_path):
    """`meshax train --preset resnet-tiny`, as docs/giant_images.md has it."""
    result = Run(TrainConfig(preset="resnet-tiny", out=str(tmp_path / "run")), QUIET).train()
    assert result.metrics["accuracy"] > 0.9


MISTAKES = {
    "classes that shapes do not have": (
        TrainingError,
        lambda folder: ImageExamples.open(config(folder, model_={"classes": 4}), QUIET),
        """
        images of shapes do not fit this model.
          values: classes 4
          rule: they have 6 classes: disc, ring, square, triangle, cross, bar.
          fix: give data.images= and data.labels=, or model.classes=6.
        """,
    ),
    "too few images": (
        TrainingError,
        lambda folder: ImageExamples.open(config(folder, data=DataOptions(**write_images(folder, 1))), QUIET),
        """
        there are too few images to hold one out.
          values: 1 of them
          rule: every tenth image is held out, and at least one.
          fix: give more images, or pass data.validation_images=FILE and data.validation_labels=FILE.
        """,
    ),
    "text": (
        ArgumentError,
        lambda folder: config(folder, data=DataOptions(text=("a.txt",))).data.check_kind("images"),
        """
        data.text is 'a.txt', and the model learns from images.
          fix: leave it out; images are data.images= and data.labels=.
        """,
    ),
}


@pytest.mark.parametrize(("error", "wrong", "text"), MISTAKES.values(), ids=MISTAKES)
def test_messages(tmp_path, error, wrong, text):
    with pytest.raises(error) as raised:
        wrong(tmp_path)
    assert str(raised.value) == dedent(text).strip()
