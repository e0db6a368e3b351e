"""Options in YAML are those in TOML; what would be an object is refused."""

import pytest

from meshax.errors import ArgumentError
from meshax.train.options import DataOptions, OptimizerOptions, TrainOptions, read_options
from meshax.train.yaml import read_yaml

FILE = """
# a comment
preset: lm-0.14b
steps: 50
voxels: [8, 8]
layout: "batch:data heads:model"
dropout: 0
model:
  layers: 3
  window: none
  tied: true
data: {text: [a.txt, "ü.txt"], lines: true}
optimizer:
  rate: 3e-4
  clip: 1
  weight_decay: 1.e-2
"""


def test_options_are_read_as_from_toml(tmp_path):
    wanted = TrainOptions(
        "lm-0.14b", {"layers": 3, "window": "none", "tied": True}, layout="batch:data heads:model", steps=50,
        voxels=(8, 8), dropout=0.0, data=DataOptions(text=("a.txt", "ü.txt"), lines=True),
        optimizer=OptimizerOptions(rate=3e-4, clip=1.0, weight_decay=0.01),
    )  # fmt: skip
    for name in ("run.yaml", "run.yml"):
        (tmp_path / name).write_text(FILE, encoding="utf-8")
        assert read_options(tmp_path / name, TrainOptions) == wanted


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("!!python/object/apply:os.system [id]", "could not determine a constructor"),
        ("steps: !!python/name:os.system", "could not determine a constructor"),
        ("steps: 1\nsteps: 2", "'steps' is there twice"),
        ("optimizer: {rate: 1.0, rate: 2.0}", "'rate' is there twice"),
        ("steps: [1", "expected"),
        ("? [a, b]\n: 1", "unhashable"),
        ("steps: 1\n---\nsteps: 2", "expected a single document"),
        ("- steps", "it has no options"),
        ("", "it has no options"),
        ("[" * 3000, ""),
    ],
)
def test_what_is_no_table_of_plain_values_is_refused(text, words, tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(ArgumentError, match="'run.yaml' cannot be read as a configuration") as refused:
        read_options(path, TrainOptions)
    assert words in str(refused.value)


def test_numbers_are_numbers():
    text = "[1e-3, 1E5, -2.5e+3, 3.e2, 1.0, 7, 1e, e5, 12e3x]"
    assert read_yaml(text) == [1e-3, 1e5, -2500.0, 300.0, 1.0, 7, "1e", "e5", "12e3x"]
