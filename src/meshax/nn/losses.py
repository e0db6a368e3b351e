"""Losses, exact over a split vocabulary: logits are never gathered."""

import math

import jax.numpy as jnp

from ..dim import DimLike
from ..ops import softmax_cross_entropy
from ..ops import sum as sum_
from ..sources import operation
from ..tensors import Tensor

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
