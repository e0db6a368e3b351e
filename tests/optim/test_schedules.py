"""Schedules, against values worked out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshax as mx
from meshax.optim import schedules
from messages import pinned

HALF = np.sqrt(0.5)
BY_HAND = {
    "constant": (schedules.constant(8.0), {0: 8, 1: 8, 10**6: 8}),
    "constant, warm-up": (schedules.constant(8.0, warmup=4), {0: 2, 1: 4, 3: 8, 4: 8}),
    "linear": (schedules.linear(8.0, steps=4), {0: 8, 1: 6, 3: 2, 4: 0, 9: 0}),
    "linear, warm-up": (schedules.linear(8.0, steps=6, warmup=2, end=4.0), {0: 4, 1: 8, 2: 8, 3: 7, 5: 5, 6: 4, 9: 4}),
    "cosine": (schedules.cosine(8.0, steps=4), {0: 8, 1: 4 + 4 * HALF, 2: 4, 3: 4 - 4 * HALF, 4: 0, 9: 0}),
    "cosine, warm-up": (schedules.cosine(8.0, steps=6, warmup=2, end=2.0), {0: 4, 1: 8, 2: 8, 4: 5, 6: 2, 9: 2}),
    "rsqrt": (schedules.rsqrt(8.0, warmup=4), {0: 2, 1: 4, 3: 8, 15: 4, 63: 2}),
    "rsqrt, no ramp": (schedules.rsqrt(8.0, warmup=4, ramp=False), {0: 8, 3: 8, 15: 4, 63: 2}),
    "rsqrt, no warm-up": (schedules.rsqrt(8.0, warmup=0), {0: 8, 3: 4, 15: 2}),
    "paper": (
        schedules.paper(8.0, steps=40, warmup=4, cooldown=24),
        {0: 2, 1: 4, 3: 8, 15: 4, 28: 8 * np.sqrt(4 / 29) / 2, 40: 0, 50: 0},
    ),
    "paper, no fall": (schedules.paper(8.0, steps=40, warmup=4, cooldown=0), {0: 2, 3: 8, 15: 4, 35: 8 / 3}),
    "slanted": (schedules.slanted_triangular(32.0, steps=100), {0: 1, 5: 16.5, 10: 32, 55: 16.5, 100: 1, 200: 1}),
    "slanted, warm-up": (
        schedules.slanted_triangular(8.0, steps=6, warmup=2, ratio=4.0),
        {0: 2, 1: 5, 2: 8, 4: 5, 6: 2},
    ),
    "slanted, no warm-up": (schedules.slanted_triangular(8.0, steps=4, warmup=0, ratio=4.0), {0: 8, 2: 5, 4: 2}),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_rates_are_those_worked_out_by_hand(name):
    schedule, wanted = BY_HAND[name]
    for step, rate in wanted.items():
        got = jax.jit(schedule)(jnp.asarray(step, jnp.int32))
        assert got.dtype == jnp.float32
        np.testing.assert_allclose(got, rate, rtol=1e-6, atol=1e-6, err_msg=f"step {step}")


def test_the_transformer_papers_rate():
    """d_model ** -0.5 * min(t ** -0.5, t * warmup ** -1.5)."""
    d_model, warmup = 512, 4000
    schedule = schedules.rsqrt((d_model * warmup) ** -0.5, warmup)
    for t in (1, 100, 4000, 4001, 100_000):
        np.testing.assert_allclose(schedule(t - 1), d_model**-0.5 * min(t**-0.5, t * warmup**-1.5), rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "made"),
    {
        "constant": schedules.constant(3.0, 5),
        "cosine": schedules.cosine(3.0, 50, 5),
        "linear": schedules.linear(3.0, 50, 5),
        "rsqrt": schedules.rsqrt(3.0, 5),
        "slanted_triangular": schedules.slanted_triangular(3.0, 50, 5),
    }.items(),
)
def test_by_name_makes_each(name, made):
    steps = jnp.arange(60, dtype=jnp.int32)
    np.testing.assert_array_equal(schedules.by_name(name, 3.0, steps=50, warmup=5)(steps), made(steps))


@pytest.mark.parametrize("name", ["cosine", "linear", "paper", "rsqrt", "slanted_triangular"])
def test_each_falls_to_its_lowest_rate(name):
    rate = schedules.by_name(name, 3.0, steps=50, warmup=5, end=1.0)
    falling = np.asarray(rate(jnp.arange(5, 500, dtype=jnp.int32)))
    assert np.all(np.diff(falling) <= 0) and falling[0] > 2.5
    np.testing.assert_allclose(falling[-1], 1.0, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "first", "at"), [("constant", 3.0, 0), ("rsqrt", 3.0, 9_999), ("slanted_triangular", 3.0, 5)]
)
def test_without_a_warm_up_each_has_its_own(name, first, at):
    np.testing.assert_allclose(schedules.by_name(name, 3.0, steps=50)(at), first)


test_messages = pinned(
    {
        "a constant that falls": (
            mx.ArgumentError,
            lambda: schedules.by_name("constant", 0.1, steps=10, end=0.01),
            """
            the schedule 'constant' cannot fall from 0.1 to 0.01.
              fix: leave the lowest rate out, or choose another schedule.
            """,
        ),
        "an end above the peak": (
            mx.ArgumentError,
            lambda: schedules.by_name("cosine", 0.1, steps=10, end=0.5),
            """
            the schedule 'cosine' cannot fall from 0.1 to 0.5.
              fix: choose a lowest rate between 0 and the highest.
            """,
        ),
        "an unknown name": (
            mx.ArgumentError,
            lambda: schedules.by_name("cosin", 0.1, steps=10),
            """
            there is no schedule 'cosin'.
              fix: did you mean "cosine"?
            """,
        ),
        "a name like none": (
            mx.ArgumentError,
            lambda: schedules.by_name("steep", 0.1, steps=10),
            """
            there is no schedule 'steep'.
              fix: known names: constant, cosine, linear, paper, rsqrt, slanted_triangular.
            """,
        ),
        "a last fall that is longer than all": (
            mx.ArgumentError,
            lambda: schedules.by_name("paper", 0.1, steps=10, warmup=2, cooldown=11),
            """
            of 10 steps, 11 cannot be the last fall.
              fix: choose fewer, or none.
            """,
        ),
        "all warm-up": (
            mx.ArgumentError,
            lambda: schedules.by_name("linear", 0.1, steps=10, warmup=10),
            """
            of 10 steps, 10 cannot be warm-up.
              fix: choose fewer steps of warm-up than steps.
            """,
        ),
    }
)
