"""Learning rates that change: functions of the number of updates made so far, an int32 array.

The first update is step 0. A warm-up rises in a line, update by update: with a warm-up of 4 the first updates have 1/4,
2/4, 3/4 and 4/4 of the peak, so none is wasted on a rate of 0. A decay begins at the peak after the warm-up, and
reaches its end after the last update.
"""

import numbers
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ..compat import Array
from ..errors import ArgumentError, did_you_mean

Schedule = Callable[[Array], Array]
Rate = float | Schedule


def constant(peak: float, warmup: int = 0) -> Schedule:
    """Stays at the peak.

    >>> [float(constant(8.0, warmup=2)(step)) for step in range(4)]
    [4.0, 8.0, 8.0, 8.0]
    """
    return lambda step: peak * _ramp(step, warmup)


def linear(peak: float, steps: int, warmup: int = 0, end: float = 0.0) -> Schedule:
    """Falls in a line from the peak to `end`, which it reaches after `steps` updates, warm-up included.

    >>> [float(linear(8.0, steps=4)(step)) for step in range(6)]
    [8.0, 6.0, 4.0, 2.0, 0.0, 0.0]
    """
    _check(steps, warmup)
    return lambda step: (peak + (end - peak) * _progress(step, steps, warmup)) * _ramp(step, warmup)


def cosine(peak: float, steps: int, warmup: int = 0, end: float = 0.0) -> Schedule:
    """Falls like half a wave from the peak to `end`, which it reaches after `steps` updates, warm-up included.

    >>> [round(float(cosine(8.0, steps=4)(step)), 3) for step in range(6)]
    [8.0, 6.828, 4.0, 1.172, 0.0, 0.0]
    """
    _check(steps, warmup)

    def rate(step: Array) -> Array:
        height = (1 + jnp.cos(jnp.pi * _progress(step, steps, warmup))) / 2
        return (end + (peak - end) * height) * _ramp(step, warmup)

    return rate


def rsqrt(peak: float, warmup: int = 10_000, ramp: bool = True, end: float = 0.0) -> Schedule:
    """Falls like one over the root of the number of updates, from the peak after the warm-up.

    Args:
        peak: the rate at the end of the warm-up. The Transformer paper's is `(d_model * warmup) ** -0.5`.
        warmup: the number of updates before it falls.
        ramp: whether the rate rises during the warm-up, as in the Transformer paper; without it stays at the peak:
            `rsqrt(0.01, 10_000, ramp=False)` is Adafactor's and T5's `min(0.01, 1 / sqrt(t))`.
        end: where it stops falling.

    >>> [float(rsqrt(8.0, warmup=4)(step)) for step in (0, 1, 3, 15)]
    [2.0, 4.0, 8.0, 4.0]
    """
    warmup = max(warmup, 1)

    def rate(step: Array) -> Array:
        late = jnp.maximum(peak * jnp.sqrt(warmup / jnp.maximum(_updates(step), warmup)), end)
        return late * _ramp(step, warmup) if ramp else late

    return rate


def paper(peak: float, steps: int, warmup: int = 10_000, cooldown: int | None = None, end: float = 0.0) -> Schedule:
    """Rises in a line, falls like `rsqrt`, and at last in a line to nothing: the rate of the Mesh-TensorFlow paper.

    There the peak is 0.01, the warm-up 10,000 updates, and the last fall takes one epoch.

    Args:
        peak: the rate at the end of the warm-up.
        steps: the number of updates of the whole training.
        warmup: the number of updates of the rise.
        cooldown: the number of updates of the last fall; a tenth of `steps`, if none is given.
        end: where it stops falling.

    >>> [round(float(paper(8.0, steps=20, warmup=4, cooldown=8)(step)), 3) for step in (0, 3, 15, 16, 20)]
    [2.0, 8.0, 2.5, 1.94, 0.0]
    """
    last = steps // 10 if cooldown is None else cooldown
    _check(steps, warmup)
    if not 0 <= last <= steps:
        raise ArgumentError(f"of {steps} steps, {last} cannot be the last fall.", fix="choose fewer, or none.")
    before = rsqrt(peak, warmup)

    def rate(step: Array) -> Array:
        left = jnp.clip((steps - jnp.asarray(step, jnp.float32)) / max(last, 1), 0, 1)
        late = before(step) * left
        return late if not end else jnp.where(_updates(step) > warmup, jnp.maximum(late, end), late)

    return rate


def slanted_triangular(peak: float, steps: int, warmup: int | None = None, ratio: float = 32.0) -> Schedule:
    """Rises in a line from `peak / ratio` to the peak, and falls back in a longer one (Howard & Ruder 2018).

    Args:
        peak: the highest rate, at step `warmup`.
        steps: the number of updates after which it is `peak / ratio` again.
        warmup: the number of updates of the rise; a tenth of `steps`, if none is given.
        ratio: how much smaller the lowest rate is.

    >>> [float(slanted_triangular(8.0, steps=6, warmup=2, ratio=4.0)(step)) for step in range(7)]
    [2.0, 5.0, 8.0, 6.5, 5.0, 3.5, 2.0]
    """
    cut = steps // 10 if warmup is None else warmup
    _check(steps, cut)

    def rate(step: Array) -> Array:
        done = jnp.asarray(step, jnp.float32)
        height = jnp.minimum(done / cut, 1) if cut else 1.0
        return peak * (1 + (height - _progress(step, steps, cut)) * (ratio - 1)) / ratio

    return rate


def _slanted(peak: float, steps: int, warmup: int | None = None, end: float = 0.0) -> Schedule:
    return slanted_triangular(peak, steps, warmup, **({"ratio": peak / end} if end else {}))


def _without_cooldown(schedule: Callable[..., Schedule]) -> Callable[..., Schedule]:
    return lambda peak, steps, cooldown=None, **options: schedule(peak, steps, **options)


_KNOWN: dict[str, Callable[..., Schedule]] = {
    "constant": _without_cooldown(lambda peak, steps, **options: constant(peak, **options)),
    "cosine": _without_cooldown(cosine),
    "linear": _without_cooldown(linear),
    "paper": paper,
    "rsqrt": _without_cooldown(lambda peak, steps, **options: rsqrt(peak, **options)),
    "slanted_triangular": _without_cooldown(_slanted),
}


def by_name(
    name: str, peak: float, steps: int, warmup: int | None = None, end: float = 0.0, cooldown: int | None = None
) -> Schedule:
    """Makes a schedule: "constant", "cosine", "linear", "paper", "rsqrt" or "slanted_triangular".

    Args:
        name: which one.
        peak: the highest rate.
        steps: the number of updates of the whole training; "constant" and "rsqrt" do not use it.
        warmup: how many of them are warm-up; without it, as many as the schedule's function says.
        end: the lowest rate after the warm-up; "constant" has none. 0: as the schedule's function says.
        cooldown: the number of updates of the last fall, which only "paper" has.
    """
    if name not in _KNOWN:
        raise ArgumentError(f"there is no schedule {name!r}.", fix=did_you_mean(str(name), _KNOWN))
    if end and (name == "constant" or not 0 < end <= peak):
        raise ArgumentError(
            f"the schedule {name!r} cannot fall from {peak:g} to {end:g}.",
            fix="leave the lowest rate out, or choose another schedule."
            if name == "constant"
            else "choose a lowest rate between 0 and the highest.",
        )
    options: dict[str, Any] = {} if warmup is None else {"warmup": warmup}
    options |= ({"end": end} if end else {}) | ({} if cooldown is None else {"cooldown": cooldown})
    return _KNOWN[name](peak, steps, **options)


def as_schedule(rate: Rate) -> Schedule:
    """Returns the schedule that is meant by a number or a function."""
    if callable(rate):
        return rate
    is_number = isinstance(rate, numbers.Real) or (isinstance(rate, jax.Array) and rate.ndim == 0)
    if isinstance(rate, bool) or not is_number:
        raise ArgumentError(
            f"a learning rate is a number or a function of the step, not {rate!r}.",
            fix="make a function with optim.schedules.by_name.",
        )
    return constant(rate)


def _updates(step: Array) -> Array:
    return jnp.asarray(step, jnp.float32) + 1


def _ramp(step: Array, warmup: int) -> Array:
    return jnp.minimum(_updates(step) / max(warmup, 1), 1)


def _progress(step: Array, steps: int, warmup: int) -> Array:
    """Returns how much of the time after the warm-up has passed, from 0 to 1."""
    return jnp.clip((jnp.asarray(step, jnp.float32) - warmup) / (steps - warmup), 0, 1)


def _check(steps: int, warmup: int) -> None:
    if not 0 <= warmup < steps:
        raise ArgumentError(
            f"of {steps} steps, {warmup} cannot be warm-up.", fix="choose fewer steps of warm-up than steps."
        )
