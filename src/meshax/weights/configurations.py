"""Between the `config.json` of a family and the fields of `DecoderConfig`, in both directions."""

import math
from collections.abc import Mapping
from typing import Any

from ..errors import CheckpointError
from ..models.decoder import DecoderConfig
from ..nn.positions import SCALINGS

_ACTIVATIONS = {
    "silu": "silu", "swish": "silu", "relu": "relu", "gelu": "gelu_exact", "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu", "gelu_fast": "gelu",
}  # fmt: skip
_FOREIGN_ACTIVATIONS = {"silu": "silu", "relu": "relu", "gelu_exact": "gelu", "gelu": "gelu_pytorch_tanh"}
_DTYPES = ("float32", "bfloat16", "float16")
# What a family's library takes where config.json says nothing.
_USUAL: dict[str, dict[str, Any]] = {
    "llama": {"rms_norm_eps": 1e-6, "max_position_embeddings": 2048},
    "mistral": {
        "rms_norm_eps": 1e-6, "max_position_embeddings": 131072, "num_key_value_heads": 8, "sliding_window": 4096,
    },
    "qwen2": {"rms_norm_eps": 1e-6, "max_position_embeddings": 32768, "num_key_value_heads": 32},
    "qwen3": {
        "rms_norm_eps": 1e-6, "max_position_embeddings": 32768, "num_key_value_heads": 32, "head_dim": 128,
    },
    "gpt2": {"layer_norm_epsilon": 1e-5, "n_positions": 1024, "activation_function": "gelu_new"},
}  # fmt: skip


class _Reader:
    """A `config.json` that is being read: what is wrong with it is collected."""

    def __init__(self, family: str, config: Mapping[str, Any], problems: list[str] | None = None):
        self.family, self.config, self.problems = family, config, [] if problems is None else problems
        if config.get("quantization_config"):
            self.problems.append("its weights are quantized (quantization_config)")

    def get(self, name: str, otherwise: Any = None) -> Any:
        value = self.config.get(name)
        return _USUAL[self.family].get(name, otherwise) if value is None else value

    def size(self, name: str, otherwise: int | None = None) -> int:
        value = self.get(name, otherwise)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            self.problems.append(f"{name} is {value!r}, not a size")
            return 1
        return value

    def number(self, name: str, otherwise: float | None = None) -> float:
        value = self.get(name, otherwise)
        if not isinstance(value, int | float) or isinstance(value, bool):
            self.problems.append(f"{name} is {value!r}, not a number")
            return 1.0
        return float(value)

    def activation(self, name: str) -> str:
        word = self.get(name, "silu")
        if not isinstance(word, str) or word not in _ACTIVATIONS:
            self.problems.append(f"{name} is {word!r}, which is none of {', '.join(_ACTIVATIONS)}")
            return "silu"
        return _ACTIVATIONS[word]

    def table(self, name: str) -> dict[str, Any]:
        value = self.get(name, {})
        if not isinstance(value, dict):
            self.problems.append(f"{name} is {value!r}, not a table")
            return {}
        return value

    def refuse(self, name: str, *allowed: Any) -> None:
        """Takes note of a field that may only have some values, or be left out."""
        if (value := self.config.get(name)) is not None and value not in allowed:
            self.problems.append(f"{name} is {value!r}")

    def dtype(self) -> str:
        word = str(self.config.get("dtype") or self.config.get("torch_dtype") or "float32").removeprefix("torch.")
        return word if word in _DTYPES else "float32"

    def made(self, fields: Mapping[str, Any]) -> DecoderConfig:
        """Returns the model, or raises what is wrong."""
        if self.problems:
            raise CheckpointError(
                f"a config.json describes a {self.family} model that cannot be read here.",
                values="\n          ".join(self.problems),
                rule="docs/weights.md says what of each family is supported.",
                fix="take another model, or one that was merged or converted to the plain form.",
            )
        return DecoderConfig(**fields)


def llama_model(family: str, config: Mapping[str, Any]) -> DecoderConfig:
    """Reads the configuration of Llama, Mistral, Qwen2 or Qwen3."""
    read = _Reader(family, config)
    heads, width = read.size("num_attention_heads"), read.size("hidden_size")
    kv_heads = read.size("num_key_value_heads", heads)
    tied = bool(read.get("tie_word_embeddings", False))
    return read.made(
        {
            "d_model": width,
            "heads": heads,
            "d_kv": read.size("head_dim", width // heads),
            "d_ff": read.size("intermediate_size"),
            "layers": read.size("num_hidden_layers"),
            "vocab": read.size("vocab_size"),
            "kv_heads": None if kv_heads == heads else kv_heads,
            "activation": read.activation("hidden_act"),
            "gated": True,
            "norm": "rms",
            "norm_epsilon": read.number("rms_norm_eps"),
            "positions": "rotary",
            "max_length": read.size("max_position_embeddings"),
            "window": _window(read),
            "tied": tied,
            "logits_scale": 1.0 if tied else None,
            "biases": _biases(read),
            "qk_norm": family == "qwen3",
            "dtype": read.dtype(),
            **_rope_fields(read),
        }
    )


def _window(read: _Reader) -> int | None:
    """Returns how far back every layer sees, if not everywhere; layers that differ are not supported."""
    kinds = set(read.config.get("layer_types") or ())
    window = read.config.get("sliding_window", _USUAL[read.family].get("sliding_window"))  # null is none
    if read.family == "llama":
        return None
    if read.family != "mistral":
        slides = bool(read.config.get("use_sliding_window")) and window is not None
        if slides and not kinds:
            first = read.config.get("max_window_layers", 28)  # those before it see everything
            layers = read.size("num_hidden_layers")
            kinds = {"full_attention"} if first >= layers else {"sliding_attention"} if first <= 0 else {"both"}
        window = window if slides and kinds != {"full_attention"} else None
    if kinds - {"full_attention", "sliding_attention"} or len(kinds) > 1:
        read.problems.append("its layers differ in how far they see (layer_types, max_window_layers)")
    return None if window is None else read.size("sliding_window")


def _biases(read: _Reader) -> str:
    read.refuse("mlp_bias", False, *([True] if read.config.get("attention_bias") else []))
    if read.family == "qwen2":
        return "qkv"
    if read.family == "mistral" or not read.config.get("attention_bias"):
        return "none"
    return "all" if read.config.get("mlp_bias") else "attention"


def _rope_fields(read: _Reader) -> dict[str, Any]:
    """Returns what `rope_parameters`, or the older `rope_theta` and `rope_scaling`, say of rotations."""
    rope = read.table("rope_scaling") | read.table("rope_parameters")
    turns = _Reader(read.family, rope, read.problems)
    kind = rope.get("rope_type", rope.get("type", "default"))
    fields: dict[str, Any] = {"rope_theta": turns.number("rope_theta", read.number("rope_theta", 10_000.0))}
    if turns.number("partial_rotary_factor", read.number("partial_rotary_factor", 1.0)) != 1.0:
        read.problems.append("only a part of each head is turned (partial_rotary_factor)")
    if kind == "default":
        return fields
    longest = read.size("max_position_embeddings")
    original = turns.size("original_max_position_embeddings", longest)
    fields |= {"rope_scaling": kind, "rope_factor": turns.number("factor", longest / original)}
    if kind == "linear":
        return fields
    if kind == "dynamic":
        return fields | {"rope_original": longest}
    fields["rope_original"] = original
    if kind == "llama3":
        return fields | {"rope_low": turns.number("low_freq_factor"), "rope_high": turns.number("high_freq_factor")}
    if kind == "yarn":
        fields |= {"rope_low": turns.number("beta_slow", 1.0), "rope_high": turns.number("beta_fast", 32.0)}
        return fields | {"rope_attention": _yarn_attention(turns), "rope_whole": bool(rope.get("truncate", True))}
    read.problems.append(f"its rotations are scaled by {kind!r}, which is none of linear, dynamic, yarn, llama3")
    return {}


def _yarn_attention(turns: _Reader) -> float:
    """Returns what yarn multiplies sines and cosines by; 0 is what follows from the factor alone."""
    names = ("attention_factor", "mscale", "mscale_all_dim", "factor")
    whole, *scales, factor = (turns.number(name, 0.0) for name in names)
    if whole or not (all(scales) and factor > 0):
        return whole
    above, below = (0.1 * scale * math.log(factor) + 1.0 for scale in scales)
    return above / below


def llama_config(family: str, model: DecoderConfig) -> dict[str, Any]:
    """Writes the configuration of Llama, Mistral, Qwen2 or Qwen3."""
    config: dict[str, Any] = {
        "hidden_size": model.d_model,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads or model.heads,
        "head_dim": model.d_kv,
        "intermediate_size": model.d_ff,
        "num_hidden_layers": model.layers,
        "vocab_size": model.vocab,
        "hidden_act": _FOREIGN_ACTIVATIONS.get(model.activation, model.activation),
        "rms_norm_eps": model.norm_epsilon,
        "max_position_embeddings": model.max_length,
        "tie_word_embeddings": model.tied,
        "rope_theta": model.rope_theta,
        "rope_scaling": _rope_scaling(model),
    }
    if family == "mistral":
        return config | {"sliding_window": model.window}
    if family in ("qwen2", "qwen3") and model.window is not None:
        config |= {"use_sliding_window": True, "sliding_window": model.window, "max_window_layers": 0}
    if family in ("llama", "qwen3"):
        config |= {"attention_bias": model.biases in ("attention", "all")}
    return config | ({"mlp_bias": model.biases == "all"} if family == "llama" else {})


def _rope_scaling(model: DecoderConfig) -> dict[str, Any] | None:
    if model.rope_scaling == "none":
        return None
    rope: dict[str, Any] = {"rope_type": model.rope_scaling, "factor": model.rope_factor}
    if model.rope_scaling in ("yarn", "llama3"):
        rope["original_max_position_embeddings"] = model.rope_original
        usual = SCALINGS[model.rope_scaling] or (0.0, 0.0)
        names = {"yarn": ("beta_slow", "beta_fast"), "llama3": ("low_freq_factor", "high_freq_factor")}
        values = model.rope_low or usual[0], model.rope_high or usual[1]
        rope |= dict(zip(names[model.rope_scaling], values, strict=True))
    if model.rope_scaling == "yarn":
        rope |= {"truncate": model.rope_whole}
        rope |= {"attention_factor": model.rope_attention} if model.rope_attention else {}
    return rope


def gpt2_model(family: str, config: Mapping[str, Any]) -> DecoderConfig:
    """Reads the configuration of GPT-2."""
    read = _Reader(family, config)
    read.refuse("scale_attn_weights", True)
    read.refuse("scale_attn_by_inverse_layer_idx", False)
    read.refuse("add_cross_attention", False)
    width, heads = read.size("n_embd"), read.size("n_head")
    tied = bool(read.get("tie_word_embeddings", True))
    return read.made(
        {
            "d_model": width,
            "heads": heads,
            "d_kv": width // heads,
            "d_ff": read.size("n_inner", 4 * width),
            "layers": read.size("n_layer"),
            "vocab": read.size("vocab_size"),
            "activation": read.activation("activation_function"),
            "norm": "layer",
            "norm_epsilon": read.number("layer_norm_epsilon"),
            "positions": "learned",
            "max_length": read.size("n_positions"),
            "tied": tied,
            "logits_scale": 1.0 if tied else None,
            "biases": "all",
            "dtype": read.dtype(),
        }
    )


def gpt2_config(family: str, model: DecoderConfig) -> dict[str, Any]:
    """Writes the configuration of GPT-2."""
    activation = "gelu_new" if model.activation == "gelu" else _FOREIGN_ACTIVATIONS.get(model.activation)
    return {
        "n_embd": model.d_model,
        "n_head": model.heads,
        "n_inner": model.d_ff,
        "n_layer": model.layers,
        "n_positions": model.max_length,
        "vocab_size": model.vocab,
        "activation_function": activation or model.activation,
        "layer_norm_epsilon": model.norm_epsilon,
        "tie_word_embeddings": model.tied,
    }
