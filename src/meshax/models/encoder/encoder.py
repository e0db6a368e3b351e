"""The model that fills in what is hidden of a text, and what it is made from (as in BERT, Devlin et al., 2018).

Every token sees all others of its document. The targets are the tokens themselves; those that count were hidden or
replaced in what the model reads.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp

from ...dim import Dim
from ...nn.losses import perplexity
from ...ops import argmax
from ...ops import sum as sum_
from ...tensors import Tensor
from ..contract import shape_of
from ..transformer import Transformer
from ..transformer_config import GLOSSARY, TransformerConfig


@dataclass(frozen=True)
class EncoderConfig(TransformerConfig):
    """The sizes and the kinds of parts of an encoder."""

    glossary: ClassVar[Mapping[str, str]] = Dim.declare(GLOSSARY)
    batch_kind: ClassVar[str] = "masked tokens"

    def make(self, key: Any) -> "Encoder":
        """Makes a model, the same under every layout."""
        return Encoder(**Encoder.parts(key, self, causal=False))

    def batch(self, sizes: Mapping[str, int]) -> dict[str, Tensor]:
        """Returns the shapes of a batch: `tokens`, `targets` and `weights`; `segments` and `positions` may be added."""
        shape = shape_of((Dim("batch", sizes["batch"]), Dim("length", sizes["length"])))
        return dict.fromkeys(("tokens", "targets", "weights"), shape)

    def metrics(self, means: Mapping[str, float]) -> dict[str, float]:
        """Returns the perplexity of what was hidden, and what share of it is filled in right."""
        right = {"accuracy": means["right"]} if "right" in means else {}
        return {"perplexity": perplexity(means["loss"])} | right


class Encoder(Transformer):
    """Fills in what is hidden of a text."""

    def __call__(
        self, tokens: Tensor, segments: Tensor | None = None, positions: Tensor | None = None, key: Any = None
    ) -> Tensor:
        """Returns the logits of the token that belongs at each place, [batch, positions, vocab].

        Args:
            tokens: the tokens, of which some are hidden, [batch, length].
            segments: the document of each token, for packed examples.
            positions: the place of each token in its document; by default counted from 0.
            key: for dropout.
        """
        return self._predicted(self._encoded(self.layers, tokens, segments, positions, key))

    def loss(self, batch: dict[str, Tensor], key: Any = None) -> tuple[Tensor, Tensor]:
        """Returns the summed cross entropy of what was hidden in nats, and the number of tokens it is a sum over.

        Args:
            batch: tensors `tokens targets segments positions weights`, each [batch, length].
            key: for dropout.
        """
        return self._loss(self._logits(batch, key), batch, key)

    def measure(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Returns the summed cross entropy of a batch, and how many hidden tokens the likeliest ones are."""
        logits = self._logits(batch, None)
        targets, weights = (batch[name].rename(length="positions") for name in ("targets", "weights"))
        is_right = (argmax(logits, "vocab") == targets).astype(jnp.float32)
        return {"loss": self._loss(logits, batch, None)[0], "right": sum_(is_right * weights.astype(jnp.float32))}

    def _logits(self, batch: dict[str, Tensor], key: Any) -> Tensor:
        return self(batch["tokens"], batch.get("segments"), batch.get("positions"), key)
