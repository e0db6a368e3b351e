"""A file of options has every option, says what each is, and gives back what was written."""

import tomllib
from dataclasses import fields

import pytest

from meshax.train.config import TrainConfig
from meshax.train.options import DataOptions, OptimizerOptions, TrainOptions, flat, read_options
from meshax.train.toml import as_toml

ODD = 'a "quoted" \\ back\tslash\x7f, ünïcode'
OPTIONS = {
    "as they are": TrainOptions(),
    "resolved": TrainConfig(preset="lm-0.14b", vocab=500, optimizer=OptimizerOptions(name="adafactor")).resolved(),
    "with all kinds of values": TrainOptions(
        model_={"kv_heads": 2, "window": "none", "tied": True, "dropout": 0.5},
        from_="runs/x",
        out=ODD,
        data=DataOptions(text=("a", ODD), lines=True),
        optimizer=OptimizerOptions(weight_decay=0.1, beta1=0.5, clip=1e-30),
    ),
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_what_is_written_is_read_back(options, tmp_path):
    path = tmp_path / "config.toml"
    path.write_text(as_toml(options), encoding="utf-8")
    again = read_options(path, type(options))
    if isinstance(options, TrainConfig):  # TOML has no word for nothing: fields of the model say "none"
        assert again.model() == options.model() and again.resolved() == options
    else:
        assert again == options


def test_every_option_is_there_and_is_explained():
    text = as_toml(TrainConfig().resolved())
    names = {name for name in flat(TrainConfig().resolved().as_dict())}
    written = set(flat(tomllib.loads(text)))
    o = TrainConfig().resolved().optimizer
    unset = {f"optimizer.{field.name}" for field in fields(OptimizerOptions) if getattr(o, field.name) is None}
    unset |= {"dropout"}  # the model says it
    assert written == names - unset and all(f"# {name.rpartition('.')[2]} =" in text for name in unset)
    lines = [line for line in text.splitlines()[1:] if line and not line.startswith("[")]
    assert not [line for line in lines if "  # " not in line]
