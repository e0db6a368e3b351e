"""A U-Net: tells at every place of an image or a volume what is there."""

from .presets import PRESETS
from .unet import UNet, UNetConfig

__all__ = ["PRESETS", "UNet", "UNetConfig"]
