"""Makes the tiny models of `tests/golden/hugging_face` and their logits, with `transformers` and torch on a CPU.

    python -m venv .venv-torch && .venv-torch/bin/pip install torch transformers
    .venv-torch/bin/python tests/golden/make_hugging_face.py

Every parameter is drawn at random, norms and biases too, so that none can be left out, taken twice or transposed
unnoticed. `logits.npz` has the tokens, and of every model the logits after token 64, by `transformers` in float32.
The models named in SCALED are the first one with other rotations: they have a `config.json` of their own.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

HERE = Path(__file__).parent / "hugging_face"
LENGTH, FROM, VOCAB = 88, 64, 61
SIZES = dict(
    hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    vocab_size=VOCAB, max_position_embeddings=128, bos_token_id=1, eos_token_id=2,
)  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip


def plain(theta):
    """Rotations that are not scaled."""
    return {"rope_type": "default", "rope_theta": theta}


MODELS = {
    "llama": ("float32", LlamaConfig(**SIZES, rms_norm_eps=1e-5, rope_parameters=plain(1e4))),
    "llama3": ("bfloat16", LlamaConfig(**SIZES, rms_norm_eps=1e-5, rope_parameters=LLAMA3, tie_word_embeddings=True)),
    "mistral": ("bfloat16", MistralConfig(**SIZES, sliding_window=20, rope_parameters=plain(1e4))),
    "qwen2": ("bfloat16", Qwen2Config(**SIZES, tie_word_embeddings=True, rope_parameters=plain(1e6))),
    "qwen3": ("bfloat16", Qwen3Config(**SIZES, head_dim=8, rope_parameters=plain(1e6))),
    "gpt2": (
        "float16",
        GPT2Config(
            vocab_size=VOCAB, n_positions=96, n_embd=16, n_inner=24, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2
        ),
    ),
}
SCALED = {
    "linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
    "yarn": {"rope_type": "yarn", "rope_theta": 1e2, "factor": 4.0, "original_max_position_embeddings": 32},
}


def randomised(model, seed):
    """Fills every parameter with numbers that differ: weights, biases, and norms about one."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=draw)
            is_norm = parameter.dim() == 1 and "norm" in name.replace("ln_", "norm") and name.endswith("weight")
            parameter.copy_(1 + 0.3 * noise if is_norm else 0.3 * noise)
    return model


def logits_of(folder, tokens):
    """What transformers reads from a folder, and computes in float32."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        return model(torch.tensor(tokens)[None]).logits[0].numpy()


def tokenizer():
    """A tokenizer of 61 tokens that puts <s> before a text, as Llama's does."""
    bpe = Tokenizer(models.BPE(unk_token="<unk>"))
    bpe.pre_tokenizer = pre_tokenizers.Metaspace()
    bpe.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False)
    bpe.train_from_iterator(["the cat sat on the mat and then the dog sat on the cat " * 3] * 9, trainer)
    bpe.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return bpe


def main():
    """Writes every folder and the logits."""
    shutil.rmtree(HERE, ignore_errors=True)
    tokens = np.random.default_rng(0).integers(3, VOCAB, LENGTH)
    arrays = {"tokens": tokens.astype(np.int32)}
    for seed, (name, (dtype, config)) in enumerate(MODELS.items()):
        config.initializer_range = 0.3
        model = randomised(AutoModelForCausalLM.from_config(config), seed).to(getattr(torch, dtype))
        shards = {"max_shard_size": "4KB"} if name == "qwen3" else {}
        model.save_pretrained(HERE / name, **shards)
        arrays[name] = logits_of(HERE / name, tokens)[FROM:]
    tokenizer().save(str(HERE / "llama" / "tokenizer.json"), pretty=False)
    words = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (HERE / "llama" / "tokenizer_config.json").write_text(json.dumps(words, indent=2) + "\n")
    for name, rope in SCALED.items():
        folder = HERE / name
        shutil.copytree(HERE / "llama", folder)
        config = json.loads((folder / "config.json").read_text())
        config["rope_parameters"] = rope
        if name == "dynamic":
            config["max_position_embeddings"] = 40
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        arrays[name] = logits_of(folder, tokens)[FROM:]
        for path in folder.iterdir():
            if path.name != "config.json":
                path.unlink()
    np.savez(HERE / "logits.npz", **arrays)


if __name__ == "__main__":
    main()
