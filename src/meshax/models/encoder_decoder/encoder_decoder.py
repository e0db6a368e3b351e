"""The model that writes a text from another, and what it is made from.

The encoder reads a source, in which every token sees all others; the decoder writes, sees what it has written, and
attends to the source. Both have one embedding. In packed examples a segment of the text sees its own segment of the
source, the one with the same number, and no other.

The encoder's stream has the dims of the decoder's, `length` too: only a batch calls the tokens of a source
`source_length`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import equinox as eqx
import jax

from ...dim import Dim, Dims
from ...errors import ArgumentError
from ...nn.attention import head_dims
from ...nn.cache import Recalled, Remembered
from ...ops import arange, where, zeros
from ...tensors import Tensor
from ..contract import shape_of
from ..layers import arranged
from ..transformer import Layer, Transformer
from ..transformer_config import GLOSSARY, NORMS, TransformerConfig


@dataclass(frozen=True)
class EncoderDecoderConfig(TransformerConfig):
    """The sizes and the kinds of parts of an encoder and a decoder: alike, but for the number of their layers."""

    glossary: ClassVar[Mapping[str, str]] = Dim.declare(
        GLOSSARY | {"source_length": "tokens of a source in a batch; the encoder's stream calls them length"}
    )
    batch_kind: ClassVar[str] = "pairs"

    encoder_layers: int | None = None  # of the encoder; none: as many as the decoder has

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
        batch = Dim("batch", sizes["batch"])
        source, text = (shape_of((batch, Dim(name, sizes[name]))) for name in ("source_length", "length"))
        return dict.fromkeys(("inputs", "inputs_segments", "inputs_positions"), source) | dict.fromkeys(
            ("tokens", "targets", "segments", "positions", "weights"), text
        )


class Kept(eqx.Module):
    """What is kept of sources, and of the texts that are written from them."""

    texts: Any  # keys and values of the tokens so far: [.., slots.., ..]
    sources: Any  # keys and values of sources: [.., batch, ..]; all beams of a text have one
    lengths: Tensor  # of the sources, [batch]


class EncoderDecoder(Transformer):
    """Writes a text from another."""

    reads_sources: ClassVar[bool] = True
    encoder: Layer | tuple[Layer, ...]
    encoder_norm: Any

    @classmethod
    def init(cls, key: Any, config: EncoderDecoderConfig) -> "EncoderDecoder":
        """Makes a model, the same under every layout."""
        d, (first, second) = config.dims(), jax.random.split(key)
        stack = (Dim("layers", config.layers if config.encoder_layers is None else config.encoder_layers),)
        return cls(
            **cls.parts(first, config, crosses=True),
            encoder=arranged(Layer.init(second, config, stack, causal=False), config.layers_as),
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
        return self.encoder_norm(self._encoded(self.encoder, tokens, segments, positions, key)).rename(length="memory")

    def empty_cache(self, slots: Dims, places: int, page: int, source_places: int = 0) -> Kept:
        """Makes room for the keys and values of texts, and for those of sources of so many tokens at most."""
        config, is_stack = self.config, not isinstance(self.layers, tuple)
        self._check_length(source_places)
        d = config.dims()
        heads = head_dims(d["heads"], config.kv_heads)[1]

        def empty(*stack: Dim) -> Remembered:
            return Remembered.empty(slots[:1], heads, d["d_kv"], source_places, config.dtype, stack)

        sources = empty(d["layers"]) if is_stack else tuple(empty() for _ in range(config.layers))
        return Kept(self._empty(slots, places, page), sources, zeros(slots[:1], "int32"))

    def prefill(self, tokens: Tensor, lengths: Tensor, cache: Kept, inputs: Tensor, input_lengths: Tensor) -> Kept:
        """Returns a cache that holds sources and the beginnings of their texts.

        Args:
            tokens: the beginnings, [slots.., length].
            lengths: how many tokens of each count.
            cache: where they go.
            inputs: the sources, [batch, source_length].
            input_lengths: how many tokens of each count.
        """
        counts = where(arange(inputs.dim("source_length")) < input_lengths, 1, 0)
        source = self.encode(inputs, counts)
        if isinstance(self.layers, tuple):
            kept: Any = tuple(
                layer.cross.remembered(source, own)  # type: ignore[union-attr]
                for layer, own in zip(self.layers, cache.sources, strict=True)
            )
        else:
            assert self.layers.cross is not None
            kept = self.layers.cross.remembered(source, cache.sources)
        cache = Kept(cache.texts, kept, input_lengths)
        return Kept(self._filled(tokens, lengths, cache.texts, *self._recalled(cache)), kept, input_lengths)

    def step(self, tokens: Tensor, at: Tensor, cache: Kept, num_pages: int) -> tuple[Tensor, Kept]:
        """Returns the logits of the next token of each slot, and the cache with the token that is there now.

        Args:
            tokens: the token of each slot, [slots..].
            at: where it stands in its text, [slots..].
            cache: what is kept of the sources and of the tokens before.
            num_pages: how many pages are read, at most: what later ones hold is not seen.
        """
        logits, texts = self._stepped(tokens, at, cache.texts, num_pages, *self._recalled(cache))
        return logits, Kept(texts, cache.sources, cache.lengths)

    def _recalled(self, cache: Kept) -> tuple[Any, Any]:
        return (lambda source: Recalled(source, cache.lengths)), cache.sources

    def loss(self, batch: dict[str, Tensor], key: Any = None) -> tuple[Tensor, Tensor]:
        """Returns the summed cross entropy of a batch in nats, and the number of tokens it is a sum over.

        Args:
            batch: tensors as the configuration describes them.
            key: for dropout.
        """
        names = ("inputs", "tokens", "inputs_segments", "inputs_positions", "segments", "positions")
        logits = self(**{name: batch[name] for name in names if name in batch}, key=key)
        return self._loss(logits, batch, key)

    def measure(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Returns the summed cross entropy of a batch."""
        return {"loss": self.loss(batch)[0]}
