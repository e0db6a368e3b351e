"""A Transformer language model: decoder only."""

from .decoder import Decoder, DecoderConfig
from .presets import PRESETS

__all__ = ["PRESETS", "Decoder", "DecoderConfig"]
