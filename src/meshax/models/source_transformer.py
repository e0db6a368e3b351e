"""What Transformers that write a text from another have in common: pairs of both, and what is kept to write.

A batch has sources and texts, packed: a segment of a text belongs to the segment of the sources with its number. Only a
batch calls the tokens of a source `source_length`; streams call them `length`.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import equinox as eqx
import jax

from ..dim import Dim, Dims
from ..nn import Embedding
from ..nn.attention import head_dims
from ..nn.cache import Recalled, Remembered
from ..ops import zeros
from ..tensors import Tensor
from .contract import shape_of
from .transformer import Transformer
from .transformer_config import GLOSSARY

SOURCE_GLOSSARY = GLOSSARY | {"source_length": "tokens of a source in a batch; streams call them length"}


def pair_shapes(sizes: Mapping[str, int]) -> dict[str, Tensor]:
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


class SourceTransformer(Transformer):
    """Writes a text from another."""

    reads_sources: ClassVar[bool] = True
    source_embedding: Embedding | None  # None: sources have the words of texts

    @classmethod
    def parts(cls, key: Any, config: Any, **of_layers: Any) -> dict[str, Any]:
        """Makes what every such model has, by name, the same under every layout."""
        d, drawn = config.dims(), jax.random.fold_in(key, 1)
        own = Embedding.init(drawn, d["vocab"], (d["d_model"],)) if config.source_embedding else None
        return super().parts(key, config, **of_layers) | {"source_embedding": own}

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

    def _filled_beside(self, tokens: Tensor, lengths: Tensor, cache: Kept) -> Kept:
        """Returns a cache that holds sources with the beginnings of their texts."""
        texts = self._filled(tokens, lengths, cache.texts, *self._recalled(cache))
        return Kept(texts, cache.sources, cache.lengths)

    def _recalled(self, cache: Kept) -> tuple[Any, Any, Tensor | None]:
        """Returns how layers ask what is kept of sources, that, and the positions at which the texts begin."""
        return (lambda source: Recalled(source, cache.lengths)), cache.sources, None

    def loss(self, batch: dict[str, Tensor], key: Any = None) -> tuple[Tensor, Tensor]:
        """Returns the summed cross entropy of a batch in nats, and the number of tokens it is a sum over.

        Args:
            batch: tensors as the configuration describes them.
            key: for dropout.
        """
        names = ("inputs", "tokens", "inputs_segments", "inputs_positions", "segments", "positions")
        logits = self(**{name: batch[name] for name in names if name in batch}, key=key)  # type: ignore[operator]
        return self._loss(logits, batch, key)

    def measure(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Returns the summed cross entropy of a batch."""
        return {"loss": self.loss(batch)[0]}
