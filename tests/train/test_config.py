"""What a run is told: read from files, checked in the first second."""

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

import meshax as mx
from meshax.errors import TrainingError
from meshax.train.config import TrainConfig
from meshax.train.loop import run_config
from meshax.train.options import OptimizerOptions, read_options
from messages import pinned


def checked(**changes):
    """Checks a run on 8 processors that is wrong in one thing."""
    return lambda: TrainConfig(**changes).check()


def optimizer(**changes):
    return checked(optimizer=OptimizerOptions(**changes))


def read(name, text):
    """Reads a file of that name, beside no other."""

    def run():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, name)
            path.write_text(text)
            return read_options(path, TrainConfig)

    return run


MISTAKES = {
    "preset": (
        mx.ArgumentError,
        checked(preset="tinny"),
        """
        there is no preset 'tinny'.
          fix: did you mean "tiny" or "wmt-tiny"?
        """,
    ),
    "optimizer": (
        mx.ArgumentError,
        optimizer(name="adam"),
        """
        there is no optimizer 'adam'.
          fix: did you mean "adamw"?
        """,
    ),
    "schedule": (
        mx.ArgumentError,
        optimizer(schedule="cosinus"),
        """
        there is no schedule 'cosinus'.
          fix: did you mean "cosine"?
        """,
    ),
    "warm-up longer than the run": (
        mx.ArgumentError,
        optimizer(warmup=600),
        """
        of 600 steps, 600 cannot be warm-up.
          fix: choose fewer steps of warm-up than steps.
        """,
    ),
    "rate": (
        mx.ArgumentError,
        optimizer(rate=float("nan")),
        """
        optimizer.rate is nan.
          fix: give a number, 0 or more.
        """,
    ),
    "no rate for this optimizer": (
        mx.ArgumentError,
        optimizer(name="sgd"),
        """
        no learning rate suits the optimizer 'sgd' always.
          fix: give optimizer.rate=.
        """,
    ),
    "an option of another optimizer": (
        mx.ArgumentError,
        optimizer(name="sgd", rate=0.1, beta1=0.5),
        """
        the optimizer 'sgd' has no option 'beta1'.
          fix: known names: decay_skips, momentum, nesterov, weight_decay.
        """,
    ),
    "a momentum of 1": (
        mx.ArgumentError,
        optimizer(name="momentum", rate=0.1, momentum=1.0),
        """
        optimizer.momentum is 1.0.
          fix: give a number below 1, as in 0.9.
        """,
    ),
    "a negative weight decay": (
        mx.ArgumentError,
        optimizer(weight_decay=-0.1),
        """
        optimizer.weight_decay is -0.1.
          fix: give a number, 0 or more.
        """,
    ),
    "a field of the model that there is not": (
        mx.ArgumentError,
        checked(model_={"d_modle": 4}),
        """
        the model has no field 'd_modle'.
          fix: did you mean "d_model"?
        """,
    ),
    "a field of the model twice": (
        mx.ArgumentError,
        checked(vocab=300, model_={"vocab": 400}),
        """
        vocab is 300, and model.vocab is 400.
          fix: leave one of them out.
        """,
    ),
    "a kind of model without sizes": (
        mx.ArgumentError,
        checked(preset="decoder", optimizer=OptimizerOptions(rate=0.1)),
        """
        nothing says the batch and the length of a step.
          rule: 'decoder' is a kind of model, and has no sizes of its own.
          fix: give batch= and length=, or start from a preset.
        """,
    ),
    "a kind of model without a rate": (
        mx.ArgumentError,
        checked(preset="decoder", batch=8, length=16),
        """
        no learning rate suits the optimizer 'adamw' always.
          fix: give optimizer.rate=.
        """,
    ),
    "microbatches": (
        mx.ArgumentError,
        optimizer(microbatches=0),
        """
        optimizer.microbatches is 0.
          fix: give a number, 1 or more.
        """,
    ),
    "steps": (
        mx.ArgumentError,
        checked(steps=-1),
        """
        steps is -1.
          fix: give a number, 0 or more.
        """,
    ),
    "length": (
        mx.ArgumentError,
        checked(length=-1),
        """
        length is -1.
          fix: give a number, 0 or more.
        """,
    ),
    "on_nan": (
        mx.ArgumentError,
        checked(on_nan="ignore"),
        """
        on_nan is 'ignore'.
          fix: choose "stop" or "skip".
        """,
    ),
    "dtype": (
        mx.ArgumentError,
        checked(dtype="bfloat"),
        """
        there is no floating dtype 'bfloat'.
          fix: did you mean "bfloat16" or "float32"?
        """,
    ),
    "keep": (
        mx.ArgumentError,
        checked(keep="most"),
        """
        keep is 'most'.
          fix: choose "nothing", "collectives", "products", "all products", "everything" or "auto".
        """,
    ),
    "microbatches that do not divide the batch": (
        TrainingError,
        checked(batch=8, optimizer=OptimizerOptions(microbatches=3)),
        """
        a batch of 8 cannot be cut into 3 microbatches.
          rule: microbatches have one size.
          fix: choose optimizer.microbatches=2 or 4, or batch=9.
        """,
    ),
    "more microbatches than examples": (
        TrainingError,
        checked(mesh="data:8", layout="data", batch=6, optimizer=OptimizerOptions(microbatches=7)),
        """
        a batch of 6 cannot be cut into 7 microbatches.
          rule: microbatches have one size.
          fix: choose optimizer.microbatches=6, or batch=56.
        """,
    ),
    "dropout": (
        mx.ArgumentError,
        checked(dropout=1.0),
        """
        a dropout rate is at least 0 and less than 1, not 1.0.
          fix: for example 0.1.
        """,
    ),
    "a batch smaller than the axis": (
        TrainingError,
        checked(mesh="data:8", layout="data", batch=4),
        """
        a batch of 4 is too small for this layout.
          values: processors that split it: 8; microbatches: 1
          rule: every processor has at least one example of each microbatch.
          fix: choose batch=8 or a multiple of it.
        """,
    ),
    "a name of no layout": (
        mx.LayoutError,
        checked(layout="dat"),
        """
        there is no layout named 'dat'.
          rule: a layout is a name, or rules such as "batch:data heads:model".
          fix: did you mean "data"?
        """,
    ),
    "an option that there is not, TOML": (
        mx.ArgumentError,
        read("run.toml", 'presett = "tiny"'),
        """
        run.toml has an option 'presett' that there is not.
          fix: did you mean "preset"?
        """,
    ),
    "an option that there is not, JSON, inside": (
        mx.ArgumentError,
        read("run.json", '{"optimizer": {"rat": 1}}'),
        """
        run.json has an option 'optimizer.rat' that there is not.
          fix: did you mean "rate"?
        """,
    ),
    "a wrong value": (
        mx.ArgumentError,
        read("run.toml", 'steps = "ten"'),
        """
        run.toml gives the option 'steps' a wrong value.
          values: 'ten'
          rule: it is like 0.
          fix: correct it, or leave it out.
        """,
    ),
    "a word where there may be a number": (
        mx.ArgumentError,
        read("run.toml", '[optimizer]\nbeta1 = "high"'),
        """
        run.toml gives the option 'optimizer.beta1' a wrong value.
          values: 'high'
          rule: it is a number, or none.
          fix: correct it, or leave it out.
        """,
    ),
    "a number where there are options": (
        mx.ArgumentError,
        read("run.json", '{"data": 5}'),
        """
        run.json gives the option 'data' a wrong value.
          values: 5
          rule: it is a table, [data].
          fix: correct it, or leave it out.
        """,
    ),
    "a text where there are several": (
        mx.ArgumentError,
        read("run.toml", '[data]\ntext = "a.txt"'),
        """
        run.toml gives the option 'data.text' a wrong value.
          values: 'a.txt'
          rule: it is a list of texts, as in ["a", "b"].
          fix: correct it, or leave it out.
        """,
    ),
    "a number where there are several": (
        mx.ArgumentError,
        read("run.toml", "[data]\nweights = 2.0"),
        """
        run.toml gives the option 'data.weights' a wrong value.
          values: 2.0
          rule: it is a list of numbers.
          fix: correct it, or leave it out.
        """,
    ),
    "options where there is a number": (
        mx.ArgumentError,
        read("run.json", '{"steps": {"a": 1}}'),
        """
        run.json gives the option 'steps' a wrong value.
          values: {'a': 1}
          rule: it is like 0.
          fix: correct it, or leave it out.
        """,
    ),
    "no run": (
        TrainingError,
        lambda: run_config("/nowhere"),
        """
        there is no run in '/nowhere'.
          fix: name the directory that meshax train or import wrote (out=).
        """,
    ),
}

test_messages = pinned(MISTAKES)


def test_a_rule_for_no_dim():
    with pytest.raises(mx.LayoutError, match="the layout does not fit the mesh or the program"):
        TrainConfig(layout="bacth:data").check()


def test_what_is_not_given_follows_from_the_preset():
    given = TrainConfig(preset="lm-0.14b", optimizer=OptimizerOptions(name="adafactor", schedule="constant", warmup=0))
    assert float(given.make_optimizer().optimizer.rate(5)) == pytest.approx(0.01)
    names = [str(TrainConfig(preset=name).directory()) for name in ("tiny", "modern-1b")]
    assert names == ["runs/tiny", "runs/modern-1b"]
    assert str(TrainConfig(out="elsewhere").directory()) == "elsewhere"
    mesh, _ = TrainConfig().placed()
    assert mesh.axes == {"data": 2, "model": 4}


def test_a_field_said_twice_alike_is_no_contradiction():
    """Fields of the command line are text, and an option by itself is a number."""
    assert TrainConfig(vocab=300, model_={"vocab": "300", "dropout": "0.5"}, dropout=0.5).model().vocab == 300
    with pytest.raises(mx.ArgumentError, match=r"^dropout is 0\.5, and model\.dropout is '0'\.\n"):
        TrainConfig(model_={"dropout": "0"}, dropout=0.5).model()
    with pytest.raises(mx.ArgumentError, match=r"^dropout is 0\.0, and model\.dropout is '0\.5'\.\n"):
        TrainConfig(model_={"dropout": "0.5"}, dropout=0.0).model()


def test_nothing_is_dropped_and_layers_are_as_suits_on_request():
    """Both are what other options mean by "the preset's"."""
    assert TrainConfig(preset="wmt-baseline").model().dropout == 0.1
    assert TrainConfig(preset="wmt-baseline", dropout=0.0).model().dropout == 0.0
    assert TrainConfig(model_={"layers_as": "loop"}, preset="lm-0.14b").model().layers_as == "loop"
    with pytest.raises(mx.ArgumentError, match="layers_as is 'auto', and model.layers_as is 'loop'"):
        TrainConfig(model_={"layers_as": "loop"}, layers_as="auto").model()


def test_every_option_of_an_optimizer_reaches_it():
    options = OptimizerOptions("adafactor", weight_decay=0.1, epsilon=1e-9, momentum=0.5, decay_exponent=0.7)
    inner = TrainConfig(optimizer=replace(options, decay_skips=("norm",))).make_optimizer().optimizer
    assert (inner.weight_decay, inner.epsilon, inner.momentum, inner.decay_exponent) == (0.1, 1e-9, 0.5, 0.7)
    assert inner.decay_skips == ("norm",)
    rates = [
        float(
            TrainConfig(steps=100, optimizer=OptimizerOptions(schedule=name, warmup=10, min_rate=1e-4)).schedule()(99)
        )
        for name in ("cosine", "linear")
    ]
    assert rates == pytest.approx([1e-4, 1e-4], rel=0.5) and rates[0] != rates[1]


def test_resolving_changes_nothing_and_leaves_nothing_open():
    config = TrainConfig(preset="lm-0.14b", vocab=500, model_={"layers": "2"}, steps=50, batch=8, mesh="data:8")
    resolved = replace(config, layout="data").resolved()
    assert resolved.model() == config.model() and resolved.sizes() == config.sizes() == {"batch": 8, "length": 256}
    assert resolved.resolved() == resolved and resolved.model_["layers"] == 2 and resolved.length == 256
    o = resolved.optimizer
    assert (o.name, o.rate, o.schedule, o.warmup, o.cooldown, o.clip) == ("adafactor", 0.01, "paper", 3, 5, 0.0)


def test_the_presets_recipe_is_what_nobody_asks_otherwise():
    paper, usual = TrainConfig(preset="lm-0.14b").resolved(), TrainConfig(steps=50).resolved()
    assert paper.steps == 136_000 and paper.optimizer.warmup == 10_000 and paper.optimizer.count_padding
    rate = TrainConfig(preset="lm-0.14b").schedule()
    assert [float(rate(step)) for step in (9_999, 39_999, 129_200, 136_000)] == pytest.approx(
        [0.01, 0.005, 0.01 * (10_000 / 129_201) ** 0.5 / 2, 0.0]
    )
    o = usual.optimizer
    assert (usual.steps, o.name, o.schedule, o.warmup, o.clip, o.count_padding) == (
        50,
        "adamw",
        "cosine",
        5,
        1.0,
        False,
    )
    asked = OptimizerOptions("sgd", 0.1, "constant", warmup=0, clip=2.0, count_padding=False)
    o = TrainConfig(preset="wmt-0.15b", optimizer=asked, steps=10).resolved().optimizer
    assert (o.name, o.rate, o.schedule, o.warmup, o.clip, o.count_padding) == ("sgd", 0.1, "constant", 0, 2.0, False)


def test_a_mesh_larger_than_the_devices():
    with pytest.raises(mx.MeshError, match="the mesh has 16 processors, but there are only 8 devices"):
        TrainConfig(mesh="data:16", layout="data").check()


def test_an_axis_that_there_is_not():
    with pytest.raises(mx.LayoutError, match="modle"):
        TrainConfig(layout="batch:data heads:modle").check()
    with pytest.raises(mx.LayoutError, match="rings: no mesh axis 'modle'"):
        TrainConfig(rings="modle").check()
    with pytest.raises(mx.LayoutError, match="needs the mesh axes data and model"):
        TrainConfig(mesh="data:8").check()


def test_other_processors_need_other_rules_for_what_is_stored(tmp_path):
    config = TrainConfig(param_layout="d_model:data", optimizer_layout="d_model:data", rings="model")
    (tmp_path / "config.json").write_text(config.to_json())
    assert run_config(tmp_path).param_layout == "d_model:data" and run_config(tmp_path).rings == "model"
    assert run_config(tmp_path, mesh="x:1", layout="none") == replace(
        config, mesh="x:1", layout="none", param_layout="", optimizer_layout="", rings="", out=str(tmp_path)
    )
    assert json.loads(run_config(tmp_path).to_json())["out"] == str(tmp_path)
