"""A Transformer that fills in what is hidden of a text: an encoder, trained on masked tokens."""

from .encoder import Encoder, EncoderConfig
from .presets import PRESETS

__all__ = ["PRESETS", "Encoder", "EncoderConfig"]
