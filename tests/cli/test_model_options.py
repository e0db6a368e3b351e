"""`--model.*` and the sizes of a batch, where a command explains, plans, lays out or measures the step of a preset."""

import json

import pytest

from extent import some
from meshax.cli import main
from meshax.cli.model_options import ModelOptions, given_fields
from meshax.models.contract import parameter_count
from meshax.models.decoder import DecoderConfig

SMALL = dict(d_model=32, heads=4, d_kv=8, d_ff=48, layers=2, vocab=96)
OPTIONS = [word for name, size in SMALL.items() for word in (f"--model.{name.replace('_', '-')}", str(size))]
STEP = ["--preset", "decoder", *OPTIONS, "--batch", "8", "--length", "16"]


def test_only_what_is_given_counts():
    assert given_fields(ModelOptions(d_model="8")) == {"d_model": "8"}


@pytest.mark.parametrize("command", some(["explain", "plan"], "explain"))
def test_from_nothing(command, capsys):
    """Parameters take what those of the model take: 4 bytes each."""
    more = ["--topology", "cpu"] if command == "plan" else []
    assert main([command, *STEP, "--mesh", "data:2", "--layout", "data", "--json", *more]) == 0
    report = json.loads(capsys.readouterr().out)
    memory = report["estimated_memory" if command == "plan" else "memory"]
    assert memory["parameters"] == 4 * parameter_count(DecoderConfig(**SMALL))


def test_wrong_ones_are_2(capsys):
    for words, message in {
        ("--model.heads", "few"): "the field 'heads' of the model cannot be 'few'.",
        ("--model.haeds", "2"): "there is no option --model.haeds.",
    }.items():
        assert main(["explain", *STEP, *words, "--mesh", "data:2"]) == 2
        assert capsys.readouterr().err.startswith(f"meshax: {message}")
    assert main(["layout", "examples/transformer.py:tiny", "--model.heads", "4", "--mesh", "data:2"]) == 2
    assert capsys.readouterr().err.startswith("meshax: --model.*, --batch and --length are of a preset's step.\n")
