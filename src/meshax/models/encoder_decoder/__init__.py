"""A Transformer that writes a text from another, as the paper translates: encoder and decoder."""

from .encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from .presets import PRESETS

__all__ = ["PRESETS", "EncoderDecoder", "EncoderDecoderConfig"]
