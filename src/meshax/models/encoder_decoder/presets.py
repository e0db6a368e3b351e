"""Models that translate, by name."""

from ..contract import Preset
from .encoder_decoder import EncoderDecoderConfig

_TINY = EncoderDecoderConfig(
    d_model=128,
    heads=8,
    d_kv=16,
    d_ff=512,
    layers=3,
    vocab=1024,
    positions="learned",
    max_length=256,
    label_smoothing=0.1,
    dtype="float32",
    keep="everything",
)

PRESETS = (
    Preset(
        "wmt-tiny", "laptop", _TINY, {"batch": 16, "source_length": 128, "length": 128}, 3e-3,
        "translates numbers, dates and times, on the 8 virtual processors of a laptop",
    ),
)  # fmt: skip
