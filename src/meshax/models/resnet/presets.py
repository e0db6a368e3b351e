"""The standard sizes, for images of 224 x 224 and a thousand classes."""

from ..contract import Preset
from .resnet import ResNetConfig

_SIZES = {"batch": 256, "x": 224, "y": 224}
PRESETS = (
    Preset("resnet-18", "images", ResNetConfig(depth=18), _SIZES, 1e-3, "He et al., 2015"),
    Preset("resnet-50", "images", ResNetConfig(), _SIZES, 1e-3, "He et al., 2015"),
)
