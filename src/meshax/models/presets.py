"""Models by name: every language model of the Mesh-TensorFlow paper, a small one for a laptop, and modern sizes."""

from dataclasses import dataclass

from ..errors import ArgumentError, did_you_mean
from .decoder import DecoderConfig


@dataclass(frozen=True)
class Preset:
    """A model by name, and how the paper (or we) would train it."""

    name: str
    family: str
    model: DecoderConfig
    batch: int
    length: int
    rate: float  # the highest learning rate of AdamW
    about: str


def _paper(name: str, heads: int) -> Preset:
    """A row of Table 2: 6 layers, d_model 1024, d_k = d_v = 256, d_ff = 1024 x heads, separate embeddings."""
    model = DecoderConfig(d_model=1024, heads=heads, d_kv=256, d_ff=1024 * heads, layers=6, vocab=32768)
    return Preset(name, "paper", model, 512, 256, 3e-4, f"Table 2 of the Mesh-TensorFlow paper, {heads} heads")


def _modern(name: str, d_model: int, heads: int, kv_heads: int, d_ff: int, layers: int, rate: float) -> Preset:
    model = DecoderConfig(
        d_model=d_model, heads=heads, d_kv=d_model // heads, kv_heads=kv_heads, d_ff=d_ff, layers=layers, vocab=32768,
        activation="silu", gated=True, positions="rotary", z_loss=1e-4,
    )  # fmt: skip
    return Preset(name, "modern", model, 256, 2048, rate, "rotary positions, gated feed-forward, grouped keys")


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

PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset("tiny", "laptop", _TINY, 16, 128, 3e-3, "for the 8 virtual processors of a laptop"),
        _paper("lm-0.14b", 4),
        _paper("lm-0.22b", 8),
        _paper("lm-0.37b", 16),
        _paper("lm-0.67b", 32),
        _paper("lm-1.28b", 64),
        _paper("lm-2.48b", 128),
        _paper("lm-4.90b", 256),
        _modern("modern-0.1b", 768, 12, 4, 2048, 12, 6e-4),
        _modern("modern-1b", 2048, 32, 8, 5632, 22, 4e-4),
        _modern("modern-7b", 4096, 32, 8, 14336, 32, 3e-4),
    )
}


def show_parameters(count: int) -> str:
    """Returns a number of parameters for reading: in billions, as names have them, or in millions.

    >>> show_parameters(4_896_000_000), show_parameters(656_000)
    ('4.90 B', '0.66 M')
    """
    return f"{count / 1e9:.2f} B" if count >= 1e8 else f"{count / 1e6:.2f} M"


def preset(name: str) -> Preset:
    """Returns the preset of a name."""
    if name not in PRESETS:
        raise ArgumentError(f"there is no preset {name!r}.", fix=did_you_mean(name, PRESETS))
    return PRESETS[name]
