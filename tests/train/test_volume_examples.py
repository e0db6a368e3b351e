"""Runs that segment volumes, synthetic or from files: what they read, say, draw and evaluate on."""

import io
import json
from textwrap import dedent

import numpy as np
import pytest
from matplotlib import image as pictures
from rich.console import Console

from meshax.data.synthetic_ct import draw_case, make_block
from meshax.errors import ArgumentError, DataError, TrainingError
from meshax.interrupts import Stopped
from meshax.train.config import TrainConfig
from meshax.train.loop import Run, run_config
from meshax.train.metrics import read_metrics
from meshax.train.options import DataOptions
from meshax.train.text_options import TextOptions
from meshax.train.volume_examples import VolumeExamples
from runs import SMALL_UNET, small_unet

QUIET = Console(quiet=True)


def losses(run):
    return [row["loss"] for row in read_metrics(run.directory / "metrics.jsonl") if "loss" in row]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A whole run, and what it said."""
    console = Console(record=True, width=300, file=io.StringIO())
    run = Run(small_unet(tmp_path_factory.mktemp("volumes")), console)
    run.train()
    return run, console.export_text()


def test_a_run_says_and_writes(trained):
    run, said = trained
    assert "data    8,640 voxels, 20,736 held out; 4 steps are 1.6 epochs" in said
    assert "batch   2 x 12 x 12 x 12 = 3,456 voxels a step" in said
    result = json.loads((run.directory / "result.json").read_text())
    assert (result["cases"], result["held_out_cases"], result["voxels"]) == (5, 12, 12 * 12**3)
    assert {"dice_liver", "dice_lesion"} <= set(result)
    rows = read_metrics(run.directory / "metrics.jsonl")
    assert [row["step"] for row in rows if "dice_liver" in row] == [2, 4]


def test_a_run_draws_slices(trained):
    run, _ = trained
    picture = pictures.imread(run.directory / "slices.png")
    assert picture.shape[0] > 300 and picture.std() > 0.1  # an image, the truth and the prediction of two volumes
    events = b"".join(path.read_bytes() for path in run.directory.glob("events/*"))
    assert events.count(b"\x89PNG") == 2  # after 2 steps, and after 4


def test_a_run_is_evaluated_again(trained):
    run, _ = trained
    looking = Run(run_config(run.directory), QUIET, read_only=True)
    again = looking.evaluate(looking.restored()[0].model)
    expected = json.loads((run.directory / "result.json").read_text())
    assert again.metrics["dice_liver"] == pytest.approx(expected["dice_liver"], abs=1e-6)


@pytest.mark.exhaustive
def test_a_stopped_run_goes_on_exactly(trained, tmp_path, monkeypatch):
    stopping = Run(small_unet(tmp_path), QUIET)
    evaluate = stopping.evaluate

    def stop(*args, **options):
        evaluate(*args, **options)
        raise Stopped(2)

    monkeypatch.setattr(stopping, "evaluate", stop)
    with pytest.raises(Stopped):
        stopping.train()
    going_on = Run(small_unet(tmp_path), QUIET)
    going_on.train()
    assert losses(going_on) == losses(trained[0])


LAYOUTS = {
    "batch:data": "data:2 model:2",
    "batch:data x:model": "data:2 model:2",
    "x:data y:model": "data:2 model:4",
    "x:a y:b z:c": "a:2 b:2 c:2",
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_changes_no_loss(trained, tmp_path, layout):
    run = Run(small_unet(tmp_path, mesh=LAYOUTS[layout], layout=layout), QUIET)
    run.train()
    np.testing.assert_allclose(losses(run), losses(trained[0]), rtol=2e-4)


@pytest.mark.exhaustive
def test_the_preset_finds_the_liver(tmp_path):
    """`meshax train --preset unet-tiny`, as docs/giant_images.md has it: a few minutes on two cores."""
    result = Run(TrainConfig(preset="unet-tiny", out=str(tmp_path / "run")), QUIET).train()
    assert result.metrics["dice_liver"] > 0.85


def write_volumes(folder, count=3, size=(15, 12, 13)):
    folder.mkdir(exist_ok=True)
    for number in range(count):
        image, labels = make_block(draw_case(0, number), size)
        np.save(folder / f"image-{number}.npy", image)
        np.save(folder / f"labels-{number}.npy", np.array((0, 0, 0, 1, 2), np.uint8)[labels])
    return {"images": (str(folder / "image-*.npy"),), "labels": (str(folder / "labels-*.npy"),)}


def opened(tmp_path, data, **options):
    return VolumeExamples.open(small_unet(tmp_path, data=DataOptions(**data), **options), QUIET)


def test_files_are_read_and_one_is_held_out(tmp_path):
    examples = opened(tmp_path, write_volumes(tmp_path / "scans"))
    assert examples.facts() == {"cases": 2, "held_out_cases": 1}
    assert examples.amounts() == (2 * 15 * 12 * 13, 15 * 12 * 13)
    sizes = {"batch": 2, "x": 12, "y": 12, "z": 12}
    batches = list(examples.held_out_batches(sizes))
    assert len(batches) == 2 and sum(np.asarray(batch["weights"]).sum() for batch in batches) == 15 * 12 * 13
    crop = np.asarray(next(examples.stream(sizes, seed=0))["weights"])
    assert (crop == 1).all()


def test_a_tenth_is_held_out_or_what_is_named(tmp_path):
    many = write_volumes(tmp_path / "many", count=12, size=(4, 4, 4))
    assert opened(tmp_path, many).facts() == {"cases": 10, "held_out_cases": 2}
    few = write_volumes(tmp_path / "few", count=1, size=(4, 4, 4))
    named = {f"validation_{name}": value for name, value in few.items()}
    assert opened(tmp_path, many | named).facts() == {"cases": 12, "held_out_cases": 1}


def test_other_volumes_are_evaluated_on(trained, tmp_path):
    looking = Run(run_config(trained[0].directory), QUIET, read_only=True)
    looking.use_other_text(TextOptions(**write_volumes(tmp_path / "others", count=1, size=(12, 12, 20))))
    assert looking.evaluate(looking.restored()[0].model).count == 12 * 12 * 20


def test_what_is_wrong_with_a_volume_stops_the_run(tmp_path):
    data = write_volumes(tmp_path / "scans")
    np.save(tmp_path / "scans" / "image-1.npy", np.full((15, 12, 13), np.nan))
    with pytest.raises(DataError, match=r"'image-1.npy' has voxels that are not numbers"):
        Run(small_unet(tmp_path, data=DataOptions(**data)), QUIET).train()


def test_voxels_by_side(tmp_path):
    config = small_unet(tmp_path, voxels=(12, 8, 16))
    assert config.sizes() == {"batch": 2, "x": 12, "y": 8, "z": 16}
    assert config.resolved().voxels == (12, 8, 16) and config.resolved().sizes() == config.sizes()
    assert small_unet(tmp_path, voxels=()).sizes() == {"batch": 2, "x": 32, "y": 32, "z": 32}


MISTAKES = {
    "too few volumes": (
        TrainingError,
        lambda folder: opened(folder, write_volumes(folder / "one", count=1)),
        """
        there are too few volumes to hold one out.
          values: 1 of them
          rule: every tenth volume is held out, and at least one.
          fix: give more volumes, or pass data.validation_images=FILES and data.validation_labels=FILES.
        """,
    ),
    "classes that synthetic volumes do not have": (
        TrainingError,
        lambda folder: opened(folder, {}, model_=SMALL_UNET | {"classes": 4, "class_weights": "1 1 1 1"}),
        """
        synthetic volumes do not fit this model.
          values: channels 1, classes 4
          rule: they have 1 channel, and 2, 3, 5 classes.
          fix: give data.images= and data.labels=, or choose other fields of the model.
        """,
    ),
    "too many sides": (
        ArgumentError,
        lambda folder: small_unet(folder, voxels=(8, 8)).sizes(),
        """
        voxels is 8 8.
          rule: the sides of an example are x, y, z.
          fix: give a number for each, or one for all.
        """,
    ),
    "sides of a text": (
        ArgumentError,
        lambda folder: small_unet(folder, preset="tiny", model_={}).sizes(),
        """
        voxels is 12.
          rule: an example has none.
          fix: leave it out, or choose a model of volumes.
        """,
    ),
    "no voxels": (
        ArgumentError,
        lambda folder: small_unet(folder, voxels=(0,)).check(),
        """
        voxels is 0.
          fix: give numbers, 1 or more.
        """,
    ),
}


@pytest.mark.parametrize(("error", "wrong", "text"), MISTAKES.values(), ids=MISTAKES)
def test_messages(tmp_path, error, wrong, text):
    with pytest.raises(error) as raised:
        wrong(tmp_path)
    assert str(raised.value) == dedent(text).strip()
