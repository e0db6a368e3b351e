"""A small one for a laptop, and the standard sizes, for images of 224 x 224 and a thousand classes."""

from ..contract import Preset, Recipe
from .resnet import ResNetConfig

_SIZES = {"batch": 256, "x": 224, "y": 224}
_TINY = ResNetConfig(depth=18, filters=8, classes=6, dtype="float32")
PRESETS = (
    Preset(
        "resnet-tiny", "laptop", _TINY, {"batch": 32, "x": 32, "y": 32}, 5e-3,
        "images, for the 8 virtual processors of a laptop", Recipe(steps=300, warmup=15), layout="batch:data x:model",
    ),
    Preset("resnet-18", "images", ResNetConfig(depth=18), _SIZES, 1e-3, "He et al., 2015"),
    Preset("resnet-50", "images", ResNetConfig(), _SIZES, 1e-3, "He et al., 2015"),
)  # fmt: skip
