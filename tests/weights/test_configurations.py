"""A config.json means a model, in its older and newer forms; what the decoder lacks is refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from meshax import CheckpointError
from meshax.weights import FAMILIES
from messages import pinned

GOLDEN = Path(__file__).parents[1] / "golden" / "hugging_face"


def config(name, **changes):
    return json.loads((GOLDEN / name / "config.json").read_text()) | changes


def model(name, **changes):
    family = FAMILIES[config(name)["model_type"]]
    return family.model(config(name, **changes))


def test_fields():
    qwen = model("qwen3")
    assert (qwen.d_kv, qwen.heads, qwen.kv_heads, qwen.qk_norm, qwen.biases) == (8, 4, 2, True, "none")
    assert (qwen.rope_theta, qwen.tied, qwen.dtype, qwen.norm_epsilon) == (1e6, False, "bfloat16", 1e-6)
    gpt2 = model("gpt2")
    assert (gpt2.norm, gpt2.positions, gpt2.max_length, gpt2.activation) == ("layer", "learned", 96, "gelu")
    assert (gpt2.biases, gpt2.tied, gpt2.logits_scale, gpt2.d_ff, gpt2.dtype) == ("all", True, 1.0, 24, "float16")
    assert (model("qwen2").biases, model("mistral").window) == ("qkv", 20)


OLD_AND_NEW = {
    "theta": ({"rope_theta": 5e5}, {"rope_theta": 5e5, "rope_type": "default"}),
    "linear": ({"rope_scaling": {"type": "linear", "factor": 2.0}}, {"rope_type": "linear", "factor": 2.0}),
    "dynamic": ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, {"rope_type": "dynamic", "factor": 2.0}),
    "yarn": (
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 32, "beta_slow": 1},
    ),
}


@pytest.mark.parametrize("name", OLD_AND_NEW)
def test_rotations_as_they_were_and_are_written(name):
    old, new = OLD_AND_NEW[name]
    before = model("llama", rope_parameters=None, **old)
    assert before == model("llama", rope_parameters=new)
    assert before != model("llama")
    again = FAMILIES["llama"].model(FAMILIES["llama"].config(before, "float32"))
    assert again == before


def test_scales_of_yarn():
    rope = {"rope_type": "yarn", "factor": 40.0, "mscale": 0.7, "mscale_all_dim": 0.7}
    assert model("llama", rope_parameters=rope).rope_attention == 1.0
    assert model("llama", rope_parameters=rope | {"attention_factor": 1.5}).rope_attention == 1.5


@pytest.mark.parametrize("name", ["llama", "llama3", "mistral", "qwen2", "qwen3", "gpt2", "linear", "dynamic", "yarn"])
def test_a_model_comes_back_from_its_own_configuration(name):
    family, there = FAMILIES[config(name)["model_type"]], model(name)
    assert replace(family.model(family.config(there, there.dtype)), rope_low=0, rope_high=0) == replace(
        there, rope_low=0, rope_high=0
    )


def test_windows_and_biases():
    bare = {name: value for name, value in config("mistral").items() if name != "sliding_window"}
    assert FAMILIES["mistral"].model(bare).window == 4096  # what the library takes
    assert model("mistral", sliding_window=None).window is None
    assert model("qwen2", use_sliding_window=True, sliding_window=9, max_window_layers=0, layer_types=None).window == 9
    assert model("qwen2", use_sliding_window=False, sliding_window=9).window is None
    assert (
        model("qwen2", use_sliding_window=True, sliding_window=9, max_window_layers=2, layer_types=None).window is None
    )
    assert model("llama", attention_bias=True).biases == "attention"
    assert model("llama", attention_bias=True, mlp_bias=True).biases == "all"


def refused(text):
    return (
        f"a config.json describes a {text[0]} model that cannot be read here.\n  values: {text[1]}\n"
        "  rule: docs/weights.md says what of each family is supported.\n"
        "  fix: take another model, or one that was merged or converted to the plain form."
    )


test_messages = pinned(
    {
        name: (CheckpointError, call, refused(text))
        for name, call, text in (
            (
                "several",
                lambda: model(
                    "llama", hidden_act="mish", num_hidden_layers="2", mlp_bias=True, quantization_config={"bits": 4}
                ),
                (
                    "llama",
                    "its weights are quantized (quantization_config)\n          num_hidden_layers is '2', not a size\n"
                    "          hidden_act is 'mish', which is none of silu, swish, relu, gelu, gelu_new, "
                    "gelu_pytorch_tanh, gelu_fast\n          mlp_bias is True",
                ),
            ),
            (
                "rotations",
                lambda: model("llama", rope_parameters={"rope_type": "longrope", "factor": 2.0}),
                ("llama", "its rotations are scaled by 'longrope', which is none of linear, dynamic, yarn, llama3"),
            ),
            (
                "values that are none",
                lambda: model(
                    "mistral",
                    hidden_act=["silu"],
                    sliding_window="far",
                    rope_parameters=None,
                    rope_theta="big",
                    rope_scaling={"rope_type": "llama3", "factor": "two", "low_freq_factor": 1.0},
                ),
                (
                    "mistral",
                    "hidden_act is ['silu'], which is none of silu, swish, relu, gelu, gelu_new, gelu_pytorch_tanh, "
                    "gelu_fast\n          sliding_window is 'far', not a size\n          rope_theta is 'big', not a "
                    "number\n          factor is 'two', not a number\n          high_freq_factor is None, not a number",
                ),
            ),
            (
                "no table",
                lambda: model("llama", rope_parameters="yarn"),
                ("llama", "rope_parameters is 'yarn', not a table"),
            ),
            (
                "a part of a head",
                lambda: model("llama", partial_rotary_factor=0.5),
                ("llama", "only a part of each head is turned (partial_rotary_factor)"),
            ),
            (
                "layers that differ",
                lambda: model(
                    "qwen2",
                    use_sliding_window=True,
                    sliding_window=9,
                    layer_types=["full_attention", "sliding_attention"],
                ),
                ("qwen2", "its layers differ in how far they see (layer_types, max_window_layers)"),
            ),
            (
                "attention",
                lambda: model("gpt2", scale_attn_by_inverse_layer_idx=True),
                ("gpt2", "scale_attn_by_inverse_layer_idx is True"),
            ),
        )
    }
)
