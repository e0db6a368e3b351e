"""Options are read from files as they were written, and what is no such file says so."""

from pathlib import Path

import pytest

import meshax as mx
from meshax.train.options import DataOptions, OptimizerOptions, TrainOptions, read_options


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.toml", "steps = "), ("a.json", "{"), ("a.json", "[]"), ("a.json", b"\xff\xfe"), ("missing.toml", None)],
    ids=str,
)
def test_a_file_that_is_no_configuration(tmp_path, name, content):
    if content is not None:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(mx.ArgumentError, match=f"'{name}' cannot be read as a configuration"):
        read_options(tmp_path / name, TrainOptions)


def test_a_word_for_no_value(tmp_path):
    (tmp_path / "a.toml").write_text('[optimizer]\nweight_decay = "none"\n')
    assert read_options(tmp_path / "a.toml", TrainOptions) == TrainOptions()


def test_a_folder_is_named_as_it_was(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(mx.ArgumentError, match=r"^'\.' cannot be read as a configuration"):
        read_options(Path("."), TrainOptions)


def test_files_give_back_what_was_written(tmp_path):
    options = TrainOptions(steps=7, data=DataOptions(text=("a", "b"), lines=True), optimizer=OptimizerOptions(rate=1))
    (tmp_path / "config.json").write_text(options.to_json())
    assert read_options(tmp_path / "config.json", TrainOptions) == options
    (tmp_path / "run.toml").write_text('steps = 7\n[data]\ntext = ["a", "b"]\nlines = true\n[optimizer]\nrate = 1')
    assert read_options(tmp_path / "run.toml", TrainOptions) == options


def test_weights_and_fields_are_read_from_files(tmp_path):
    data = DataOptions(text=("a", "b"), weights=(5.0, 2.5), field=("text", "body"), max_bytes=10, errors="replace")
    (tmp_path / "config.json").write_text(TrainOptions(data=data).to_json())
    assert read_options(tmp_path / "config.json", TrainOptions).data == data
    text = '[data]\ntext = ["a", "b"]\nweights = [5, 2.5]\nfield = ["text", "body"]\nmax_bytes = 10\nerrors = "replace"'
    (tmp_path / "run.toml").write_text(text)
    assert read_options(tmp_path / "run.toml", TrainOptions).data == data
    (tmp_path / "run.toml").write_text('[data]\nweights = [5, "2"]')
    with pytest.raises(mx.ArgumentError, match="'data.weights' a wrong value"):
        read_options(tmp_path / "run.toml", TrainOptions)
