"""The language model, and what it is made from.

The layers are made as one module whose parameters have the dim `layers`, and then looped over or unrolled; the backward
pass recomputes what the remat policy does not keep.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import equinox as eqx
import jax

from ...dim import Dim, Dims
from ...errors import ArgumentError, did_you_mean
from ...nn import Attention, Dropout, Embedding, FeedForward, LayerNorm, Linear, RMSNorm, cross_entropy
from ...nn.attention import head_dims
from ...nn.cache import Filling, KeyValues, Stepping
from ...nn.feed_forward import ACTIVATIONS
from ...nn.losses import perplexity
from ...nn.positions import Rotation, sinusoidal
from ...ops import arange, broadcast, einsum
from ...ops import sum as sum_
from ...ops.operands import recomputing
from ...tensors import Tensor, is_tensor
from ..contract import shape_of
from ..layers import arranged, check_layers_as, go_through, go_through_cached
from ..recomputation import KEEP

GLOSSARY = Dim.declare(
    {
        "batch": "examples",
        "length": "tokens of an example, along the stream of layers",
        "positions": "the same tokens, as attention and feed-forward see them: a rule for length alone splits the "
        "stream and gathers it there (sequence parallel)",
        "memory": "the tokens attended to",
        "vocab": "subwords",
        "d_model": "the width of the stream",
        "heads": "heads of queries; where groups of them share keys, those of one group",
        "kv_heads": "groups of heads that share keys",
        "d_kv": "the width of a head",
        "d_ff": "the width between the feed-forward maps",
        "layers": "the stack, which is looped over",
        "places": "learned positions",
        "distances": "relative positions that have a bias of their own",
    }
)
_STREAM = {"positions": "length"}  # what leaves attention and feed-forward is of the stream
POSITIONS = ("rotary", "sinusoidal", "learned", "relative", "none")
DTYPES = ("bfloat16", "float16", "float32")
NORMS: dict[str, Any] = {"rms": RMSNorm, "layer": LayerNorm}
_SIZES = ("d_model", "heads", "d_kv", "d_ff", "layers", "vocab")
BIASES = {"none": (), "qkv": ("q", "k", "v"), "attention": ("q", "k", "v", "out"), "all": ("q", "k", "v", "out")}


@dataclass(frozen=True)
class DecoderConfig:
    """The sizes and the kinds of parts of a language model."""

    glossary: ClassVar[Mapping[str, str]] = GLOSSARY
    batch_kind: ClassVar[str] = "tokens"
    may_change: ClassVar[tuple[str, ...]] = ("keep", "dtype", "layers_as", "dropout", "label_smoothing", "z_loss")

    d_model: int = 1024  # the width of the stream
    heads: int = 16  # of queries, in each layer
    d_kv: int = 64  # the width of a head
    d_ff: int = 4096  # the width between the feed-forward maps
    layers: int = 6  # of attention and feed-forward
    vocab: int = 32768  # subwords at most
    kv_heads: int | None = None  # groups of heads that share keys; none: each head has its own
    activation: str = "relu"  # relu, gelu, gelu_exact, silu or sigmoid
    gated: bool = False  # whether a second feed-forward map gates the first, as in SwiGLU
    norm: str = "rms"  # rms or layer
    positions: str = "sinusoidal"  # how places are told apart: rotary, sinusoidal, learned, relative or none
    max_length: int = 2048  # of learned positions
    window: int | None = None  # how many tokens back attention sees; none: all
    tied: bool = False  # one matrix for the embedding and the logits
    biases: str = "none"  # which linear maps add one: none, qkv, attention (the map out of it too) or all
    qk_norm: bool = False  # whether queries and keys are normalised, head by head
    norm_epsilon: float = 1e-6  # what keeps a norm from dividing by nothing
    embedding_scale: float = 1.0  # what embeddings are multiplied by
    logits_scale: float | None = None  # what logits are multiplied by; none: 1, or 1 / sqrt(d_model) if tied
    rope_theta: float = 10_000.0  # the base of rotary positions
    rope_scaling: str = "none"  # how rotations reach beyond the length of training: none, linear, dynamic, yarn, llama3
    rope_factor: float = 1.0  # of the scaling: how many times longer
    rope_original: int = 0  # of the scaling: the length of training
    rope_low: float = 0.0  # of yarn, llama3: turns within that length up to which pairs are slowed down; 0: the usual
    rope_high: float = 0.0  # of yarn, llama3: turns from which on they are not; 0: the usual
    rope_attention: float = 0.0  # of yarn: what queries and keys are multiplied by; 0: what suits the factor
    rope_whole: bool = True  # of yarn: whether the passage between the two begins and ends with whole pairs
    dropout: float = 0.0  # the share of activations that are dropped
    label_smoothing: float = 0.0  # the share of probability that goes to all tokens alike
    z_loss: float = 0.0  # the weight of a loss that keeps logits small
    keep: str = "nothing"  # what the backward pass keeps of a layer
    layers_as: str = "auto"  # how layers are gone through: "loop", "unrolled", or "auto": as suits depth and device
    dtype: str = "bfloat16"  # of products and activations; parameters are float32

    def __post_init__(self) -> None:
        for what, value, known in (
            ("positions", self.positions, POSITIONS),
            ("norm", self.norm, tuple(NORMS)),
            ("remat policy", self.keep, tuple(KEEP)),
            ("activation", self.activation, tuple(ACTIVATIONS)),
            ("floating dtype", self.dtype, DTYPES),
            ("choice of biases", self.biases, tuple(BIASES)),
        ):
            if value not in known:
                raise ArgumentError(f"there is no {what} {value!r}.", fix=did_you_mean(value, known))
        check_layers_as(self.layers_as)
        self.rotation()
        if not self.norm_epsilon > 0:
            raise ArgumentError(
                f"norm_epsilon keeps a norm from dividing by nothing, and is {self.norm_epsilon}.",
                fix="for example 1e-6.",
            )
        if not 0 <= self.dropout < 1:
            raise ArgumentError(
                f"a dropout rate is at least 0 and less than 1, not {self.dropout}.", fix="for example 0.1."
            )
        self._check_numbers()

    def _check_numbers(self) -> None:
        least: dict[str, float] = dict.fromkeys((*_SIZES, "max_length", "window"), 1)
        least |= dict.fromkeys(("embedding_scale", "logits_scale"), -math.inf)
        least |= {"label_smoothing": 0, "z_loss": 0}
        for name, number in least.items():
            value = getattr(self, name)
            if value is not None and not (value >= number and math.isfinite(value)):
                bound = f", {number} or more" if math.isfinite(number) else ""
                raise ArgumentError(f"the model's {name} is {value}.", fix=f"give a number{bound}.")
        if self.label_smoothing >= 1:
            raise ArgumentError(
                f"the model's label_smoothing is {self.label_smoothing}.",
                rule="it is a share of probability, and the right token has the rest.",
                fix="give a number below 1, as in 0.1.",
            )

    def rotation(self) -> Rotation:
        """Returns how queries and keys are turned, where positions are rotary."""
        extent = self.rope_factor, self.rope_original, self.rope_low, self.rope_high
        return Rotation(self.rope_theta, self.rope_scaling, *extent, self.rope_attention, self.rope_whole)

    def make(self, key: Any) -> "Decoder":
        """Makes a model, the same under every layout."""
        return Decoder.init(key, self)

    def dims(self) -> dict[str, Dim]:
        """Returns the dims that layers are made of, by name."""
        return {name: Dim(name, getattr(self, name)) for name in _SIZES}

    def sizes(self) -> dict[str, int]:
        """Returns the sizes of the dims of the parameters, by name; those of heads as attention groups them."""
        groups = head_dims(Dim("heads", self.heads), self.kv_heads)[0]
        return {name: dim.size for name, dim in self.dims().items()} | {dim.name: dim.size for dim in groups}

    def batch(self, sizes: Mapping[str, int]) -> dict[str, Tensor]:
        """Returns the shapes of a batch: `tokens`, `targets` and `weights`; `segments` and `positions` may be added."""
        shape = shape_of((Dim("batch", sizes["batch"]), Dim("length", sizes["length"])))
        return dict.fromkeys(("tokens", "targets", "weights"), shape)

    def metrics(self, means: Mapping[str, float]) -> dict[str, float]:
        """Returns the perplexity per token."""
        return {"perplexity": perplexity(means["loss"])}


class Layer(eqx.Module):
    """Attention and feed-forward, each on the normalised stream and added to it."""

    attention_norm: Any
    attention: Attention
    feed_forward_norm: Any
    feed_forward: FeedForward
    dropout: Dropout

    @classmethod
    def init(cls, key: Any, config: DecoderConfig, stack: Dims) -> "Layer":
        """Makes the layers of a stack at once."""
        d, (first, second) = config.dims(), jax.random.split(key)
        norms = [NORMS[config.norm].init((d["d_model"],), stack, config.norm_epsilon) for _ in range(2)]
        return cls(
            norms[0],
            Attention.init(
                first, d["d_model"], d["heads"], d["d_kv"], stack,
                kv_heads=config.kv_heads, window=config.window, dropout=config.dropout,
                rotary=config.positions == "rotary" and config.rotation(),
                relative=config.positions == "relative",
                biases=BIASES[config.biases], norm_epsilon=config.norm_epsilon if config.qk_norm else None,
            ),
            norms[1],
            FeedForward.init(
                second, (d["d_model"],), (d["d_ff"],), stack,
                activation=config.activation, gated=config.gated, dropout=config.dropout, bias=config.biases == "all",
            ),
            Dropout(config.dropout),
        )  # fmt: skip

    def __call__(self, x: Tensor, segments: Tensor | None, at: Tensor | None, key: Any = None) -> Tensor:
        """Applies one layer to the stream."""
        keys = (None,) * 4 if key is None else jax.random.split(key, 4)

        def attend(inner: Tensor) -> tuple[Tensor, None]:
            return self.attention(inner, segments=segments, positions=at, key=keys[0], names=_STREAM), None

        return self._applied(x, attend, keys)[0]

    def cached(self, x: Tensor, cache: Any, at: Tensor) -> tuple[Tensor, Any]:
        """Applies one layer to tokens that a cache takes in."""

        def attend(inner: Tensor) -> tuple[Tensor, Any]:
            out, kept = self.attention.cached(inner, cache, at)
            return out.rename(**_STREAM), kept

        return self._applied(x, attend, (None,) * 4)

    def _applied(self, x: Tensor, attend: Callable[[Tensor], tuple[Tensor, Any]], keys: Any) -> tuple[Tensor, Any]:
        out, kept = attend(self.attention_norm(x).rename(length="positions"))
        x = x + self.dropout(out, keys[1])
        inner = self.feed_forward_norm(x).rename(length="positions")
        return x + self.dropout(self.feed_forward(inner, keys[2], _STREAM), keys[3]), kept


class Decoder(eqx.Module):
    """The language model."""

    embedding: Embedding
    learned: Embedding | None
    layers: Layer | tuple[Layer, ...]
    norm: Any
    logits: Linear | None
    config: DecoderConfig = eqx.field(static=True)

    @classmethod
    def init(cls, key: Any, config: DecoderConfig) -> "Decoder":
        """Makes a model, the same under every layout."""
        d, keys = config.dims(), jax.random.split(key, 4)
        width, words = (d["d_model"],), d["vocab"]
        places = Dim("places", config.max_length)
        return cls(
            Embedding.init(keys[0], words, width),
            Embedding.init(keys[3], places, width, scale=0.02) if config.positions == "learned" else None,
            arranged(Layer.init(keys[1], config, (d["layers"],)), config.layers_as),
            NORMS[config.norm].init(width, epsilon=config.norm_epsilon),
            None if config.tied else Linear.init(keys[2], width, (words,)),
            config,
        )

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
        at = arange(tokens.dim("length")) if positions is None else positions
        x = self._embedded(tokens, at)
        seen = None if segments is None else segments.rename(length="positions")
        there = at.rename(length="positions")

        def step(layer: Layer, x: Tensor, number: Any) -> Tensor:
            return layer(x, seen, there, None if key is None else jax.random.fold_in(key, number))

        return self._predicted(go_through(self.layers, x, step, self.config.keep))

    def narrowed(self) -> "Decoder":
        """Returns the model with its matrices in the dtype of products, in which they are used: so less is read."""

        def cast(part: Any) -> Any:
            if not isinstance(part, Linear | Embedding):
                return part
            return jax.tree.map(lambda x: x.astype(self.config.dtype), part, is_leaf=is_tensor)

        return jax.tree.map(cast, self, is_leaf=lambda part: isinstance(part, Linear | Embedding))

    def empty_cache(self, slots: Dims, places: int, page: int) -> Any:
        """Makes room for the keys and values of texts; where layers see only a window, for that of the window."""
        self._check_length(places)
        config, is_stack = self.config, not isinstance(self.layers, tuple)
        d = config.dims()
        heads = head_dims(d["heads"], config.kv_heads)[1]
        places = places if config.window is None else min(places, config.window)

        def empty(*stack: Dim) -> KeyValues:
            return KeyValues.empty(slots, heads, d["d_kv"], places, page, config.dtype, stack)

        return empty(d["layers"]) if is_stack else tuple(empty() for _ in range(config.layers))

    def prefill(self, tokens: Tensor, lengths: Tensor, cache: Any) -> Any:
        """Returns a cache that holds the beginnings of texts: [slots.., length], of which so many tokens each count."""
        at = arange(tokens.dim("length"))

        def step(layer: Layer, x: Tensor, own: KeyValues) -> tuple[Tensor, KeyValues]:
            return layer.cached(x, Filling(own, lengths), at.rename(length="positions"))

        return go_through_cached(self.layers, self._embedded(tokens, at), cache, step)[1]

    def step(self, tokens: Tensor, at: Tensor, cache: Any, num_pages: int) -> tuple[Tensor, Any]:
        """Returns the logits of the next token of each slot, and the cache with the token that is there now.

        Args:
            tokens: the token of each slot, [slots..].
            at: where it stands in its text, [slots..].
            cache: what is kept of the tokens before.
            num_pages: how many pages are read, at most: what later ones hold is not seen.
        """
        one = Dim("length", 1)
        here = broadcast(at, (*at.dims, one))

        def step(layer: Layer, x: Tensor, own: KeyValues) -> tuple[Tensor, KeyValues]:
            pages = min(num_pages, own.keys.dim("pages").size)
            return layer.cached(x, Stepping(own, at, pages), here.rename(length="positions"))

        x = self._embedded(broadcast(tokens, (*tokens.dims, one)), here)
        x, cache = go_through_cached(self.layers, x, cache, step)
        return sum_(self._predicted(x), "positions"), cache

    def _embedded(self, tokens: Tensor, at: Tensor) -> Tensor:
        """Returns the stream at its beginning."""
        config = self.config
        x = self.embedding(tokens, config.dtype)
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

    def loss(self, batch: dict[str, Tensor], key: Any = None) -> tuple[Tensor, Tensor]:
        """Returns the summed cross entropy of a batch in nats, and the number of tokens it is a sum over.

        Args:
            batch: tensors `tokens targets segments positions weights`, each [batch, length].
            key: for dropout.
        """
        logits = self(batch["tokens"], batch.get("segments"), batch.get("positions"), key)
        targets, weights = (batch[name].rename(length="positions") for name in ("targets", "weights"))
        smoothing, z_loss = (self.config.label_smoothing, self.config.z_loss) if key is not None else (0.0, 0.0)
        return cross_entropy(logits, targets, weights, "vocab", smoothing, z_loss)

    def measure(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Returns the summed cross entropy of a batch."""
        return {"loss": self.loss(batch)[0]}
