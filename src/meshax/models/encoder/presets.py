"""Encoders by name."""

from ..contract import Preset
from .encoder import EncoderConfig

_TINY = EncoderConfig(
    d_model=128, heads=8, d_kv=16, d_ff=512, layers=2, vocab=1024, positions="learned", max_length=512,
    activation="gelu", dtype="float32", keep="everything",
)  # fmt: skip

PRESETS = (
    Preset(
        "masked-tiny", "laptop", _TINY, {"batch": 16, "length": 128}, 3e-3,
        "fills in hidden tokens, on the 8 virtual processors of a laptop",
    ),
)  # fmt: skip
