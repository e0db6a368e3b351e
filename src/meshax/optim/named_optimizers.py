"""Optimizers by name, as configurations and command lines give them."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import optax

from ..errors import ArgumentError, did_you_mean
from .adafactor import Adafactor
from .contract import Optimizer
from .elementwise import from_optax
from .schedules import Rate, as_schedule

_OPTAX: dict[str, Callable[..., optax.GradientTransformation]] = {
    "adamw": optax.adamw,
    "momentum": functools.partial(optax.sgd, momentum=0.9),
    "sgd": optax.sgd,
}


def by_name(name: str, rate: Rate, **options: Any) -> Optimizer[Any]:
    """Makes an optimizer: "adafactor" (`Adafactor`), or optax's "adamw", "momentum" (0.9) or "sgd".

    Args:
        name: which one.
        rate: the learning rate: a number, or a schedule (see `optim.schedules`).
        options: those of `Adafactor`, of `optax.adamw` or of `optax.sgd`.

    >>> by_name("adafactor", 0.01, min_dim_size=64).min_dim_size
    64
    """
    known: dict[str, Callable[..., Any]] = {"adafactor": Adafactor, **_OPTAX}
    if name not in known:
        raise ArgumentError(f"there is no optimizer {name!r}.", fix=did_you_mean(str(name), known))
    as_schedule(rate)
    accepted = list(inspect.signature(known[name]).parameters)[1:]
    unknown = [option for option in options if option not in accepted]
    if unknown:
        raise ArgumentError(
            f"the optimizer {name!r} has no option {', '.join(map(repr, unknown))}.",
            fix=did_you_mean(unknown[0], accepted),
        )
    optimizer = known[name](rate, **options)
    return optimizer if name == "adafactor" else from_optax(optimizer)
