"""Optimizers by name, as configurations and command lines give them."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import optax

from ..errors import ArgumentError, did_you_mean
from .adafactor import Adafactor
from .contract import Optimizer
from .decay import is_decayed
from .elementwise import from_optax
from .schedules import Rate, as_schedule


def _mask(skips: Sequence[str]) -> Any:
    return functools.partial(is_decayed, skips=skips) if skips else None


def _adamw(
    rate: Rate,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    weight_decay: float = 1e-4,
    decay_skips: Sequence[str] = (),
) -> Optimizer[Any]:
    mask = _mask(decay_skips)
    return from_optax(optax.adamw(rate, beta1, beta2, epsilon, weight_decay=weight_decay, mask=mask))


def _sgd(
    rate: Rate,
    momentum: float | None = None,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    decay_skips: Sequence[str] = (),
) -> Optimizer[Any]:
    update = optax.sgd(rate, momentum, nesterov)
    if weight_decay:  # enters the gradient, and so the momentum
        update = optax.chain(optax.add_decayed_weights(weight_decay, _mask(decay_skips)), update)
    return from_optax(update)


_KNOWN: dict[str, Callable[..., Optimizer[Any]]] = {
    "adafactor": Adafactor,
    "adamw": _adamw,
    "momentum": functools.partial(_sgd, momentum=0.9),
    "sgd": _sgd,
}


def by_name(name: str, rate: Rate, **options: Any) -> Optimizer[Any]:
    """Makes an optimizer: "adafactor" (`Adafactor`), or optax's "adamw", "momentum" (0.9) or "sgd".

    Args:
        name: which one.
        rate: the learning rate: a number, or a schedule (see `optim.schedules`).
        options: those of `Adafactor`; of adamw `beta1`, `beta2`, `epsilon`; of sgd and momentum `momentum`, `nesterov`.
            All have `weight_decay`, and `decay_skips`, words: a parameter with one of them in its name does not decay.

    >>> by_name("adafactor", 0.01, min_dim_size=64).min_dim_size
    64
    """
    if name not in _KNOWN:
        raise ArgumentError(f"there is no optimizer {name!r}.", fix=did_you_mean(str(name), _KNOWN))
    as_schedule(rate)
    accepted = list(inspect.signature(_KNOWN[name]).parameters)[1:]
    unknown = [option for option in options if option not in accepted]
    if unknown:
        raise ArgumentError(
            f"the optimizer {name!r} has no option {', '.join(map(repr, unknown))}.",
            fix=did_you_mean(unknown[0], accepted),
        )
    return _KNOWN[name](rate, **options)
