"""A mixture is exact after any number of examples, and each follows from its number alone."""

import random

import pytest

from meshax import ArgumentError
from meshax.data import Mixture
from messages import pinned

WEIGHTS = [
    [5, 3, 2],
    [1],
    [0.67, 0.15, 0.045, 0.045, 0.045, 0.025, 0.02],
    [1e9, 3e9, 2.5e8],
    [1, 999],
    *([random.Random(seed).randint(1, 60) for _ in range(2 + seed % 8)] for seed in range(20)),
]


@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
def test_each_source_has_its_share_within_one_after_any_number(weights):
    mixture, counts = Mixture(weights), [0] * len(weights)
    total = sum(mixture.weights)
    for number in range(3 * total):
        source, index = mixture.at(number)
        assert index == counts[source]  # the source's own examples come in order, without a gap
        counts[source] += 1
        assert all(
            abs(count * total - (number + 1) * weight) < total
            for count, weight in zip(counts, mixture.weights, strict=True)
        )
    assert counts == [3 * weight for weight in mixture.weights]


def test_5_3_2_over_ten_thousand_examples():
    mixture = Mixture([5, 3, 2])
    counts = [0, 0, 0]
    for number in range(10_000):
        counts[mixture.at(number)[0]] += 1
        exact = [(number + 1) * share for share in (0.5, 0.3, 0.2)]
        assert all(abs(count - share) < 1 for count, share in zip(counts, exact, strict=True))
    assert counts == [5000, 3000, 2000]


def test_ratios_are_what_matters():
    order = [Mixture([5, 3, 2]).at(number) for number in range(50)]
    for weights in ([0.5, 0.3, 0.2], [50, 30, 20], [2.5, 1.5, 1.0]):
        assert [Mixture(weights).at(number) for number in range(50)] == order


def test_far_examples_cost_no_more():
    assert Mixture([5, 3, 2]).at(10**15 + 3)[0] == Mixture([5, 3, 2]).at(3)[0]
    assert Mixture([5, 3, 2]).at(10**15)[1] == 5 * 10**14


test_messages = pinned(
    {
        "not above 0": (
            ArgumentError,
            lambda: Mixture([1.0, 0.0]),
            """
            1.0 0.0 are not the weights of a mixture.
              fix: give a number above 0 for each source; leave a source out that is not to be read.
            """,
        ),
        "too many digits": (
            ArgumentError,
            lambda: Mixture([0.123456789, 1, 2]),
            """
            the weights 0.123456789 1 2 have too many digits.
              rule: the turn in which each source has its exact share is 100,000 examples at most.
              fix: round them, for example to 40 320 640.
            """,
        ),
    }
)
