"""What every model offers, so that training, planning and decoding know none by name."""

import dataclasses
from pathlib import Path

import jax
import pytest

import meshax as mx
from meshax.models.contract import Preset
from meshax.models.presets import KINDS, PRESETS
from meshax.tensors import is_tensor
from meshax.train.examples import KINDS as EXAMPLES
from meshax.train.examples import batch_shapes
from meshax.train.step import evaluation_step

ONE_OF_EACH = list({type(preset.model): preset for preset in PRESETS.values()}.values())
KEY = jax.random.key(0)


def small(preset: Preset) -> Preset:
    """The first of its kind; nothing of it is made, so that it may be large."""
    least = 8 if "x" in preset.batch else 4  # images are halved level by level
    return dataclasses.replace(preset, batch={name: min(size, least) for name, size in preset.batch.items()})


def dims_of(tree):
    """The sizes of all dims by name: the largest, where layers differ."""
    dims = [dim for x in jax.tree.leaves(tree, is_leaf=is_tensor) if is_tensor(x) for dim in x.dims]
    return {dim.name: max(d.size for d in dims if d.name == dim.name) for dim in dims}


def test_every_kind_has_a_preset():
    assert len(ONE_OF_EACH) == len(KINDS)


@pytest.mark.parametrize("preset", PRESETS.values(), ids=lambda preset: preset.name)
def test_the_glossary_has_every_dim_and_its_size(preset):
    config = preset.model
    parameters, batch = dims_of(jax.eval_shape(config.make, KEY)), dims_of(config.batch(preset.batch))
    assert {*parameters, *batch} <= set(config.glossary)
    assert {name: size for name, size in config.sizes().items() if name in parameters} == parameters
    assert preset.batch.items() <= batch.items()  # and what the configuration says itself: channels of an image


@pytest.mark.parametrize("preset", [small(preset) for preset in ONE_OF_EACH], ids=lambda preset: preset.name)
def test_the_loss_takes_what_the_configuration_describes(preset):
    model = jax.eval_shape(preset.model.make, KEY)
    batch = preset.model.batch(preset.batch)
    assert all("batch" in [d.name for d in x.dims] for x in batch.values())
    has_examples = preset.model.batch_kind in EXAMPLES  # otherwise a model to plan and measure, not yet to train
    for full in (batch, batch_shapes(preset.model, preset.batch)) if has_examples else (batch,):
        loss, count = jax.eval_shape(lambda model, batch: model.loss(batch, KEY), model, full)
        assert loss.dims == count.dims == ()
        sums = jax.eval_shape(evaluation_step, model, full)
        assert {"loss", "count"} <= set(sums) and all(x.dims == () for x in sums.values())
    assert all(isinstance(value, float) for value in preset.model.metrics(dict.fromkeys(sums, 0.5)).values())
    while_training = preset.model.metrics({"loss": 0.5})  # all that is known then; of an overlap, nothing
    assert while_training or any("dice" in name for name in preset.model.metrics(dict.fromkeys(sums, 0.5)))


@pytest.mark.parametrize("preset", ONE_OF_EACH, ids=lambda preset: preset.name)
def test_a_configuration_is_plain_data(preset):
    """So that it can be saved with a run, and be given on the command line."""
    fields = dataclasses.asdict(preset.model)
    assert all(isinstance(value, bool | int | float | str | None) for value in fields.values())
    assert set(preset.model.may_change) <= set(fields)
    with pytest.raises(dataclasses.FrozenInstanceError):
        preset.model.d_model = 3
    assert hash(preset.model) == hash(dataclasses.replace(preset.model))


@pytest.mark.parametrize("preset", ONE_OF_EACH, ids=lambda preset: preset.name)
def test_the_documents_have_the_glossary(preset):
    shown = (Path(__file__).parents[2] / "docs" / "presets.md").read_text(encoding="utf-8")
    assert "\n".join(f"| `{name}` | {words} |" for name, words in preset.model.glossary.items()) in shown


@pytest.mark.parametrize("preset", ONE_OF_EACH, ids=lambda preset: preset.name)
def test_layouts_know_the_glossary_before_any_dim_is_made(preset):
    for name in preset.model.glossary:
        mx.put((), mx.Mesh("x:1"), f"{name}:x")
