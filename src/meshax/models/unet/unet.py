"""The model that labels every place of an image, and what it is made from.

On the way down, levels of convolutions and pools: each has half the places and twice the features of the one before. On
the way up each level gets what the one below it made, enlarged, beside what the same level had on the way down. The
configuration of Mesh-TensorFlow's experiment with volumes larger than a processor is the default. `x`, `y` and `z` may
be split, so that one example is spread over processors, and `batch` and `features` beside.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from ...dim import Dim, Dims
from ...errors import ArgumentError, did_you_mean
from ...nn import ConvTranspose, Linear, dice, weighted_cross_entropy
from ...ops import argmax, concat, maximum, mean, one_hot, softmax
from ...ops import sum as sum_
from ...ops.randomness import dropout
from ...spatial import max_pool
from ...tensors import Tensor
from ..contract import shape_of
from ..images import GLOSSARY, PLACES, RELU, NormedConv, check_counts, features, filters, taps, updated
from ..recomputation import KEEP, keeping

_VOLUME = {"z": "places along the third side of a volume", "kz": "taps of a kernel along z"}


@dataclass(frozen=True)
class UNetConfig:
    """The sizes of a U-Net, of two or three sides, and its loss."""

    glossary: ClassVar[Mapping[str, str]] = Dim.declare(GLOSSARY | _VOLUME)
    batch_kind: ClassVar[str] = "volumes"
    may_change: ClassVar[tuple[str, ...]] = (
        *("dtype", "keep", "dropout", "dice_part", "class_weights", "class_names", "norm_momentum"),
    )

    sides: int = 3  # 2 for images, 3 for volumes
    channels: int = 1  # numbers at each place of an image
    levels: int = 4  # each has half the places of the one before
    filters: int = 32  # features of the first level, twice as many on each one below
    convs: int = 2  # convolutions of a level, on the way down and on the way up
    kernel: int = 3  # taps of a convolution along each side
    classes: int = 3  # what is told apart: 0 is the background
    # what classes are called in metrics and pictures; without a name for each, they are numbered
    class_names: str = "background liver lesion"
    leak: float = 0.1  # what is left of negative numbers
    dropout: float = 0.5  # of the features of a level, while training
    dice_part: float = 0.2  # of the loss; the rest is the weighted cross entropy
    class_weights: str = "1 8 16"  # what a place of each class counts in the cross entropy
    norm_momentum: float = 0.9  # what a step keeps of the running statistics
    dtype: str = "bfloat16"  # of products
    keep: str = "nothing"  # what the backward pass keeps of each level

    def __post_init__(self) -> None:
        check_counts(self, "channels", "levels", "filters", "convs", "kernel", "classes")
        if self.sides not in (2, 3):
            raise ArgumentError(f"the model's sides are {self.sides}.", fix="give 2 for images, 3 for volumes.")
        if not all(map(_is_number, self.class_weights.split())) or len(self.class_weights.split()) != self.classes:
            raise ArgumentError(
                f"the model's class_weights are {self.class_weights!r}, and its classes {self.classes}.",
                fix='give a number for each class, for example "1 8 16".',
            )
        if self.keep not in KEEP:
            raise ArgumentError(f"the model cannot keep {self.keep!r}.", fix=did_you_mean(self.keep, KEEP))

    def make(self, key: Any) -> "UNet":
        """Makes a model, the same under every layout."""
        return UNet.init(key, self)

    def named_classes(self) -> tuple[str, ...]:
        """Returns what the classes are called, or their numbers."""
        names = tuple(self.class_names.split())
        return names if len(names) == self.classes else tuple(map(str, range(self.classes)))

    def sizes(self) -> dict[str, int]:
        """Returns the sizes of the dims of the parameters, by name: the largest, where levels differ."""
        widest = self.filters * 2 ** (self.levels - 1)
        sides = dict.fromkeys((f"k{place}" for place in PLACES[: self.sides]), max(self.kernel, 2))
        return {"features": widest, "filters": widest, "classes": self.classes, **sides}

    def batch(self, sizes: Mapping[str, int]) -> dict[str, Tensor]:
        """Returns the shapes of a batch."""
        places = tuple(Dim(place, sizes[place]) for place in PLACES[: self.sides])
        if wrong := [str(dim) for dim in places if dim.size % 2 ** (self.levels - 1)]:
            raise ArgumentError(
                f"an image of this size cannot be halved {self.levels - 1} times: {', '.join(wrong)}.",
                rule="each level has half the places of the one before, and is enlarged to it again.",
                fix=f"choose multiples of {2 ** (self.levels - 1)}, or fewer levels.",
            )
        dims: Dims = (Dim("batch", sizes["batch"]), *places)
        image = shape_of((*dims, Dim("channel", self.channels)), jnp.float32)
        return {"image": image, "labels": shape_of(dims), "weights": shape_of(dims, jnp.float32)}

    def metrics(self, means: Mapping[str, float]) -> dict[str, float]:
        """Returns how much of each class overlaps with the truth (Dice), the last class first."""
        figures = {}
        for number, name in reversed(list(enumerate(self.named_classes()))[1:]):
            if (each := means.get(f"each_{number}")) is not None:
                figures[f"dice_{name}"] = 2 * means[f"both_{number}"] / each if each else 1.0
        return figures


class UNet(eqx.Module):
    """Labels every place of an image."""

    down: tuple[tuple[NormedConv, ...], ...]
    up: tuple[tuple[NormedConv, ...], ...]  # from the lowest but one to the first
    enlarge: tuple[ConvTranspose, ...]
    logits: Linear
    config: UNetConfig = eqx.field(static=True)

    @classmethod
    def init(cls, key: Any, config: UNetConfig) -> "UNet":
        """Makes a model, the same under every layout."""
        keys = iter(jax.random.split(key, 4 * config.levels * (config.convs + 1)))
        widths = [config.filters * 2**level for level in range(config.levels)]

        def level(before: int, after: int) -> tuple[NormedConv, ...]:
            sizes = [before, *[after] * (config.convs - 1)]
            how = (config.kernel, config.sides, config.norm_momentum)
            return tuple(NormedConv.init(next(keys), size, after, *how) for size in sizes)

        def enlarging(before: int, after: int) -> ConvTranspose:
            windows = taps(2, config.sides)
            return ConvTranspose.init(next(keys), windows, features(before), filters(after), stride=2, scale=RELU)

        steps = list(zip(widths[1:], widths[:-1], strict=True))[::-1]  # from below to the level above
        return cls(
            tuple(level(*sizes) for sizes in zip([config.channels, *widths], widths, strict=False)),
            tuple(level(2 * above, above) for _, above in steps),
            tuple(enlarging(below, above) for below, above in steps),
            Linear.init(next(keys), features(widths[0]), (Dim("classes", config.classes),), bias=True),
            config,
        )

    def __call__(self, image: Tensor) -> Tensor:
        """Returns the logits of the classes at every place, [batch, places.., classes]."""
        return self._run(image, None)[0]

    def loss(self, batch: dict[str, Tensor], key: Any = None) -> tuple[Tensor, Tensor]:
        """Returns the loss of a batch, times the sum of its weights, and that sum.

        The overlap of a batch is no sum over its places: of several batches, or microbatches, the mean counts.
        """
        return self.loss_and_observed(batch, key)[:2]

    def loss_and_observed(self, batch: dict[str, Tensor], key: Any = None) -> tuple[Tensor, Tensor, Any]:
        """Returns the loss as `loss` does, and in training what the norms have observed."""
        logits, observed = self._run(batch["image"], key)
        labels, weights = batch["labels"], batch["weights"]
        counts = [float(word) for word in self.config.class_weights.split()]
        total, count = weighted_cross_entropy(logits, labels, weights, counts, "classes")
        chances = softmax(logits.astype(jnp.float32), over="classes")
        overlaps = [mean(dice(chances, labels, weights, "classes", by)) for by in ("batch", ())]
        apart = 1.0 - (overlaps[0] + overlaps[1]) / 2.0
        part = self.config.dice_part
        return part * apart * count + (1 - part) * total, count, observed

    def updated(self, observed: Any) -> "UNet":
        """Returns the model with what its norms have observed taken into their running statistics."""
        down, up = (updated(mine, seen) for mine, seen in zip((self.down, self.up), observed, strict=True))
        return UNet(down, up, self.enlarge, self.logits, self.config)

    def measure(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Returns the loss of a batch, and for each class how many places are right, and how many are said or true."""
        logits = self(batch["image"])
        said = one_hot(argmax(logits, over="classes"), logits.dim("classes"))
        truth = one_hot(batch["labels"], logits.dim("classes"))
        weights = batch["weights"].astype(jnp.float32)
        both, each = (
            sum_(some * weights, [d for d in said.dims if d.name != "classes"]) for some in (said * truth, said + truth)
        )
        figures = {"loss": self.loss(batch)[0]}
        for number in range(1, self.config.classes):
            figures |= {f"both_{number}": both[{"classes": number}], f"each_{number}": each[{"classes": number}]}
        return figures

    def _run(self, image: Tensor, key: Any) -> tuple[Tensor, Any]:
        """Returns the logits, and in training what the norms have observed on the way down and up."""
        config, training = self.config, key is not None
        keys = iter(jax.random.split(key, 2 * config.levels)) if training else iter([None] * 2 * config.levels)
        level = keeping(lambda layers, x, key: _through(layers, x, key, config, training), config.keep)
        x = image.astype(config.dtype).rename(channel="features")
        windows = dict.fromkeys(PLACES[: config.sides], 2)
        beside, seen_down, seen_up = [], [], []
        for number, layers in enumerate(self.down):
            x = max_pool(x, windows) if number else x  # type: ignore[arg-type]
            x, observed = level(layers, x, next(keys))
            beside.append(x)
            seen_down.append(observed)
        beside.pop()
        for layers, enlarge in zip(self.up, self.enlarge, strict=True):
            x = concat([beside.pop(), enlarge(x).rename(filters="features")], "features")
            x, observed = level(layers, x, next(keys))
            seen_up.append(observed)
        return self.logits(x), (tuple(seen_down), tuple(seen_up))


def _is_number(word: str) -> bool:
    return word.replace(".", "", 1).isdecimal()


def _through(layers: tuple[NormedConv, ...], x: Tensor, key: Any, config: UNetConfig, training: bool) -> Any:
    """Applies the convolutions of a level."""
    seen = []
    for layer in layers:
        x, observed = layer(x, training)
        x = maximum(x, x * config.leak)
        seen.append(observed)
    return (dropout(key, x, config.dropout) if training and config.dropout else x), tuple(seen)
