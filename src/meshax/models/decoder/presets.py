"""Every language model of the Mesh-TensorFlow paper, a small one for a laptop, and modern sizes."""

from ..contract import Preset, Recipe
from ..transformer_config import PAPER_FIELDS, PAPER_RECIPE
from .decoder import DecoderConfig


def _paper(name: str, heads: int, mesh: str) -> Preset:
    """A row of Table 2: 6 layers, d_model 1024, d_k = d_v = 256, d_ff = 1024 x heads, separate embeddings.

    Its counts print with a vocabulary of 32,768.
    """
    model = DecoderConfig(d_model=1024, heads=heads, d_kv=256, d_ff=1024 * heads, layers=6, vocab=32768, **PAPER_FIELDS)
    recipe = Recipe(**PAPER_RECIPE, steps=136_000, cooldown=13_600)  # ten epochs of LM1B; the last fall takes one
    about = f"Table 2 of the Mesh-TensorFlow paper, {heads} heads"
    return Preset(name, "paper", model, {"batch": 256, "length": 256}, 3e-4, about, recipe, mesh)


def _modern(name: str, d_model: int, heads: int, kv_heads: int, d_ff: int, layers: int, rate: float) -> Preset:
    model = DecoderConfig(
        d_model=d_model, heads=heads, d_kv=d_model // heads, kv_heads=kv_heads, d_ff=d_ff, layers=layers, vocab=32768,
        activation="silu", gated=True, positions="rotary", z_loss=1e-4,
    )  # fmt: skip
    about = "rotary positions, gated feed-forward, grouped keys"
    return Preset(name, "modern", model, {"batch": 256, "length": 2048}, rate, about)


_TINY = DecoderConfig(
    d_model=128,
    heads=8,
    d_kv=16,
    d_ff=512,
    layers=2,
    vocab=1024,
    positions="rotary",
    dtype="float32",
    keep="everything",
)

PRESETS = (
    Preset("tiny", "laptop", _TINY, {"batch": 16, "length": 128}, 3e-3, "for the 8 virtual processors of a laptop"),
    _paper("lm-0.14b", 4, "data:32 model:1"),
    _paper("lm-0.22b", 8, "data:32 model:1"),
    _paper("lm-0.37b", 16, "data:8 model:4"),
    _paper("lm-0.67b", 32, "data:8 model:4"),
    _paper("lm-1.28b", 64, "data:16 model:8"),
    _paper("lm-2.48b", 128, "data:16 model:32"),
    _paper("lm-4.90b", 256, "data:16 model:32"),
    _modern("modern-0.1b", 768, 12, 4, 2048, 12, 6e-4),
    _modern("modern-1b", 2048, 32, 8, 5632, 22, 4e-4),
    _modern("modern-7b", 4096, 32, 8, 14336, 32, 3e-4),
)
