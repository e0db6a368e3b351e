"""Adafactor (Shazeer & Stern 2018), which trained the models of the Mesh-TensorFlow paper.

Adam remembers a second moment for every element. Adafactor remembers, for a matrix, the mean of each row and of each
column: their product over the mean of all is the estimate of an element's. A step is relative to the size of the
parameter, and an update whose root mean square is larger than it should be (`clip`) is scaled down. All of these are
means over dims, and ours cross processors exactly. What lies between two means is one elementwise function each: a step
has few operations for every parameter, and is traced in less time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ..compat import Array
from ..dim import Dim, Dims, DimsLike, as_list, without
from ..errors import ArgumentError, did_you_mean
from ..layout import current
from ..ops.creation import zeros
from ..ops.elementwise import apply
from ..ops.reduction import mean
from ..tensors import Tensor, check_tensor
from .contract import ROLE, Optimizer, Tree, flatten, in_float32, stored
from .decay import is_decayed
from .schedules import Rate, as_schedule
from .schedules import rsqrt as rsqrt_schedule
from .sums import reduce_together

_STACKED = "layers"


class AdafactorState(NamedTuple):
    """The number of updates made; the second moments of each parameter, one tensor or two; the momentum, if any."""

    step: Array
    moments: Any
    momentum: Any


@dataclass(frozen=True)
class Adafactor(Optimizer[AdafactorState]):
    """Adafactor, exact under every layout.

    Where it defines the same, it equals `optax.adafactor`. It differs in this: dims in `stacked` are left out of
    everything, so each layer of a stack is updated as it would be alone, where optax factors and clips the stack as one
    parameter; state is float32, where optax's has the parameter's dtype; and the default rate is the paper's, where
    optax has none.

    Args:
        rate: the learning rate, relative to the size of a parameter: a number, or a schedule (see `optim.schedules`).
        min_dim_size: a parameter is factored over its two largest dims, if both are at least this large. Of equal ones
            the last count, as in optax (where, from five dims on, numpy's order of equals depends on the machine).
        stacked: the dims along which parameters of many layers are stacked.
        decay_exponent: the decay of second moments at update t is 1 - t ** -decay_exponent.
        clip: the largest root mean square of an update, before the rate; None does not clip.
        momentum: the decay of a running mean of updates, which costs memory like a parameter; None keeps none.
        weight_decay: the part of a parameter that each update takes away (as in optax, whatever the rate).
        decay_skips: words; a parameter with one of them in its name does not decay.
        multiply_by_parameter_scale: whether the rate is relative to the root mean square of a parameter.
        epsilon: what is added to squares of gradients.
        smallest_scale: the smallest size of a parameter that a step is relative to.

    Communication of an update, beside that of `Optimizer.apply`, where a parameter is split in the role "optimizer": an
    all-reduce of its column means if a factored dim is split, and of its row means if the other is; one all-reduce for
    the sizes of all updates and parameters together, two numbers each; and one for the means of all parameters of which
    both factored dims are split.
    """

    rate: Rate = field(default_factory=lambda: rsqrt_schedule(0.01, 10_000, ramp=False))
    min_dim_size: int = 128
    stacked: DimsLike = _STACKED
    decay_exponent: float = 0.8
    clip: float | None = 1.0
    momentum: float | None = None
    weight_decay: float | None = None
    decay_skips: tuple[str, ...] = ()
    multiply_by_parameter_scale: bool = True
    epsilon: float = 1e-30
    smallest_scale: float = 1e-3

    def __post_init__(self) -> None:
        as_schedule(self.rate)
        if self.clip is not None and not self.clip > 0:
            raise ArgumentError(
                f"updates cannot be clipped to a root mean square of {self.clip}.",
                fix="choose a positive number, or None for no clipping.",
            )
        if self.momentum is not None and not 0 <= self.momentum < 1:
            raise ArgumentError(
                f"a momentum is at least 0 and less than 1, not {self.momentum}.",
                fix="for example 0.9, or None for no momentum.",
            )

    def first_state(self, params: Any) -> AdafactorState:
        """Returns zeros."""
        leaves, treedef = flatten(params)
        self._check(leaves)
        moments = [tuple(zeros(dims) for dims in self._moment_dims(p.dims)) for p in leaves]
        momentum = None if self.momentum is None else treedef.unflatten([zeros(p.dims) for p in leaves])
        return AdafactorState(jnp.zeros((), jnp.int32), stored(treedef.unflatten(moments)), stored(momentum))

    def update(self, grads: Any, state: AdafactorState, params: Tree) -> tuple[Tree, AdafactorState]:
        """Updates all parameters; what is to be reduced of each is reduced for all together."""
        leaves, treedef = flatten(params)
        gradients = [in_float32(g) for g in treedef.flatten_up_to(grads)]
        moments = self._next_moments(gradients, treedef.flatten_up_to(state.moments), state.step)
        values = [in_float32(p) for p in leaves]
        updates = _whitened(gradients, moments)
        factors = self._factors_of(updates, values, as_schedule(self.rate)(state.step))
        momentum = None
        if self.momentum is not None or self.weight_decay is not None:
            updates, factors = [u * f for u, (f,) in zip(updates, factors, strict=True)], [()] * len(updates)
        if self.momentum is not None:
            kept = treedef.flatten_up_to(state.momentum)
            updates = [self.momentum * m + (1 - self.momentum) * u for m, u in zip(kept, updates, strict=True)]
            momentum = treedef.unflatten(updates)
        if self.weight_decay is not None:
            decayed = treedef.flatten_up_to(is_decayed(params, self.decay_skips))
            decays = [self.weight_decay if one else 0.0 for one in decayed]
            updates = [u + d * v if d else u for u, d, v in zip(updates, decays, values, strict=True)]
        every = zip(leaves, values, updates, factors, strict=True)
        moved = [apply(partial(_lessened, dtype=p.dtype), (v, u, *f), "adafactor") for p, v, u, f in every]
        state = AdafactorState(state.step + 1, stored(treedef.unflatten(moments)), stored(momentum))
        return treedef.unflatten(moved), state

    def _next_moments(
        self, grads: list[Tensor], moments: list[tuple[Tensor, ...]], step: Array
    ) -> list[tuple[Tensor, ...]]:
        decay = Tensor(1 - (step + 1).astype(jnp.float32) ** -self.decay_exponent, ())
        rest = 1 - decay
        updated = []
        for g, old in zip(grads, moments, strict=True):
            squares = apply(partial(_squared, epsilon=self.epsilon), (g,), "adafactor")
            factors = self._factors(g.dims)
            seen = [mean(squares, dim) for dim in factors] if factors else [squares]
            pairs = zip(old, seen, strict=True)
            updated.append(tuple(apply(_averaged, (a, b, decay, rest), "adafactor") for a, b in pairs))
        return updated

    def _factors_of(self, updates: list[Tensor], values: list[Tensor], rate: Array) -> list[tuple[Tensor, ...]]:
        """Returns what clips each update, and makes it relative to the size of its parameter."""
        clipping = updates if self.clip is not None else []
        scaling = values if self.multiply_by_parameter_scale else []
        squares = [mean(apply(_squared, (x,), "adafactor"), self._own(x.dims)) for x in [*scaling, *clipping]]
        squares = reduce_together(squares)
        sizes = [part for part in (squares[: len(scaling)], squares[len(scaling) :]) if part]
        sized = partial(_sized, smallest=self.smallest_scale if scaling else None, limit=self.clip)
        own = zip(*sizes, strict=True) if sizes else [()] * len(updates)
        return [(apply(sized, (Tensor(rate, ()), *several), "adafactor"),) for several in own]

    def _own(self, dims: Dims) -> Dims:
        """Returns the dims of one layer."""
        names = _names(self.stacked)
        return tuple(dim for dim in dims if dim.name not in names)

    def _factors(self, dims: Dims) -> Sequence[Dim]:
        """Returns the dims that moments are factored over, the largest first; none, if they are not."""
        two = sorted(self._own(dims), key=lambda dim: dim.size)[:-3:-1]  # a stable sort: of equals, the last
        return two if len(two) == 2 and two[1].size >= self.min_dim_size else []

    def _moment_dims(self, dims: Dims) -> list[Dims]:
        return [without(dims, (dim,)) for dim in self._factors(dims)] or [dims]

    def _check(self, leaves: list[Any]) -> None:
        known = {dim.name for p in leaves for dim in check_tensor(p, "optim.Adafactor").dims}
        unknown = [name for name in _names(self.stacked) if name not in known | {_STACKED}]
        if unknown:
            raise ArgumentError(
                f"no parameter is stacked along {', '.join(map(repr, unknown))}.", fix=did_you_mean(unknown[0], known)
            )


# What is done with each parameter is traced once for those of one shape, and stands in the program as if it were not.
_once = partial(jax.jit, inline=True)


@partial(_once, static_argnames="epsilon")
def _squared(x: Array, epsilon: float = 0.0) -> Array:
    squares = jnp.square(x)
    return squares + epsilon if epsilon else squares


@_once
def _averaged(old: Array, new: Array, decay: Array, rest: Array) -> Array:
    return decay * old + rest * new


@partial(_once, static_argnames=("smallest", "limit"))
def _sized(rate: Array, *sizes: Array, smallest: float | None, limit: float | None) -> Array:
    """Returns a factor, from the mean squares of a parameter if there is a smallest, and of an update if a limit."""
    if smallest is not None:
        rate = rate * jnp.maximum(jnp.sqrt(sizes[0]), smallest)
    return rate if limit is None else rate / jnp.maximum(jnp.sqrt(sizes[-1]) / limit, 1.0)


@_once
def _by_roots(gradient: Array, *moments: Array) -> Array:
    """Divides by the root of a moment, or of those of rows, relative to the mean of all, and of columns."""
    if len(moments) == 1:
        return gradient * lax.rsqrt(moments[0])
    rows, columns, all_ = moments
    return gradient * lax.rsqrt(rows / all_) * lax.rsqrt(columns)


@partial(_once, static_argnames="dtype")
def _lessened(value: Array, update: Array, *factor: Array, dtype: Any) -> Array:
    for one in factor:
        update = update * one
    return (value - update).astype(dtype)


def _names(dims: DimsLike) -> list[str]:
    return [dim.name if isinstance(dim, Dim) else dim for dim in as_list(dims)]


def _whitened(grads: list[Tensor], moments: list[tuple[Tensor, ...]]) -> list[Tensor]:
    """Divides gradients by the roots of their second moments."""
    means = iter(reduce_together([_mean_of_all(*pair) for pair in moments if len(pair) == 2]))
    every = [(*m, next(means)) if len(m) == 2 else m for m in moments]
    return [apply(_by_roots, (g, *m), "adafactor") for g, m in zip(grads, every, strict=True)]


def _mean_of_all(rows: Tensor, cols: Tensor) -> Tensor:
    """Averages row means, or column means, which gives the same: along the dim that is not split, if one is not."""
    (along_rows,), (along_cols,) = without(rows.dims, cols.dims), without(cols.dims, rows.dims)
    is_split = bool(current().placement((along_rows,), ROLE).axes)
    return mean(cols, along_cols) if is_split else mean(rows, along_rows)
