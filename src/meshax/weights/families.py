"""Which models from elsewhere the decoder can be: what their tensors are called, and what their configuration means.

A family is data: a table of names (`names.py`), and two functions between its `config.json` and `DecoderConfig`. What a
configuration asks for and the decoder lacks is an error, so a model that is read computes what it computes there.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..errors import CheckpointError, did_you_mean, shortened
from ..models.decoder import DecoderConfig
from ..nn.positions import SCALINGS
from .configurations import gpt2_config, gpt2_model, llama_config, llama_model
from .folder import Folder
from .names import Place, Row, places

HEAD = "lm_head.weight"
_HEADS = "kv_heads*heads*d_kv"
_LAYER = "model.layers.{}."
_LLAMA = (
    Row("model.embed_tokens.weight", "embedding.weight", "vocab d_model"),
    Row(f"{_LAYER}input_layernorm.weight", "layers.attention_norm.scale", "d_model"),
    *(
        row
        for letter in "qkv"
        for row in (
            Row(f"{_LAYER}self_attn.{letter}_proj.weight", f"layers.attention.{letter}.weight", f"{_HEADS} d_model"),
            Row(f"{_LAYER}self_attn.{letter}_proj.bias", f"layers.attention.{letter}.bias", _HEADS),
            Row(f"{_LAYER}self_attn.{letter}_norm.weight", f"layers.attention.{letter}_norm.scale", "d_kv"),
        )
    ),
    Row(f"{_LAYER}self_attn.o_proj.weight", "layers.attention.out.weight", f"d_model {_HEADS}"),
    Row(f"{_LAYER}self_attn.o_proj.bias", "layers.attention.out.bias", "d_model"),
    Row(f"{_LAYER}post_attention_layernorm.weight", "layers.feed_forward_norm.scale", "d_model"),
    # Theirs activates the gate, ours the map that is gated: it is the same product.
    Row(f"{_LAYER}mlp.gate_proj.weight", "layers.feed_forward.into.weight", "d_ff d_model"),
    Row(f"{_LAYER}mlp.gate_proj.bias", "layers.feed_forward.into.bias", "d_ff"),
    Row(f"{_LAYER}mlp.up_proj.weight", "layers.feed_forward.gate.weight", "d_ff d_model"),
    Row(f"{_LAYER}mlp.up_proj.bias", "layers.feed_forward.gate.bias", "d_ff"),
    Row(f"{_LAYER}mlp.down_proj.weight", "layers.feed_forward.out.weight", "d_model d_ff"),
    Row(f"{_LAYER}mlp.down_proj.bias", "layers.feed_forward.out.bias", "d_model"),
    Row("model.norm.weight", "norm.scale", "d_model"),
    Row(HEAD, "logits.weight", "vocab d_model"),
)
_H = "transformer.h.{}."
_GPT2 = (
    Row("transformer.wte.weight", "embedding.weight", "vocab d_model"),
    Row("transformer.wpe.weight", "learned.weight", "places d_model"),
    Row(f"{_H}ln_1.weight", "layers.attention_norm.scale", "d_model"),
    Row(f"{_H}ln_1.bias", "layers.attention_norm.shift", "d_model"),
    *(
        row
        for part, letter in enumerate("qkv")
        for row in (
            Row(f"{_H}attn.c_attn.weight", f"layers.attention.{letter}.weight", f"d_model {part}/3*heads*d_kv"),
            Row(f"{_H}attn.c_attn.bias", f"layers.attention.{letter}.bias", f"{part}/3*heads*d_kv"),
        )
    ),
    Row(f"{_H}attn.c_proj.weight", "layers.attention.out.weight", "heads*d_kv d_model"),
    Row(f"{_H}attn.c_proj.bias", "layers.attention.out.bias", "d_model"),
    Row(f"{_H}ln_2.weight", "layers.feed_forward_norm.scale", "d_model"),
    Row(f"{_H}ln_2.bias", "layers.feed_forward_norm.shift", "d_model"),
    Row(f"{_H}mlp.c_fc.weight", "layers.feed_forward.into.weight", "d_model d_ff"),
    Row(f"{_H}mlp.c_fc.bias", "layers.feed_forward.into.bias", "d_ff"),
    Row(f"{_H}mlp.c_proj.weight", "layers.feed_forward.out.weight", "d_ff d_model"),
    Row(f"{_H}mlp.c_proj.bias", "layers.feed_forward.out.bias", "d_model"),
    Row("transformer.ln_f.weight", "norm.scale", "d_model"),
    Row("transformer.ln_f.bias", "norm.shift", "d_model"),
    Row(HEAD, "logits.weight", "vocab d_model"),
)


@dataclass(frozen=True)
class Family:
    """Models that share names of tensors and fields of their configuration."""

    name: str  # the model_type of config.json
    architecture: str
    rows: tuple[Row, ...]
    to_model: Callable[[str, Mapping[str, Any]], DecoderConfig]
    to_config: Callable[[str, DecoderConfig], dict[str, Any]]
    kind: str = "decoder"  # of our models
    prefix: str = "model."  # of the names, which some files leave out
    computed: str = r"rotary_emb\.inv_freq\Z"  # tensors that follow from the configuration

    def model(self, config: Mapping[str, Any]) -> DecoderConfig:
        """Returns the model that a `config.json` describes."""
        return self.to_model(self.name, config)

    def config(self, model: DecoderConfig, dtype: str) -> dict[str, Any]:
        """Returns the `config.json` of a model whose weights have a dtype."""
        head = {"architectures": [self.architecture], "model_type": self.name, "torch_dtype": dtype}
        return head | self.to_config(self.name, model)

    def places(self, model: DecoderConfig, names: Mapping[str, Any] | None = None) -> dict[str, list[Place]]:
        """Returns where each tensor goes; of a file with these names, as it calls them."""
        shorter = names is not None and not any(name.startswith(self.prefix) for name in names)
        rows = [r._replace(tensor=r.tensor.removeprefix(self.prefix)) for r in self.rows] if shorter else self.rows
        return places(model, rows)

    def differences(self, model: DecoderConfig) -> list[str]:
        """Returns what of a model the family cannot be."""
        here = _essential(model)
        try:
            there = _essential(self.model(self.config(model, "float32")))
        except (CheckpointError, KeyError) as error:
            return [str(error).splitlines()[0]]
        both = [name for name in here if name in there]
        return [f"{name} is {here[name]!r}, and would be {there[name]!r}" for name in both if here[name] != there[name]]


FAMILIES = {
    family.name: family
    for family in (
        *(
            Family(name, f"{word}ForCausalLM", _LLAMA, llama_model, llama_config)
            for name, word in (("llama", "Llama"), ("mistral", "Mistral"), ("qwen2", "Qwen2"), ("qwen3", "Qwen3"))
        ),
        Family(
            "gpt2", "GPT2LMHeadModel", _GPT2, gpt2_model, gpt2_config,
            prefix="transformer.", computed=r"h\.\d+\.attn\.(masked_)?bias\Z",
        ),
    )
}  # fmt: skip


def family_of(config: Mapping[str, Any]) -> Family:
    """Returns the family that a `config.json` names."""
    name = str(config.get("model_type"))
    if name not in FAMILIES:
        raise CheckpointError(
            f"models of the type {name!r} are not known.",
            rule=f"the families are {', '.join(FAMILIES)}.",
            fix=did_you_mean(name, FAMILIES),
        )
    return FAMILIES[name]


def family_for(model: Any) -> Family:
    """Returns the first family that can be this model, or raises with what the nearest cannot."""
    if not isinstance(model, DecoderConfig):
        raise CheckpointError("only language models are of a family that there is elsewhere.", values=str(model)[:80])
    differences = {name: family.differences(model) for name, family in FAMILIES.items()}
    nearest = min(differences, key=lambda name: len(differences[name]))
    if differences[nearest]:
        raise CheckpointError(
            "this model is of no family that there is elsewhere.",
            values=f"as {nearest}:\n          {shortened(differences[nearest], 12)}",
            rule=f"the families are {', '.join(FAMILIES)}.",
            fix="train a model of such a family, for example from the preset modern-0.1b.",
        )
    return FAMILIES[nearest]


def matched(folder: Folder, family: Family, model: DecoderConfig) -> dict[str, list[Place]]:
    """Returns where each tensor of a folder goes, or raises if it holds anything more, less or else than the model."""
    there = folder.tensors
    wanted = family.places(model, there)
    problems = [f"{name}: is missing" for name in wanted if name not in there]
    for name, entry in there.items():
        if name not in wanted:
            if not re.search(family.computed, name) and not _is_twin(name, folder, family, model):
                problems.append(f"{name}: {entry}, which no parameter is made of")
        elif entry.shape != (shape := wanted[name][0].shape()):
            problems.append(f"{name}: {entry}, not {list(shape)}")
        elif entry.dtype not in ("F64", "F32", "BF16", "F16"):
            problems.append(f"{name}: {entry}, which is not floating")
    if problems:
        raise CheckpointError(
            f"the tensors of a folder are not those of the {family.name} model that its config.json describes.",
            values=shortened(sorted(problems), 40),
            rule="every parameter has its tensor, and every tensor its parameter.",
            fix="correct config.json, or fetch the folder again; merge adapters, and undo quantization, first.",
        )
    return wanted


def _is_twin(name: str, folder: Folder, family: Family, model: DecoderConfig) -> bool:
    """Whether a tensor is the head of a model without one, written down although it is the embedding."""
    embedding = next(
        name for name, one in family.places(model, folder.tensors).items() if ".embedding" in one[0].parameter
    )
    return (
        name == HEAD
        and model.tied
        and embedding in folder.tensors
        and np.array_equal(folder.array(name), folder.array(embedding))
    )


def _essential(model: DecoderConfig) -> dict[str, Any]:
    """Returns what a model computes with: two that have the same are the same function of the same weights."""
    fields = {name: value for name, value in asdict(model).items() if name not in model.may_change}
    fields["kv_heads"] = model.kv_heads or model.heads
    usual = model.d_model**-0.5 if model.tied else 1.0
    fields["logits_scale"] = usual if model.logits_scale is None else model.logits_scale
    if (usual_turns := SCALINGS[model.rope_scaling]) is not None:
        fields["rope_low"] = model.rope_low or usual_turns[0]
        fields["rope_high"] = model.rope_high or usual_turns[1]
    if model.positions != "rotary":
        fields = {name: value for name, value in fields.items() if not name.startswith("rope_")}
    if model.positions == "sinusoidal":
        fields.pop("max_length")
    return fields
