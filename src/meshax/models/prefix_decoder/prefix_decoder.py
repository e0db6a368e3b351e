"""The language model with a prefix, and what it is made from (as in Liu et al., 2018; Raffel et al., 2019).

One stack of layers reads a source and writes a text. The source is a prefix of the text: its tokens see each other, all
of them; those of the text see the prefix and what was written before, or a window of that. Only the text is predicted.

In a batch all sources stand before all texts, and segments keep pairs apart. The positions of a text go on where those
of its source end, wherever the two stand.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ...dim import Dim, Dims
from ...nn.cache import KeyValues, Reading
from ...ops import arange, broadcast, concat, full
from ...ops import slice as slice_
from ...ops import sum as sum_
from ...tensors import Tensor
from ..layers import go_through_cached
from ..source_transformer import SOURCE_GLOSSARY, Kept, SourceTransformer, pair_shapes
from ..transformer import Layer
from ..transformer_config import TransformerConfig


@dataclass(frozen=True)
class PrefixDecoderConfig(TransformerConfig):
    """The sizes and the kinds of parts of a language model with a prefix."""

    glossary: ClassVar[Mapping[str, str]] = Dim.declare(SOURCE_GLOSSARY)
    batch_kind: ClassVar[str] = "pairs"

    source_embedding: bool = False  # whether sources have an embedding of their own: their subwords are others

    def make(self, key: Any) -> "PrefixDecoder":
        """Makes a model, the same under every layout."""
        return PrefixDecoder(**PrefixDecoder.parts(key, self, prefixed=True))

    def batch(self, sizes: Mapping[str, int]) -> dict[str, Tensor]:
        """Returns the shapes of a batch: packed sources and the texts that belong to them, by segments."""
        return pair_shapes(sizes)


class PrefixDecoder(SourceTransformer):
    """Reads a source, and writes on from it."""

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
        """Returns the logits of the next token at every place of the texts, [batch, positions, vocab].

        Args:
            inputs: the sources, [batch, source_length].
            tokens: the tokens before, [batch, length].
            inputs_segments: for packed examples, which source each token of the inputs is of.
            inputs_positions: the place of each token in its source; by default counted from 0.
            segments: the number of the source of each token.
            positions: the place of each token in its text; by default counted from 0.
            key: for dropout.
        """
        source_length, length = inputs.dim("source_length"), tokens.dim("length")
        every, before = None, full((), source_length.size, "int32")  # of each token of a text, the tokens of its source
        if inputs_segments is not None and segments is not None:
            before = sum_(inputs_segments == segments, source_length).astype("int32")
            every = _joined(inputs_segments.rename(source_length="length"), segments)
        at = (arange(length) if positions is None else positions) + before
        there = arange(source_length) if inputs_positions is None else inputs_positions
        there, read = there.rename(source_length="length"), inputs.rename(source_length="length")
        at_all = _joined(there, at)
        if self.source_embedding is None:
            x = self._embedded(_joined(read, tokens), at_all)
        else:
            x = concat([self._embedded(read, there, self.source_embedding), self._embedded(tokens, at)], "length")
        x = self._transformed(self.layers, x, every, at_all, key, prefix=source_length.size)
        return self._predicted(slice_(x, "length", source_length.size, length.size))

    def empty_cache(self, slots: Dims, places: int, page: int, source_places: int = 0) -> Kept:
        """Makes room for the keys and values of texts, and for those of sources of so many tokens at most."""
        self._check_length(source_places + places)
        return super().empty_cache(slots, places, page, source_places)

    def prefill(self, tokens: Tensor, lengths: Tensor, cache: Kept, inputs: Tensor, input_lengths: Tensor) -> Kept:
        """Returns a cache that holds sources and the beginnings of their texts.

        Args:
            tokens: the beginnings, [slots.., length].
            lengths: how many tokens of each count.
            cache: where they go.
            inputs: the sources, [batch, source_length].
            input_lengths: how many tokens of each count.
        """
        read = inputs.rename(source_length="length")
        at = arange(read.dim("length"))
        texts: KeyValues = cache.texts[0] if isinstance(cache.texts, tuple) else cache.texts

        def step(layer: Layer, x: Tensor, own: Any, _: Any) -> tuple[Tensor, Any]:
            return layer.cached(x, Reading(own, input_lengths, texts.places), at.rename(length="positions"))

        x = self._embedded(read, at, self.source_embedding)
        sources = go_through_cached(self.layers, x, cache.sources, step)[1]
        return self._filled_beside(tokens, lengths, Kept(cache.texts, sources, input_lengths))

    def _recalled(self, cache: Kept) -> tuple[Any, Any, Tensor | None]:
        return (*super()._recalled(cache)[:2], cache.lengths)


def _joined(source: Tensor, text: Tensor) -> Tensor:
    """Returns what sources and texts have, one after the other along `length`; what one lacks a dim of, it repeats."""
    others = tuple(dict.fromkeys(d for x in (source, text) for d in x.dims if d.name != "length"))
    return concat([broadcast(x, (*others, x.dim("length"))) for x in (source, text)], "length")
