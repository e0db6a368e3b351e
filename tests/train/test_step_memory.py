"""What the backward pass keeps is the most that fits; a step that fits nowhere is refused before it begins."""

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

import meshax as mx
from meshax.errors import TrainingError
from meshax.models.recomputation import KEEP
from meshax.plan.explain.report import explain
from meshax.train.config import TrainConfig
from meshax.train.examples import batch_shapes
from meshax.train.loop import Run, run_config
from meshax.train.step_memory import check_memory, fitted, memory_of, step_and_shapes
from runs import small, write_text

CONFIG = TrainConfig(preset="tiny", keep="auto", layout="data")


@pytest.fixture(scope="module")
def needs():
    """The predicted memory of a step, by what it keeps."""
    mesh, layout = CONFIG.placed()
    found = {}
    for keep in KEEP:
        model = replace(CONFIG.model(), keep=keep)
        batch = batch_shapes(model, CONFIG.sizes())
        step, args = step_and_shapes(model, CONFIG.make_optimizer(), batch)
        found[keep] = explain(mx.spmd(step, mesh, layout, donate=0), *args).memory["peak"]
    return found


def test_more_kept_needs_more(needs):
    assert needs["nothing"] <= needs["products"] < needs["everything"]


@pytest.mark.parametrize("keep", ["nothing", "products", "everything"])
def test_the_most_that_fits_is_kept(needs, keep):
    spare = 1.0 if keep == "nothing" else 1.12  # what is kept by choice leaves a tenth of the memory free
    model, line = fitted(replace(CONFIG, memory=str(needs[keep] * spare)), *CONFIG.placed())
    assert needs[model.keep] == needs[keep]
    assert line.startswith(f"the backward pass keeps {model.keep}: ") and line.endswith(" predicted")


def test_what_would_just_fit_is_not_kept_by_choice(needs):
    model, _ = fitted(replace(CONFIG, memory=str(needs["everything"] * 1.05)), *CONFIG.placed())
    assert needs[model.keep] < needs["everything"]
    asked = fitted(replace(CONFIG, keep="everything", memory=str(needs["everything"])), *CONFIG.placed())
    assert asked[0].keep == "everything"


def test_on_accelerators_what_fits_is_kept_unasked(monkeypatch):
    mesh, layout = CONFIG.placed()
    unasked = replace(CONFIG, keep="")
    assert fitted(unasked, mesh, layout) == (unasked.model(), "")
    monkeypatch.setattr(type(mesh), "platform", "tpu")
    assert fitted(unasked, mesh, layout)[0].keep == "everything"


def test_by_default_the_limit_is_the_devices(needs):
    mesh, layout = CONFIG.placed()
    assert memory_of(mesh, "") >= 1e9 and memory_of(mesh, "16GB") == 16e9
    assert fitted(CONFIG, mesh, layout)[0].keep == "everything"


def test_without_being_asked_nothing_is_traced():
    model, line = fitted(replace(CONFIG, keep="products"), *CONFIG.placed())
    assert model.keep == "products" and line == ""


@pytest.mark.parametrize(
    ("keep", "tried", "advice"),
    [("auto", "nothing", "or use more processors."), ("products", "products", 'or pass keep="auto".')],
)
def test_a_step_that_does_not_fit_is_refused(keep, tried, advice):
    with pytest.raises(TrainingError) as error:
        fitted(replace(CONFIG, keep=keep, memory="1MB"), *CONFIG.placed())
    first, values, _, fix = str(error.value).split("\n")
    assert first == "a step does not fit 1 MB on each processor."
    assert values.startswith(f"  values: predicted with keep={tried!r}: ")
    assert fix.endswith(advice)


@pytest.mark.exhaustive
def test_a_run_says_and_saves_what_it_chose(tmp_path):
    write_text(tmp_path / "text")
    said = io.StringIO()
    run = Run(small(tmp_path, keep="auto", memory="1GB", steps=1), Console(file=said, width=200))
    run.train()
    assert "the backward pass keeps everything: " in said.getvalue()
    assert run_config(run.directory).model().keep == "everything"
    assert json.loads((run.directory / "config.json").read_text())["memory"] == "1GB"


def test_a_step_larger_than_the_machine_is_refused_where_nobody_gives_a_limit():
    config = replace(CONFIG, preset="lm-4.90b", keep="products")
    mesh, layout = config.placed()
    batch = batch_shapes(config.model(), config.sizes())
    step, args = step_and_shapes(config.model(), config.make_optimizer(), batch)
    report = explain(mx.spmd(step, mesh, layout, donate=0), *args)
    with pytest.raises(TrainingError) as error:
        check_memory(report, mesh, "products")
    words = str(error.value).splitlines()
    assert words[0].startswith("a step does not fit ") and words[0].endswith(" on each processor.")
    assert words[1].startswith("  values: predicted with keep='products': ")
    assert words[3].endswith("cut the batch into optimizer.microbatches=, or give memory= if there is more.")
