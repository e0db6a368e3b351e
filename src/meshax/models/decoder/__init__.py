"""A Transformer language model: decoder only."""

from .decoder import Decoder, DecoderConfig

__all__ = ["Decoder", "DecoderConfig"]
