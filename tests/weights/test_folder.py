"""Folders: one file or many, and what is wrong with them."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from meshax import CheckpointError
from meshax.weights import Folder
from messages import pinned

GOLDEN = Path(__file__).parents[1] / "golden" / "hugging_face"


def test_one_file_and_many():
    one, many = Folder(GOLDEN / "llama"), Folder(GOLDEN / "qwen3")
    assert list(one.files) == ["model.safetensors"] and len(many.files) == 4
    assert many.tensors["model.norm.weight"].shape == (16,)
    assert (
        many.file_of["model.norm.weight"]
        == json.loads((GOLDEN / "qwen3/model.safetensors.index.json").read_text())["weight_map"]["model.norm.weight"]
    )
    assert np.isfinite(many.array("model.norm.weight").astype(np.float32)).all()
    assert [path.name for path in one.documents()] == [
        "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip


def changed_index(change):
    path = Path("qwen3/model.safetensors.index.json")
    index = json.loads(path.read_text())
    change(index["weight_map"])
    path.write_text(json.dumps(index))
    return Folder("qwen3")


def without(name, folder="qwen3"):
    Path(folder, name).unlink()
    return Folder(folder)


def only_a_pickle():
    Path("llama/pytorch_model.bin").write_bytes(b"\x80\x04.")
    return without("model.safetensors", "llama")


def not_json():
    Path("llama/config.json").write_text("[1]")
    return Folder("llama")


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("llama", "qwen3"):
        shutil.copytree(GOLDEN / name, name)


test_messages = pinned(
    {
        "no folder": (
            CheckpointError,
            lambda: Folder("nowhere"),
            """
            there is no such folder of weights.
              values: nowhere
              fix: name one with a config.json.
            """,
        ),
        "a pickle": (
            CheckpointError,
            only_a_pickle,
            """
            a folder lacks files of weights.
              values: llama: no model.safetensors; pytorch_model.bin
              rule: weights are read from safetensors files; pickles (.bin, .pt) could run any code, and never are.
              fix: fetch the folder again, or save the model with save_pretrained(safe_serialization=True).
            """,
        ),
        "a file of several": (
            CheckpointError,
            lambda: without("model-00002-of-00004.safetensors"),
            """
            a folder lacks files of weights.
              values: qwen3: no model-00002-of-00004.safetensors
              rule: weights are read from safetensors files; pickles (.bin, .pt) could run any code, and never are.
              fix: fetch the folder again, or save the model with save_pretrained(safe_serialization=True).
            """,
        ),
        "a path in the index": (
            CheckpointError,
            lambda: changed_index(lambda index: index.update({"model.norm.weight": "../llama/model.safetensors"})),
            """
            the index of a folder of weights is damaged.
              values: qwen3/model.safetensors.index.json
              rule: its "weight_map" says for each tensor in which file of the folder it is.
              fix: fetch the folder again.
            """,
        ),
        "another index": (
            CheckpointError,
            lambda: changed_index(lambda index: index.pop("model.norm.weight")),
            """
            the files of a folder of weights are not as its index says.
              values: model.norm.weight: model-00004-of-00004.safetensors, not no file
              fix: fetch the folder again.
            """,
        ),
        "configuration": (
            CheckpointError,
            not_json,
            """
            'config.json' of a folder of weights cannot be read.
              values: llama/config.json: it holds no table
              fix: name a folder that save_pretrained, or meshax export, has written.
            """,
        ),
    }
)
