"""Models from elsewhere, read onto a mesh, compute what they compute there: the logits of `transformers`."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import meshax as mx
from extent import some
from meshax.plan.search.named_layouts import find_layout
from meshax.weights import Folder, family_of, load

GOLDEN = Path(__file__).parents[1] / "golden" / "hugging_face"
LOGITS = np.load(GOLDEN / "logits.npz")
FROM = 64  # the golden logits begin here
FAMILIES = ("llama", "llama3", "mistral", "qwen2", "qwen3", "gpt2")
SCALED = ("linear", "dynamic", "yarn")
MESH = "data:2 model:4"
LAYOUTS = {
    "none": "none",
    "data": "data",
    "model": "model",
    "data+model": "data+model",
    "fsdp": "fsdp",
    "sequence": "sequence",
    "uneven": "vocab:model d_ff:data d_kv:model",
}


def folder_of(name, tmp_path):
    """The folder of a model; that of other rotations is the first one with another configuration."""
    if name not in SCALED:
        return GOLDEN / name
    shutil.copytree(GOLDEN / "llama", tmp_path / name)
    shutil.copy(GOLDEN / name / "config.json", tmp_path / name)
    return tmp_path / name


def logits_of(folder, layout="none", layers_as="loop"):
    """The logits of the golden tokens, in two examples: the second has the tokens backwards."""
    mesh = mx.Mesh(MESH)
    config = family_of(read := Folder(folder).config).model(read)
    rules = find_layout(layout, mesh, known=config.glossary, sizes=config.sizes())
    model = load(folder, mesh, rules, layers_as=layers_as, dtype="float32")
    tokens = np.stack([LOGITS["tokens"], LOGITS["tokens"][::-1]])
    tokens = mx.tensor(tokens, (mx.Dim("batch", 2), mx.Dim("length", tokens.shape[1])))
    return mx.spmd(lambda model, tokens: model(tokens), mesh, rules)(model, tokens).numpy()[0]


@pytest.mark.parametrize("layout", some(LAYOUTS, "data+model"))
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_transformers(name, layout):
    got, wanted = logits_of(GOLDEN / name, LAYOUTS[layout])[FROM:], LOGITS[name]
    assert wanted.std() > 0.5 and got.shape == wanted.shape
    assert np.abs(got - wanted).max() < 1e-4


@pytest.mark.parametrize("name", SCALED)
def test_scaled_rotations(name, tmp_path):
    got = logits_of(folder_of(name, tmp_path))[FROM:]
    assert np.abs(got - LOGITS[name]).max() < 1e-4
    assert np.abs(LOGITS["llama"] - LOGITS[name]).max() > 0.1  # it is not the plain model


@pytest.mark.parametrize("name", some(["qwen2", "gpt2"], "gpt2"))
def test_layers_apart(name):
    got = logits_of(GOLDEN / name, "model", "unrolled")[FROM:]
    assert np.abs(got - LOGITS[name]).max() < 1e-4


def test_each_processor_holds_its_blocks():
    mesh = mx.Mesh(MESH)
    model = load(GOLDEN / "qwen3", mesh, "kv_heads:data d_ff:model vocab:model", layers_as="loop")
    weight = model.layers.feed_forward.into.weight
    assert {shard.data.shape for shard in weight.array.addressable_shards} == {(2, 16, 6)}
    assert model.embedding.weight.array.shape == (64, 16)  # 61 words are padded to be split in four
    table = Folder(GOLDEN / "qwen3").array("model.embed_tokens.weight").astype(np.float32)
    np.testing.assert_array_equal(model.embedding.weight.numpy(), table)
    assert weight.role == "param" and weight.dtype == "float32" and model.config.dtype == "bfloat16"
