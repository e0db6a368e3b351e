"""Language models with a prefix by name."""

from ..contract import Preset
from .prefix_decoder import PrefixDecoderConfig

_TINY = PrefixDecoderConfig(
    d_model=128, heads=8, d_kv=16, d_ff=512, layers=3, vocab=1024, positions="learned", max_length=256,
    label_smoothing=0.1, dtype="float32", keep="everything",
)  # fmt: skip

PRESETS = (
    Preset(
        "prefix-tiny", "laptop", _TINY, {"batch": 32, "source_length": 64, "length": 64}, 3e-3,
        "translates as wmt-tiny, by one stack of layers: the source is a prefix of the translation",
    ),
)  # fmt: skip
