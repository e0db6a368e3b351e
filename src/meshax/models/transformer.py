"""What Transformers are made of: a layer, and a model of a stack of them between an embedding and logits.

The layers are made as one module whose parameters have the dim `layers`, and then looped over or unrolled; the backward
pass recomputes what the remat policy does not keep.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax

from ..dim import Dim, Dims
from ..errors import ArgumentError
from ..nn import Attention, Dropout, Embedding, FeedForward, Linear, cross_entropy
from ..nn.attention import head_dims
from ..nn.cache import Filling, KeyValues, Stepping
from ..nn.positions import sinusoidal
from ..ops import arange, broadcast, einsum
from ..ops import sum as sum_
from ..ops.operands import recomputing
from ..ops.randomness import uniform
from ..tensors import Tensor, is_tensor
from .layers import arranged, go_through, go_through_cached
from .transformer_config import BIASES, NORMS, SHARED, TransformerConfig

_STREAM = {"positions": "length"}  # what leaves attention and feed-forward is of the stream
_FEW_TO_STEP = 64  # layers, up to which a step of one token is unrolled where that is faster
Attend = Callable[[Tensor], tuple[Tensor, Any]]


class Layer(eqx.Module):
    """Attention, perhaps attention to a source, and feed-forward, each on the normalised stream and added to it."""

    attention_norm: Any
    attention: Attention
    feed_forward_norm: Any
    feed_forward: FeedForward
    dropout: Dropout
    cross_norm: Any = None
    cross: Attention | None = None

    @classmethod
    def init(
        cls,
        key: Any,
        config: TransformerConfig,
        stack: Dims,
        *,
        causal: bool = True,
        crosses: bool = False,
        prefixed: bool = False,
    ) -> "Layer":
        """Makes the layers of a stack at once.

        Args:
            key: chooses the parameters.
            config: the sizes and kinds of parts.
            stack: the dim of the layers.
            causal: whether a token sees only itself and those before it.
            crosses: whether there is attention to a source.
            prefixed: whether calls have a prefix, though it is causal.
        """
        d, (first, second) = config.dims(), jax.random.split(key)
        shared = SHARED[config.dropout_shared]

        def norm() -> Any:
            return NORMS[config.norm].init((d["d_model"],), stack, config.norm_epsilon)

        def attention(key: Any, **options: Any) -> Attention:
            return Attention.init(
                key, d["d_model"], d["heads"], d["d_kv"], stack,
                kv_heads=config.kv_heads, scale=config.attention_scale,
                dropout=config.dropout, dropout_shared=shared,
                biases=BIASES[config.biases], norm_epsilon=config.norm_epsilon if config.qk_norm else None, **options,
            )  # fmt: skip

        positions = {
            "rotary": config.positions == "rotary" and config.rotation(),
            "relative": config.positions == "relative",
            "both_ways": prefixed,
            "window": config.window,
        }
        return cls(
            norm(),
            attention(first, causal=causal, **positions),
            norm(),
            FeedForward.init(
                second, (d["d_model"],), (d["d_ff"],), stack,
                activation=config.activation, gated=config.gated, bias=config.biases == "all",
                dropout=config.dropout, dropout_shared=shared,
            ),
            Dropout(config.dropout, shared),
            norm() if crosses else None,
            attention(jax.random.fold_in(key, 2), causal=False) if crosses else None,
        )  # fmt: skip

    def __call__(
        self,
        x: Tensor,
        segments: Tensor | None,
        at: Tensor | None,
        key: Any = None,
        source: Tensor | None = None,
        source_segments: Tensor | None = None,
        prefix: int = 0,
    ) -> Tensor:
        """Applies one layer to the stream.

        Args:
            x: the stream.
            segments: the document of each token.
            at: where it stands in its document.
            key: for dropout.
            source: what is attended to beside, [.., memory, d_model].
            source_segments: the document of each token of it.
            prefix: how many tokens, the first ones, all others see.
        """
        keys = (None,) * 6 if key is None else jax.random.split(key, 4 if self.cross is None else 6)

        def attend(inner: Tensor) -> tuple[Tensor, None]:
            how: dict[str, Any] = {"segments": segments, "positions": at, "prefix": prefix}
            return self.attention(inner, **how, key=keys[0], names=_STREAM), None

        def attend_to_source(inner: Tensor) -> Tensor:
            assert self.cross is not None
            beside: dict[str, Any] = {"segments": segments, "memory_segments": source_segments}
            return self.cross(inner, source, **beside, key=keys[4], names=_STREAM)

        return self._applied(x, attend, attend_to_source, keys)[0]

    def begins(self) -> Any:
        """Returns the parameters with which it begins."""
        return self.attention.q, self.attention.k, self.attention.v

    def cached(self, x: Tensor, cache: Any, at: Tensor, source: Any = None) -> tuple[Tensor, Any]:
        """Applies one layer to tokens that a cache takes in.

        Args:
            x: the stream.
            cache: what takes them in.
            at: where each token stands.
            source: what is kept of a source: attended to beside, or else as what comes before the tokens.
        """
        if self.cross is None and source is not None:
            cache = replace(cache, before=source)

        def attend(inner: Tensor) -> tuple[Tensor, Any]:
            out, kept = self.attention.cached(inner, cache, at)
            return out.rename(**_STREAM), kept

        def attend_to_source(inner: Tensor) -> Tensor:
            assert self.cross is not None
            return self.cross.recalling(inner, source).rename(**_STREAM)

        return self._applied(x, attend, attend_to_source, (None,) * 6)

    def joined(self) -> "Layer":
        """Returns the same layer with fewer, larger products where several have the same input."""
        return replace(self, attention=self.attention.joined(), feed_forward=self.feed_forward.joined())

    def _applied(
        self, x: Tensor, attend: Attend, attend_to_source: Callable[[Tensor], Tensor], keys: Any
    ) -> tuple[Tensor, Any]:
        out, kept = attend(self.attention_norm(x).rename(length="positions"))
        x = x + self.dropout(out, keys[1])
        if self.cross is not None:
            out = attend_to_source(self.cross_norm(x).rename(length="positions"))
            x = x + self.dropout(out, keys[5])
        inner = self.feed_forward_norm(x).rename(length="positions")
        return x + self.dropout(self.feed_forward(inner, keys[2], _STREAM), keys[3]), kept


class Transformer(eqx.Module):
    """A stack of layers between an embedding and logits: predicts the next token of each."""

    embedding: Embedding
    learned: Embedding | None
    layers: Layer | tuple[Layer, ...]
    norm: Any
    logits: Linear | None
    config: Any = eqx.field(static=True)

    @classmethod
    def parts(cls, key: Any, config: TransformerConfig, **of_layers: Any) -> dict[str, Any]:
        """Makes what every model has, by name, the same under every layout."""
        d, keys = config.dims(), jax.random.split(key, 4)
        width, words = (d["d_model"],), d["vocab"]
        places = Dim("places", config.max_length)
        is_learned = config.positions == "learned"
        return {
            "embedding": Embedding.init(keys[0], words, width),
            "learned": Embedding.init(keys[3], places, width, scale=0.02) if is_learned else None,
            "layers": arranged(Layer.init(keys[1], config, (d["layers"],), **of_layers), config.layers_as, drawn=True),
            "norm": NORMS[config.norm].init(width, epsilon=config.norm_epsilon),
            "logits": None if config.tied else Linear.init(keys[2], width, (words,)),
            "config": config,
        }

    def narrowed(self, joins: bool = True) -> Any:
        """Returns the model as it is read fastest: matrices in the dtype of products, few of them, layers unrolled.

        Args:
            joins: whether matrices with the same input become one, where the layout lets them.
        """

        def cast(part: Any) -> Any:
            return jax.tree.map(lambda x: x.astype(self.config.dtype), part, is_leaf=is_tensor)

        model: Any = _replaced(self, Linear | Embedding, cast)
        model = _replaced(model, Layer, Layer.joined) if joins else model
        model = _replaced(model, Linear, Linear.by_rows)
        return replace(model, layers=arranged(model.layers, self.config.layers_as, few=_FEW_TO_STEP))

    def _encoded(
        self,
        layers: Any,
        tokens: Tensor,
        segments: Tensor | None,
        positions: Tensor | None,
        key: Any,
        **source: Tensor | None,
    ) -> Tensor:
        """Returns the stream at the end of a stack of layers.

        Args:
            layers: the stack.
            tokens: what goes in, [.., length].
            segments: the document of each token, for packed examples.
            positions: the place of each token in its document; by default counted from 0.
            key: for dropout.
            source: what the layers attend to beside.
        """
        at = arange(tokens.dim("length")) if positions is None else positions
        return self._transformed(layers, self._embedded(tokens, at), segments, at, key, **source)

    def _transformed(
        self, layers: Any, x: Tensor, segments: Tensor | None, at: Tensor, key: Any, **beside: Any
    ) -> Tensor:
        """Returns the stream at the end of a stack of layers, from that at its beginning."""
        seen = None if segments is None else segments.rename(length="positions")
        there = at.rename(length="positions")

        def step(layer: Layer, x: Tensor, number: Any) -> Tensor:
            return layer(x, seen, there, None if key is None else jax.random.fold_in(key, number), **beside)

        config = self.config
        return go_through(layers, x, step, config.keep, begins=Layer.begins if config.fetch_ahead else None)

    def _empty(self, slots: Dims, places: int, page: int) -> Any:
        """Makes room for the keys and values of texts; where layers see only a window, for that of the window."""
        self._check_length(places)
        config, is_stack = self.config, not isinstance(self.layers, tuple)
        d = config.dims()
        heads = head_dims(d["heads"], config.kv_heads)[1]
        places = places if config.window is None else min(places, config.window)

        def empty(*stack: Dim) -> KeyValues:
            return KeyValues.empty(slots, heads, d["d_kv"], places, page, config.dtype, stack)

        return empty(d["layers"]) if is_stack else tuple(empty() for _ in range(config.layers))

    def _filled(
        self,
        tokens: Tensor,
        lengths: Tensor,
        cache: Any,
        recalled: Any = None,
        sources: Any = None,
        first: Tensor | None = None,
    ) -> Any:
        """Returns a cache that holds the beginnings of texts: [slots.., length], of which so many tokens each count.

        Args:
            tokens: the texts.
            lengths: how many of their tokens count.
            cache: where keys and values are kept.
            recalled: makes of what a layer keeps of a source what its attention asks.
            sources: what the layers keep of sources.
            first: the position of the first token of each text; by default 0.
        """
        at = arange(tokens.dim("length"))
        at = at if first is None else at + first

        def step(layer: Layer, x: Tensor, own: KeyValues, source: Any) -> tuple[Tensor, KeyValues]:
            beside = None if source is None else recalled(source)
            return layer.cached(x, Filling(own, lengths), at.rename(length="positions"), beside)

        return go_through_cached(self.layers, self._embedded(tokens, at), cache, step, sources)[1]

    def _stepped(
        self,
        tokens: Tensor,
        at: Tensor,
        cache: Any,
        num_pages: int,
        recalled: Any = None,
        sources: Any = None,
        first: Tensor | None = None,
    ) -> tuple[Tensor, Any]:
        """Returns the logits of the next token of each slot, and the cache with the token that is there now.

        Args:
            tokens: the token of each slot, [slots..].
            at: where it stands in its text, [slots..].
            cache: what is kept of the tokens before.
            num_pages: how many pages are read, at most: what later ones hold is not seen.
            recalled: makes of what a layer keeps of a source what its attention asks.
            sources: what the layers keep of sources.
            first: the position of the first token of each text; by default 0.
        """
        one = Dim("length", 1)
        here = broadcast(at if first is None else at + first, (*at.dims, one))

        def step(layer: Layer, x: Tensor, own: KeyValues, source: Any) -> tuple[Tensor, KeyValues]:
            pages = min(num_pages, own.keys.dim("pages").size)
            beside = None if source is None else recalled(source)
            return layer.cached(x, Stepping(own, at, pages), here.rename(length="positions"), beside)

        x = self._embedded(broadcast(tokens, (*tokens.dims, one)), here)
        x, cache = go_through_cached(self.layers, x, cache, step, sources)
        return sum_(self._predicted(x), "positions"), cache

    def _embedded(self, tokens: Tensor, at: Tensor, embedding: Embedding | None = None) -> Tensor:
        """Returns the stream at its beginning; tokens of other words have another embedding."""
        config = self.config
        x = (embedding or self.embedding)(tokens, config.dtype)
        x = x if config.embedding_scale == 1.0 else x * config.embedding_scale
        if config.positions == "sinusoidal":
            x = x + sinusoidal(at, Dim("d_model", config.d_model)).astype(x.dtype)
        elif self.learned is not None:
            self._check_length(tokens.dim("length").size)
            x = x + self.learned(at, config.dtype)
        return x

    def _check_length(self, length: int) -> None:
        if self.learned is not None and length > self.config.max_length:
            raise ArgumentError(
                f"there are {self.config.max_length} learned positions, for {length} tokens.",
                fix="choose a greater max_length, or shorter examples.",
            )

    def _predicted(self, x: Tensor) -> Tensor:
        """Returns the logits at the end of the stream."""
        config, x = self.config, self.norm(x).rename(length="positions")
        with recomputing(True):  # a stored matrix is gathered once: the backward pass begins with it
            if self.logits is not None:
                logits, usual = self.logits(x), 1.0
            else:
                logits = einsum(x, self.embedding.weight.astype(x.dtype), over="d_model")
                usual = config.d_model**-0.5
        scale = usual if config.logits_scale is None else config.logits_scale
        return logits if scale == 1.0 else logits * scale

    def _loss(self, logits: Tensor, batch: dict[str, Tensor], key: Any) -> tuple[Tensor, Tensor]:
        """Returns the summed cross entropy in nats, and the sum of the weights; with a key, as it is trained on."""
        config = self.config
        targets, weights = (batch[name].rename(length="positions") for name in ("targets", "weights"))
        if key is None:
            return cross_entropy(logits, targets, weights, "vocab")
        if jitter := config.logit_jitter:
            drawn = jax.random.fold_in(key, config.layers)  # the numbers below are those of the layers
            logits = logits * uniform(drawn, logits.dims, 1 - jitter, 1 + jitter).astype(logits.dtype)
        return cross_entropy(logits, targets, weights, "vocab", config.label_smoothing, config.z_loss)


def _replaced(tree: Any, kinds: Any, by: Callable[[Any], Any]) -> Any:
    """Returns a tree in which every part of some kinds is replaced."""
    is_one = lambda part: isinstance(part, kinds)  # noqa: E731
    return jax.tree.map(lambda part: by(part) if is_one(part) else part, tree, is_leaf=is_one)
