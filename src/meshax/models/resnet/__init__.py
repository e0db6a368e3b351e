"""A residual network: tells what an image shows."""

from .presets import PRESETS
from .resnet import ResNet, ResNetConfig

__all__ = ["PRESETS", "ResNet", "ResNetConfig"]
