"""Losses, exact over split classes and split images: logits are never gathered."""

import math
from collections.abc import Sequence

import jax.numpy as jnp

from ..dim import DimLike, DimsLike, select, union, without
from ..ops import gather, one_hot, softmax_cross_entropy
from ..ops import sum as sum_
from ..sources import operation
from ..tensors import Tensor, tensor

_LARGEST = 709.0  # e to the power of more is no float


@operation
def cross_entropy(
    logits: Tensor,
    targets: Tensor,
    weights: Tensor,
    over: DimLike,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Returns the weighted sum of the cross entropy in nats, and the sum of the weights.

    Args:
        logits: any floating dtype; the loss is computed in float32.
        targets: the number of the right class.
        weights: what each target counts; zero for padding.
        over: the dim of classes.
        label_smoothing: the probability spread over all classes.
        z_loss: what the squared log of the normaliser costs.

    Communication: if the classes are split, three all-reduces of one number for each target.
    """
    losses = softmax_cross_entropy(
        logits.astype(jnp.float32), targets, over=over, label_smoothing=label_smoothing, z_loss=z_loss
    )
    weights = weights.astype(jnp.float32)
    return sum_(losses * weights), sum_(weights)


def perplexity(loss: float) -> float:
    """Returns the perplexity of a loss in nats per token; infinity where no number is large enough."""
    return math.exp(loss) if not loss > _LARGEST else math.inf


@operation
def weighted_cross_entropy(
    logits: Tensor, labels: Tensor, weights: Tensor, class_weights: Sequence[float], over: DimLike
) -> tuple[Tensor, Tensor]:
    """Returns the sum of the cross entropy in nats, in which classes count differently, and the sum of the weights.

    Args:
        logits: any floating dtype; the loss is computed in float32.
        labels: the number of the right class at each place.
        weights: what each place counts; zero where there is none.
        class_weights: what each class counts beside; the sum of the weights does without.
        over: the dim of classes.

    Communication: as `cross_entropy`.
    """
    counts = gather(tensor(jnp.asarray(class_weights, jnp.float32), "label_class"), labels, "label_class")
    weights = weights.astype(jnp.float32)
    total, _ = cross_entropy(logits, labels, weights * counts, over)
    return total, sum_(weights)


@operation
def dice(
    probabilities: Tensor, labels: Tensor, weights: Tensor, over: DimLike, by: DimsLike = (), epsilon: float = 0.1
) -> Tensor:
    """Returns how much of each class overlaps with the truth, between 0 and 1: twice what both have over what each has.

    Args:
        probabilities: of each class at each place; for a score, ones and zeros.
        labels: the number of the right class at each place.
        weights: what each place counts; zero where there is none.
        over: the dim of classes, which the result has.
        by: dims that the result has too: `by="batch"` gives a score for each example, otherwise all are one volume.
        epsilon: is added to both, so that a class which neither has scores 1.

    Communication: if places are split, an all-reduce of two numbers for each class and example.
    """
    classes = probabilities.dim(over)
    truth = one_hot(labels, classes)
    weights, probabilities = weights.astype(jnp.float32), probabilities.astype(jnp.float32)
    places = without(union(probabilities.dims, truth.dims), (classes, *select(probabilities.dims, by)))
    both = sum_(probabilities * truth * weights, places)
    each = sum_((probabilities + truth) * weights, places)
    return (2.0 * both + epsilon) / (each + epsilon)
