"""A Transformer that reads a source and writes on from it: a language model with a prefix."""

from .prefix_decoder import PrefixDecoder, PrefixDecoderConfig
from .presets import PRESETS

__all__ = ["PRESETS", "PrefixDecoder", "PrefixDecoderConfig"]
