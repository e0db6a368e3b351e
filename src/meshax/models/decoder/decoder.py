"""The language model, and what it is made from."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ...dim import Dim, Dims
from ...tensors import Tensor
from ..contract import shape_of
from ..transformer import Transformer
from ..transformer_config import GLOSSARY, TransformerConfig


@dataclass(frozen=True)
class DecoderConfig(TransformerConfig):
    """The sizes and the kinds of parts of a language model."""

    glossary: ClassVar[Mapping[str, str]] = Dim.declare(GLOSSARY)
    batch_kind: ClassVar[str] = "tokens"

    def make(self, key: Any) -> "Decoder":
        """Makes a model, the same under every layout."""
        return Decoder.init(key, self)

    def batch(self, sizes: Mapping[str, int]) -> dict[str, Tensor]:
        """Returns the shapes of a batch: `tokens`, `targets` and `weights`; `segments` and `positions` may be added."""
        shape = shape_of((Dim("batch", sizes["batch"]), Dim("length", sizes["length"])))
        return dict.fromkeys(("tokens", "targets", "weights"), shape)


class Decoder(Transformer):
    """The language model."""

    @classmethod
    def init(cls, key: Any, config: DecoderConfig) -> "Decoder":
        """Makes a model, the same under every layout."""
        return cls(**cls.parts(key, config))

    def __call__(
        self, tokens: Tensor, segments: Tensor | None = None, positions: Tensor | None = None, key: Any = None
    ) -> Tensor:
        """Returns the logits of the next token at every place, [batch, positions, vocab].

        Args:
            tokens: the tokens before, [batch, length].
            segments: the document of each token, for packed examples.
            positions: the place of each token in its document; by default counted from 0.
            key: for dropout.
        """
        return self._predicted(self._encoded(self.layers, tokens, segments, positions, key))

    def empty_cache(self, slots: Dims, places: int, page: int) -> Any:
        """Makes room for the keys and values of texts; where layers see only a window, for that of the window."""
        return self._empty(slots, places, page)

    def prefill(self, tokens: Tensor, lengths: Tensor, cache: Any) -> Any:
        """Returns a cache that holds the beginnings of texts: [slots.., length], of which so many tokens each count."""
        return self._filled(tokens, lengths, cache)

    def step(self, tokens: Tensor, at: Tensor, cache: Any, num_pages: int) -> tuple[Tensor, Any]:
        """Returns the logits of the next token of each slot, and the cache with the token that is there now.

        Args:
            tokens: the token of each slot, [slots..].
            at: where it stands in its text, [slots..].
            cache: what is kept of the tokens before.
            num_pages: how many pages are read, at most: what later ones hold is not seen.
        """
        return self._stepped(tokens, at, cache, num_pages)

    def loss(self, batch: dict[str, Tensor], key: Any = None) -> tuple[Tensor, Tensor]:
        """Returns the summed cross entropy of a batch in nats, and the number of tokens it is a sum over.

        Args:
            batch: tensors `tokens targets segments positions weights`, each [batch, length].
            key: for dropout.
        """
        logits = self(batch["tokens"], batch.get("segments"), batch.get("positions"), key)
        return self._loss(logits, batch, key)

    def measure(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Returns the summed cross entropy of a batch."""
        return {"loss": self.loss(batch)[0]}
