"""Normalisation of images: over their places, exactly, however they are split and however uneven their blocks.

All are computed in float32, the mean first and then the squared distances from it, so that nothing cancels out.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp

from ..dim import Dim, Dims, select, without
from ..errors import ArgumentError
from ..ops import broadcast, mean, ones, reshape, rsqrt, stop_gradient, zeros
from ..sources import operation
from ..tensors import Tensor, param

Observed = tuple[Tensor, Tensor]  # mean and variance of a batch


class BatchNorm(eqx.Module):
    """Subtracts the mean of the batch over all dims but the channels, divides by the deviation, scales and shifts.

    `train` uses the statistics of what it is given, over all processors, and returns them; `updated` takes them into
    the running ones, which are no parameters, and which a plain call uses.

    Communication: in `train` two all-reduces of one number for each channel, and two in the backward pass, if the batch
    or a dim of the images is split; none in a plain call.
    """

    scale: Tensor
    shift: Tensor
    mean: Tensor
    variance: Tensor
    channels: tuple[str, ...] = eqx.field(static=True)
    momentum: float = eqx.field(static=True)
    epsilon: float = eqx.field(static=True)

    @classmethod
    @operation
    def init(cls, channels: Dims, momentum: float = 0.9, epsilon: float = 1e-5) -> "BatchNorm":
        """Makes one that scales by one and shifts by zero, and has seen nothing: a mean of 0, a variance of 1.

        Args:
            channels: the dims that are normalised one by one.
            momentum: how much of the running statistics an update keeps.
            epsilon: is added to the variance.
        """
        names = tuple(d.name for d in channels)
        parameters = param(ones(channels)), param(zeros(channels))
        return cls(*parameters, zeros(channels), ones(channels), names, momentum, epsilon)

    @operation
    def __call__(self, x: Tensor) -> Tensor:
        """Normalises by the running statistics."""
        return self._normal(x, x.astype(jnp.float32) - stop_gradient(self.mean), stop_gradient(self.variance))

    @operation
    def train(self, x: Tensor) -> tuple[Tensor, Observed]:
        """Normalises by the statistics of x, and returns them as well."""
        others = without(x.dims, select(x.dims, self.channels))
        centre, centred, variance = _statistics(x.astype(jnp.float32), others)
        return self._normal(x, centred, variance), (stop_gradient(centre), stop_gradient(variance))

    @operation
    def updated(self, observed: Observed) -> "BatchNorm":
        """Returns the layer with what was observed taken into the running statistics.

        What several microbatches have observed has one dim more, and counts by its mean.
        """
        news = []
        for old, new in zip((self.mean, self.variance), observed, strict=True):
            new = mean(new, without(new.dims, old.dims)) if len(new.dims) > len(old.dims) else new
            news.append(old * self.momentum + new * (1 - self.momentum))
        return eqx.tree_at(lambda layer: (layer.mean, layer.variance), self, tuple(news))

    def _normal(self, x: Tensor, centred: Tensor, variance: Tensor) -> Tensor:
        return (centred * (rsqrt(variance + self.epsilon) * self.scale) + self.shift).astype(x.dtype)


class GroupNorm(eqx.Module):
    """Normalises each example by groups of channels: over the places of an image and the channels of a group.

    Communication: two all-reduces of one number for each channel and example, and two in the backward pass, if a dim of
    the images is split; if channels are, an all-gather of these numbers unless groups are split alike.
    """

    scale: Tensor
    shift: Tensor
    over: tuple[str, ...] = eqx.field(static=True)
    channel: str = eqx.field(static=True)
    num_groups: int = eqx.field(static=True)
    epsilon: float = eqx.field(static=True)

    @classmethod
    @operation
    def init(cls, over: Any, channel: Dim, num_groups: int, epsilon: float = 1e-5) -> "GroupNorm":
        """Makes one that scales by one and shifts by zero.

        Args:
            over: the names of the dims of an image.
            channel: the dim that is cut into groups of neighbours.
            num_groups: how many groups; as many as channels is an instance norm.
            epsilon: is added to the variance.
        """
        if num_groups < 1 or channel.size % num_groups:
            raise ArgumentError(
                f"dim {channel} cannot be cut into {num_groups} groups.",
                rule="groups have equally many channels.",
                fix="choose a divisor of the number of channels.",
            )
        return cls(param(ones((channel,))), param(zeros((channel,))), tuple(over), channel.name, num_groups, epsilon)

    @operation
    def __call__(self, x: Tensor) -> Tensor:
        """Normalises."""
        wide = x.astype(jnp.float32)
        centred = wide - self._by_group(mean(wide, self.over))
        variance = self._by_group(mean(centred * centred, self.over))
        return (centred * (rsqrt(variance + self.epsilon) * self.scale) + self.shift).astype(x.dtype)

    def _by_group(self, means: Tensor) -> Tensor:
        """Returns for each channel the mean of its group."""
        channel = means.dim(self.channel)
        if self.num_groups == channel.size:
            return means
        others = without(means.dims, (channel,))
        group, member = Dim("norm_group", self.num_groups), Dim("norm_member", channel.size // self.num_groups)
        by_group = mean(reshape(means, (*others, group, member)), member)
        return reshape(broadcast(by_group, (*others, group, member)), (*others, channel))


class InstanceNorm(GroupNorm):
    """Normalises each channel of each example over the places of an image.

    Communication: two all-reduces of one number for each channel and example, and two in the backward pass, if a dim of
    the images is split.
    """

    @classmethod
    @operation
    def init(cls, over: Any, channel: Dim, epsilon: float = 1e-5) -> "InstanceNorm":  # type: ignore[override]
        """Makes one that scales by one and shifts by zero."""
        return cls(param(ones((channel,))), param(zeros((channel,))), tuple(over), channel.name, channel.size, epsilon)


def _statistics(x: Tensor, over: Dims) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the mean, the distances from it, and the variance."""
    centre = mean(x, over)
    centred = x - centre
    return centre, centred, mean(centred * centred, over)
