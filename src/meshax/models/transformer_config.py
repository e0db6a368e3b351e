"""What every Transformer is made from: the fields that their configurations share, and what is wrong with some values.

A kind of model adds to these its own: which examples it reads, and the fields that only it has.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ..dim import Dim
from ..errors import ArgumentError, did_you_mean
from ..nn import LayerNorm, RMSNorm
from ..nn.attention import head_dims
from ..nn.feed_forward import ACTIVATIONS
from ..nn.losses import perplexity
from ..nn.positions import BUCKETS, Rotation
from .layers import check_layers_as
from .recomputation import KEEP

# The dims that a layout may name, of any of them.
GLOSSARY = {
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
POSITIONS = ("rotary", "sinusoidal", "learned", "relative", "none")
DTYPES = ("bfloat16", "float16", "float32")
NORMS: dict[str, Any] = {"rms": RMSNorm, "layer": LayerNorm}
BIASES = {"none": (), "qkv": ("q", "k", "v"), "attention": ("q", "k", "v", "out"), "all": ("q", "k", "v", "out")}
_SIZES = ("d_model", "heads", "d_kv", "d_ff", "layers", "vocab")
SHARED = {"none": (), "length": ("length", "positions")}  # dims along which the same is dropped

# What the paper's runs had, beside sizes, as published with Tensor2Tensor (models/mtf_transformer.py).
PAPER_FIELDS: dict[str, Any] = {
    "positions": "learned", "max_length": 256, "dropout": 0.1, "dropout_shared": "length", "logit_jitter": 0.01,
}  # fmt: skip
PAPER_RECIPE: dict[str, Any] = {
    "optimizer": "adafactor", "schedule": "paper", "warmup": 10_000, "clip": 0.0, "count_padding": True,
}  # fmt: skip


@dataclass(frozen=True)
class TransformerConfig:
    """The sizes and the kinds of parts of a Transformer."""

    may_change: ClassVar[tuple[str, ...]] = (
        "keep", "dtype", "layers_as", "fetch_ahead",
        "dropout", "dropout_shared", "label_smoothing", "z_loss", "logit_jitter",
    )  # fmt: skip

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
    attention_scale: float | None = None  # what queries times keys are multiplied by; none: 1 / sqrt(d_kv)
    dropout: float = 0.0  # the share of activations that are dropped
    dropout_shared: str = "none"  # along what the same is dropped: none, or length: in all tokens of an example alike
    label_smoothing: float = 0.0  # the share of probability that goes to all tokens alike
    z_loss: float = 0.0  # the weight of a loss that keeps logits small
    logit_jitter: float = 0.0  # in training logits are multiplied by numbers drawn from 1 minus this to 1 plus this
    keep: str = "nothing"  # what the backward pass keeps of a layer
    layers_as: str = "auto"  # how layers are gone through: "loop", "unrolled", or "auto": as suits depth and device
    fetch_ahead: bool = False  # in a loop: gather what a layer begins with, stored in parts, during the one before
    dtype: str = "bfloat16"  # of products and activations; parameters are float32

    def __post_init__(self) -> None:
        for what, value, known in (
            ("positions", self.positions, POSITIONS),
            ("norm", self.norm, tuple(NORMS)),
            ("remat policy", self.keep, tuple(KEEP)),
            ("activation", self.activation, tuple(ACTIVATIONS)),
            ("floating dtype", self.dtype, DTYPES),
            ("choice of biases", self.biases, tuple(BIASES)),
            ("dim to share dropout along", self.dropout_shared, tuple(SHARED)),
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
        for what, share in (("dropout rate", self.dropout), ("jitter of logits", self.logit_jitter)):
            if not 0 <= share < 1:
                raise ArgumentError(f"a {what} is at least 0 and less than 1, not {share}.", fix="for example 0.1.")
        self._check_numbers()

    def _check_numbers(self) -> None:
        least: dict[str, float] = dict.fromkeys((*_SIZES, "max_length", "window"), 1)
        least |= dict.fromkeys(("embedding_scale", "logits_scale", "attention_scale"), -math.inf)
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

    def dims(self) -> dict[str, Dim]:
        """Returns the dims that layers are made of, by name."""
        return {name: Dim(name, getattr(self, name)) for name in _SIZES}

    def sizes(self) -> dict[str, int]:
        """Returns the sizes of the dims of the parameters, by name; those of heads as attention groups them."""
        groups = head_dims(Dim("heads", self.heads), self.kv_heads)[0]
        learned = {"places": self.max_length} if self.positions == "learned" else {}
        sizes = {name: dim.size for name, dim in self.dims().items()} | {dim.name: dim.size for dim in groups}
        return sizes | learned | ({"distances": BUCKETS} if self.positions == "relative" else {})

    def metrics(self, means: Mapping[str, float]) -> dict[str, float]:
        """Returns the perplexity per token."""
        return {"perplexity": perplexity(means["loss"])}
