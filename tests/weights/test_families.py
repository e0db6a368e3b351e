"""Which family a model is of, and tensors that are missing, unknown, unused or of another shape."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from meshax import CheckpointError
from meshax.models.decoder import DecoderConfig
from meshax.models.presets import preset
from meshax.weights import FAMILIES, Folder, family_for, family_of
from meshax.weights.families import matched
from meshax.weights.safetensors import DTYPES, Entry, File, write_file
from messages import pinned

GOLDEN = Path(__file__).parents[1] / "golden" / "hugging_face"
NAMES = ("llama", "llama3", "mistral", "qwen2", "qwen3", "gpt2")


def opened(path):
    folder = Folder(path)
    family = family_of(folder.config)
    return folder, family, family.model(folder.config)


@pytest.mark.parametrize("name", NAMES)
def test_every_tensor_has_its_parameters(name):
    folder, family, model = opened(GOLDEN / name)
    wanted = matched(folder, family, model)
    assert wanted.keys() == folder.tensors.keys()


@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_of_a_family_that_can_be_it(name):
    _, family, model = opened(GOLDEN / name)
    assert family.differences(model) == []
    chosen = family_for(model)
    assert chosen.differences(model) == []
    assert chosen.name == {"llama3": "llama"}.get(name, name)


@pytest.mark.parametrize("name", ["modern-0.1b", "modern-7b"])
def test_presets_that_are_llamas(name):
    assert family_for(preset(name).model).name == "llama"


def test_what_a_family_cannot_be():
    assert FAMILIES["llama"].differences(replace(preset("modern-0.1b").model, qk_norm=True)) == [
        "qk_norm is True, and would be False"
    ]
    assert FAMILIES["qwen3"].differences(replace(preset("modern-0.1b").model, qk_norm=True)) == []


def rewritten(change, name="llama3"):
    """The folder of a model with other tensors in its file."""
    path = Path(name, "model.safetensors")
    file = File(GOLDEN / name / "model.safetensors")
    arrays = {tensor: np.array(file.array(tensor)) for tensor in file.tensors}
    change(arrays)
    words = {str(dtype): word for word, dtype in DTYPES.items()}
    entries = {tensor: Entry(words[str(array.dtype)], array.shape) for tensor, array in arrays.items()}
    write_file(path, entries, lambda tensor: arrays[tensor], file.metadata)
    return matched(*opened(name))


def renamed(arrays, old, new):
    arrays[new] = arrays.pop(old)


def damaged(arrays):
    renamed(arrays, "model.norm.weight", "model.norm.wait")
    arrays["model.layers.0.self_attn.q_proj.weight"] = arrays["model.layers.0.self_attn.q_proj.weight"][:, :8]
    arrays["model.layers.1.mlp.up_proj.weight"] = arrays["model.layers.1.mlp.up_proj.weight"].astype(np.int8)
    arrays["model.layers.0.self_attn.q_proj.bias"] = np.zeros(16, np.float32)


def test_buffers_that_follow_from_the_configuration_are_passed_over():
    wanted = rewritten(
        lambda arrays: arrays.update({"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(2, np.float32)})
    )
    assert "model.layers.0.self_attn.rotary_emb.inv_freq" not in wanted
    assert rewritten(lambda arrays: arrays.update({"transformer.h.0.attn.bias": np.ones((1, 1, 4, 4), bool)}), "gpt2")


def test_names_without_their_prefix():
    def shorter(arrays):
        for name in list(arrays):
            renamed(arrays, name, name.removeprefix("transformer."))

    assert "h.1.attn.c_attn.weight" in rewritten(shorter, "gpt2")


def test_a_head_that_is_the_embedding_may_be_written_twice():
    rewritten(lambda arrays: arrays.update({"lm_head.weight": arrays["model.embed_tokens.weight"]}))
    with pytest.raises(CheckpointError, match=r"lm_head.weight: BF16 \[61, 16\], which no parameter is made of"):
        rewritten(lambda arrays: arrays.update({"lm_head.weight": arrays["model.embed_tokens.weight"] * 2}))


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("llama3", "gpt2"):
        shutil.copytree(GOLDEN / name, name)


test_messages = pinned(
    {
        "another family": (
            CheckpointError,
            lambda: family_of(json.loads('{"model_type": "mistrall"}')),
            """
            models of the type 'mistrall' are not known.
              rule: the families are llama, mistral, qwen2, qwen3, gpt2.
              fix: did you mean "mistral"?
            """,
        ),
        "of no family": (
            CheckpointError,
            lambda: family_for(DecoderConfig()),
            """
            this model is of no family that there is elsewhere.
              values: as llama:
                      gated is False, and would be True
                      positions is 'sinusoidal', and would be 'rotary'
              rule: the families are llama, mistral, qwen2, qwen3, gpt2.
              fix: train a model of such a family, for example from the preset modern-0.1b.
            """,
        ),
        "other tensors": (
            CheckpointError,
            lambda: rewritten(damaged),
            """
            the tensors of a folder are not those of the llama model that its config.json describes.
              values: model.layers.0.self_attn.q_proj.bias: F32 [16], which no parameter is made of
                      model.layers.0.self_attn.q_proj.weight: BF16 [16, 8], not [16, 16]
                      model.layers.1.mlp.up_proj.weight: I8 [24, 16], which is not floating
                      model.norm.wait: BF16 [16], which no parameter is made of
                      model.norm.weight: is missing
              rule: every parameter has its tensor, and every tensor its parameter.
              fix: correct config.json, or fetch the folder again; merge adapters, and undo quantization, first.
            """,
        ),
    }
)
