"""The model that writes a text from another, and what it is made from.

The encoder reads a source, in which every token sees all others; the decoder writes, sees what it has written, and
attends to the source. Both have one embedding, unless their words are others. In packed examples a segment of the text
sees its own segment of the source, the one with the same number, and no other.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax

from ...dim import Dim
from ...errors import ArgumentError
from ...ops import arange
from ...tensors import Tensor
from ..layers import arranged
from ..source_transformer import SOURCE_GLOSSARY, Kept, SourceTransformer, pair_shapes
from ..transformer import Layer
from ..transformer_config import NORMS, TransformerConfig


@dataclass(frozen=True)
class EncoderDecoderConfig(TransformerConfig):
    """The sizes and the kinds of parts of an encoder and a decoder: alike, but for the number of their layers."""

    glossary: ClassVar[Mapping[str, str]] = Dim.declare(SOURCE_GLOSSARY)
    batch_kind: ClassVar[str] = "pairs"

    encoder_layers: int | None = None  # of the encoder; none: as many as the decoder has
    source_embedding: bool = False  # whether sources have an embedding of their own: their subwords are others

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.encoder_layers is not None and self.encoder_layers < 1:
            raise ArgumentError(
                f"the model's encoder_layers is {self.encoder_layers}.", fix="give a number, 1 or more."
            )

    def make(self, key: Any) -> "EncoderDecoder":
        """Makes a model, the same under every layout."""
        return EncoderDecoder.init(key, self)

    def batch(self, sizes: Mapping[str, int]) -> dict[str, Tensor]:
        """Returns the shapes of a batch: packed sources and the texts that belong to them, by segments."""
        return pair_shapes(sizes)


class EncoderDecoder(SourceTransformer):
    """Writes a text from another."""

    encoder: Layer | tuple[Layer, ...]
    encoder_norm: Any

    @classmethod
    def init(cls, key: Any, config: EncoderDecoderConfig) -> "EncoderDecoder":
        """Makes a model, the same under every layout."""
        d, (first, second) = config.dims(), jax.random.split(key)
        stack = (Dim("layers", config.layers if config.encoder_layers is None else config.encoder_layers),)
        return cls(
            **cls.parts(first, config, crosses=True),
            encoder=arranged(Layer.init(second, config, stack, causal=False), config.layers_as, drawn=True),
            encoder_norm=NORMS[config.norm].init((d["d_model"],), epsilon=config.norm_epsilon),
        )

    def __call__(
        self,
        inputs: Tensor,
        tokens: Tensor,
        *,
        inputs_segments: Tensor | None = None,
        inputs_positions: Tensor | None = None,
        segments: Tensor | None = None,
        positions: Tensor | None = None,
        key: Any = None,
    ) -> Tensor:
        """Returns the logits of the next token at every place, [batch, positions, vocab].

        Args:
            inputs: the sources, [batch, source_length].
            tokens: the tokens before, [batch, length].
            inputs_segments: for packed examples, which source each token of the inputs is of.
            inputs_positions: the place of each token in its source; by default counted from 0.
            segments: the number of the source of each token.
            positions: the place of each token in its text; by default counted from 0.
            key: for dropout.
        """
        keys = (None, None) if key is None else jax.random.split(key)
        source = self.encode(inputs, inputs_segments, inputs_positions, keys[0])
        beside = None if inputs_segments is None else inputs_segments.rename(source_length="memory")
        x = self._encoded(
            self.layers, tokens, segments, positions, keys[1], source=source, source_segments=beside
        )  # fmt: skip
        return self._predicted(x)

    def encode(
        self, inputs: Tensor, segments: Tensor | None = None, positions: Tensor | None = None, key: Any = None
    ) -> Tensor:
        """Returns what the decoder attends to, [batch, memory, d_model]; arguments are as in a call."""
        tokens, segments, positions = (
            None if x is None else x.rename(source_length="length") for x in (inputs, segments, positions)
        )
        assert tokens is not None
        at = arange(tokens.dim("length")) if positions is None else positions
        x = self._embedded(tokens, at, self.source_embedding)
        return self.encoder_norm(self._transformed(self.encoder, x, segments, at, key)).rename(length="memory")

    def prefill(self, tokens: Tensor, lengths: Tensor, cache: Kept, inputs: Tensor, input_lengths: Tensor) -> Kept:
        """Returns a cache that holds sources and the beginnings of their texts.

        Args:
            tokens: the beginnings, [slots.., length].
            lengths: how many tokens of each count.
            cache: where they go.
            inputs: the sources, [batch, source_length].
            input_lengths: how many tokens of each count.
        """
        counts = (arange(inputs.dim("source_length")) < input_lengths).astype("int32")
        source = self.encode(inputs, counts)
        if isinstance(self.layers, tuple):
            kept: Any = tuple(
                layer.cross.remembered(source, own)  # type: ignore[union-attr]
                for layer, own in zip(self.layers, cache.sources, strict=True)
            )
        else:
            assert self.layers.cross is not None
            kept = self.layers.cross.remembered(source, cache.sources)
        return self._filled_beside(tokens, lengths, Kept(cache.texts, kept, input_lengths))
