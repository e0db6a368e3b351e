"""The softmax family and the cross-entropy, exact over a split dim without ever gathering it."""

import jax
import jax.numpy as jnp

from ..compat import Array
from ..dim import DimLike, Dims, DimsLike, find, show
from ..errors import DtypeError, ShapeError
from ..tensors import Tensor, check_tensor, settle
from .creation import arange
from .elementwise import apply, exp, log, square, where
from .indexing import places_along
from .reduction import max_without_derivative, mean, reduced_dims, sum

__all__ = ["log_softmax", "logsumexp", "softmax", "softmax_cross_entropy"]


def logsumexp(x: Tensor, over: DimsLike | None = None) -> Tensor:
    """Takes the logarithm of the sum of exponentials over some dims, or all.

    Communication: none, if no such dim is split; otherwise two all-reduces of the result.
    """
    dims = reduced_dims(x, over, "logsumexp")
    shift = _finite_max(x, dims)
    return log(sum(exp(x - shift), dims)) + shift


def _finite_max(x: Tensor, dims: Dims) -> Tensor:
    """Returns the maximum to subtract before exponentials; an infinite one would make NaN of them."""
    return apply(_zero_where_infinite, (max_without_derivative(x, dims),), "max")


@jax.jit  # traced once
def _zero_where_infinite(x: Array) -> Array:
    return jnp.where(jnp.isinf(x), 0, x)


def softmax(x: Tensor, over: DimsLike) -> Tensor:
    """Normalises exponentials to sum one over a dim.

    Communication: none, if the dim is not split; otherwise two all-reduces without the dim, one in the backward pass.
    """
    dims = reduced_dims(x, over, "softmax")
    weights = exp(x - _finite_max(x, dims))
    return weights / sum(weights, dims)


def log_softmax(x: Tensor, over: DimsLike) -> Tensor:
    """Takes the logarithm of the softmax over a dim.

    Communication: as `mx.softmax`.
    """
    dims = reduced_dims(x, over, "log_softmax")
    centred = x - _finite_max(x, dims)  # the logarithm would be lost beside a large maximum
    return centred - log(sum(exp(centred), dims))


def softmax_cross_entropy(
    logits: Tensor, labels: Tensor, over: DimLike, z_loss: float = 0.0, label_smoothing: float = 0.0
) -> Tensor:
    """Returns the cross-entropy of the softmax over a dim, for integer labels.

    Args:
        logits: unnormalised log-probabilities.
        labels: places along the dim, without the dim; one that is out of range counts as no label at all.
        over: the dim of the classes.
        z_loss: adds this times the square of the logarithm of the softmax's denominator.
        label_smoothing: the share of the target spread evenly over all classes.

    Communication: none, if the dim is not split; otherwise three all-reduces without the dim (four with smoothing).
    """
    dim = find(check_tensor(logits, "mx.softmax_cross_entropy").dims, over)
    check_tensor(labels, "mx.softmax_cross_entropy")
    if not jnp.issubdtype(labels.dtype, jnp.integer):
        raise DtypeError(
            f"labels are integers, not {labels.dtype}.",
            values=f"{show(labels.dims)} {labels.dtype}",
            fix="pass the places of the right classes, for example mx.argmax(one_hot, classes).",
        )
    if dim.name in [d.name for d in labels.dims]:
        raise ShapeError(
            f"labels have the dim {dim.name!r} of the classes.",
            values=f"{show(logits.dims)} and {show(labels.dims)}",
            fix="pass integer labels without that dim.",
        )
    places = settle(places_along(labels, dim, "softmax_cross_entropy"))  # once, for two who use them
    shift = _finite_max(logits, (dim,))
    centred = logits - shift
    total = log(sum(exp(centred), dim))
    chosen = sum(where(places == arange(dim), centred, 0.0), dim)
    loss = where(places >= 0, total - chosen, 0.0)
    if label_smoothing:
        loss = loss + label_smoothing * (chosen - mean(centred, dim))
    if z_loss:
        loss = loss + z_loss * square(total + shift)
    return loss
