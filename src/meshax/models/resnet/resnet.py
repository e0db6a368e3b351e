"""The model that tells what an image shows, and what it is made from (He et al., 2015).

Stages of blocks, each stage with half the places and twice the features of the one before. A block adds what its
convolutions make to what it was given. Padding is the same on both sides of a convolution, as in the weights of others.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from ...dim import Dim
from ...errors import ArgumentError, did_you_mean
from ...nn import Linear, cross_entropy
from ...nn.losses import perplexity
from ...ops import argmax, mean
from ...ops import sum as sum_
from ...ops.elementwise import apply
from ...sources import operation
from ...spatial import max_pool
from ...tensors import Tensor
from ..contract import shape_of
from ..images import GLOSSARY, PLACES, NormedConv, check_counts, features, updated
from ..recomputation import KEEP, keeping

_BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}


@dataclass(frozen=True)
class ResNetConfig:
    """The sizes of a residual network for images of two sides."""

    glossary: ClassVar[Mapping[str, str]] = Dim.declare(GLOSSARY)
    batch_kind: ClassVar[str] = "images"
    may_change: ClassVar[tuple[str, ...]] = ("dtype", "keep", "norm_momentum")

    channels: int = 3  # numbers at each place of an image
    filters: int = 64  # features of the first stage, twice as many in each one behind
    depth: int = 50  # layers with weights: 18, 34, 50, 101 or 152
    classes: int = 1000  # what is told apart
    norm_momentum: float = 0.9  # what a step keeps of the running statistics
    dtype: str = "bfloat16"  # of products
    keep: str = "everything"  # what the backward pass keeps of each block

    def __post_init__(self) -> None:
        check_counts(self, "channels", "filters", "classes")
        if self.depth not in _BLOCKS:
            raise ArgumentError(f"the model's depth is {self.depth}.", fix=f"choose {', '.join(map(str, _BLOCKS))}.")
        if self.keep not in KEEP:
            raise ArgumentError(f"the model cannot keep {self.keep!r}.", fix=did_you_mean(self.keep, KEEP))

    def make(self, key: Any) -> "ResNet":
        """Makes a model, the same under every layout."""
        return ResNet.init(key, self)

    @property
    def blocks(self) -> tuple[int, ...]:
        """How many blocks each stage has."""
        return _BLOCKS[self.depth]

    @property
    def bottleneck(self) -> bool:
        """Whether a block has three convolutions, the last one with four times the features, and not two."""
        return self.depth >= 50

    @property
    def width(self) -> int:
        """The features behind the last stage."""
        return self.filters * 2 ** (len(self.blocks) - 1) * (4 if self.bottleneck else 1)

    def sizes(self) -> dict[str, int]:
        """Returns the sizes of the dims of the parameters, by name: the largest, where stages differ."""
        return {"features": self.width, "filters": self.width, "classes": self.classes, "kx": 7, "ky": 7}

    def batch(self, sizes: Mapping[str, int]) -> dict[str, Tensor]:
        """Returns the shapes of a batch."""
        batch = Dim("batch", sizes["batch"])
        places = (Dim(place, sizes[place]) for place in PLACES[:2])
        image = shape_of((batch, *places, Dim("channel", self.channels)), jnp.float32)
        return {"image": image, "labels": shape_of((batch,)), "weights": shape_of((batch,), jnp.float32)}

    def metrics(self, means: Mapping[str, float]) -> dict[str, float]:
        """Returns the share of images that are told right, and the perplexity."""
        right = {"accuracy": means["right"]} if "right" in means else {}
        return {**right, "perplexity": perplexity(means["loss"])}


class Block(eqx.Module):
    """Convolutions, and a way around them."""

    convs: tuple[NormedConv, ...]
    around: tuple[NormedConv, ...]  # one, where the result has other dims; else none

    @classmethod
    def init(cls, key: Any, before: int, width: int, stride: int, config: ResNetConfig) -> "Block":
        """Makes a block; its stride is that of its convolution of three taps, the first if there are two."""
        after = width * 4 if config.bottleneck else width
        kinds = [(1, 1), (3, stride), (1, 1)] if config.bottleneck else [(3, stride), (3, 1)]
        widths = [before, width, width, after] if config.bottleneck else [before, width, after]
        keys = jax.random.split(key, len(kinds) + 1)
        layer = lambda key, i, o, size, stride: _conv(key, i, o, size, stride, config)  # noqa: E731
        convs = [layer(k, i, o, *kind) for k, i, o, kind in zip(keys, widths[:-1], widths[1:], kinds, strict=False)]
        around = (layer(keys[-1], before, after, 1, stride),) if stride > 1 or before != after else ()
        return cls(tuple(convs), around)

    def __call__(self, x: Tensor, training: bool) -> tuple[Tensor, Any]:
        """Returns the result, and in training what the norms have observed."""
        out, seen = x, []
        for i, conv in enumerate(self.convs):
            out, observed = conv(relu(out) if i else out, training)
            seen.append(observed)
        seen_around = []
        for conv in self.around:
            x, observed = conv(x, training)
            seen_around.append(observed)
        return relu(out + x), (tuple(seen), tuple(seen_around))

    def updated(self, observed: Any) -> "Block":
        """Returns the block with what was observed taken into its running statistics."""
        return Block(*(updated(mine, seen) for mine, seen in zip((self.convs, self.around), observed, strict=True)))


@operation
def relu(x: Tensor) -> Tensor:
    """As JAX has it: its derivative asks what comes in, which is made anew from what the norm before it keeps."""
    return apply(jax.nn.relu, (x,), "relu")


def _conv(key: Any, before: int, after: int, size: int, stride: int, config: ResNetConfig) -> NormedConv:
    margin = dict.fromkeys(PLACES[:2], (size // 2, size // 2))
    return NormedConv.init(key, before, after, size, 2, config.norm_momentum, stride=stride, padding=margin)


class ResNet(eqx.Module):
    """Tells what an image shows."""

    stem: NormedConv
    blocks: tuple[Block, ...]
    logits: Linear
    config: ResNetConfig = eqx.field(static=True)

    @classmethod
    def init(cls, key: Any, config: ResNetConfig) -> "ResNet":
        """Makes a model, the same under every layout."""
        keys = iter(jax.random.split(key, sum(config.blocks) + 2))
        stem = _conv(next(keys), config.channels, config.filters, 7, 2, config)
        blocks, before = [], config.filters
        for stage, count in enumerate(config.blocks):
            width = config.filters * 2**stage
            for number in range(count):
                blocks.append(Block.init(next(keys), before, width, 2 if stage and not number else 1, config))
                before = width * 4 if config.bottleneck else width
        logits = Linear.init(next(keys), features(before), (Dim("classes", config.classes),), bias=True)
        return cls(stem, tuple(blocks), logits, config)

    def __call__(self, image: Tensor) -> Tensor:
        """Returns the logits of the classes, [batch, classes]."""
        return self._run(image, training=False)[0]

    def loss(self, batch: dict[str, Tensor], key: Any = None) -> tuple[Tensor, Tensor]:
        """Returns the summed cross entropy of a batch in nats, and the sum of its weights."""
        return self.loss_and_observed(batch, key)[:2]

    def loss_and_observed(self, batch: dict[str, Tensor], key: Any = None) -> tuple[Tensor, Tensor, Any]:
        """Returns the loss as `loss` does, and in training what the norms have observed."""
        logits, observed = self._run(batch["image"], training=key is not None)
        return *cross_entropy(logits, batch["labels"], batch["weights"], "classes"), observed

    def updated(self, observed: Any) -> "ResNet":
        """Returns the model with what its norms have observed taken into their running statistics."""
        stem, blocks = observed
        new = tuple(block.updated(seen) for block, seen in zip(self.blocks, blocks, strict=True))
        return ResNet(self.stem.updated(stem), new, self.logits, self.config)

    def measure(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Returns the summed cross entropy of a batch, and how many images are told right."""
        logits, weights = self(batch["image"]), batch["weights"].astype(jnp.float32)
        total, _ = cross_entropy(logits, batch["labels"], weights, "classes")
        right = (argmax(logits, over="classes") == batch["labels"]).astype(jnp.float32)
        return {"loss": total, "right": sum_(right * weights)}

    def _run(self, image: Tensor, training: bool) -> tuple[Tensor, Any]:
        x = image.astype(self.config.dtype).rename(channel="features")
        x, stem = self.stem(x, training)
        x = max_pool(relu(x), {"x": 3, "y": 3}, 2, {"x": (1, 1), "y": (1, 1)})
        step = keeping(lambda block, x: block(x, training), self.config.keep)
        seen = []
        for block in self.blocks:
            x, observed = step(block, x)
            seen.append(observed)
        return self.logits(mean(x, "x y")), (stem, tuple(seen))
