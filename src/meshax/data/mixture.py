"""Which source the next example comes from: after any number of examples, each has had its share, within one.

Weights 5, 3 and 2 are a turn of ten examples, repeated for ever. Of a source with weight w the j-th example of a turn
of W may come when j * W / w of the turn is over, and has to come before (j + 1) * W / w is: that keeps it within one of
its exact share. Taking the one whose time is up first meets all of these times: with one example at a time, and shares
that add up to all, there always is room. So the source of example n, and which of its own examples that is, follow from
n alone: nothing to save, and the same for every number of processes.
"""

import heapq
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from ..errors import ArgumentError

_LONGEST = 100_000  # examples in a turn


class Mixture:
    """An order in which sources take turns, by their weights."""

    def __init__(self, weights: Sequence[float]):
        self.weights = _whole_numbers(weights)
        self._turn = sum(self.weights)
        self._sources, self._numbers = _order(self.weights)

    def at(self, number: int) -> tuple[int, int]:
        """Returns where an example comes from: which source, and which of the source's examples."""
        turns, place = divmod(number, self._turn)
        source = int(self._sources[place])
        return source, turns * self.weights[source] + int(self._numbers[place])


def _whole_numbers(weights: Sequence[float]) -> list[int]:
    """Returns the smallest whole numbers with the same ratios."""
    if not weights or not all(math.isfinite(weight) and weight > 0 for weight in weights):
        raise ArgumentError(
            f"{_show(weights)} are not the weights of a mixture.",
            fix="give a number above 0 for each source; leave a source out that is not to be read.",
        )
    exact = [Fraction(str(weight)) for weight in weights]
    common = math.lcm(*(weight.denominator for weight in exact))
    whole = [int(weight * common) for weight in exact]
    whole = [weight // math.gcd(*whole) for weight in whole]
    if sum(whole) > _LONGEST:
        least = [max(1, round(1000 * weight / sum(whole))) for weight in whole]
        raise ArgumentError(
            f"the weights {_show(weights)} have too many digits.",
            rule=f"the turn in which each source has its exact share is {_LONGEST:,} examples at most.",
            fix=f"round them, for example to {_show(least)}.",
        )
    return whole


def _order(weights: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Returns, for each place of a turn, the source and the number of its example."""
    turn = sum(weights)
    # (the place from which on it may come, the place before which it has to, the source, the number)
    later = [(0, -(-turn // weight), source, 0) for source, weight in enumerate(weights)]
    ready: list[tuple[int, int, int]] = []
    sources, numbers = np.empty(turn, np.int32), np.empty(turn, np.int32)
    for place in range(turn):
        while later and later[0][0] <= place:
            heapq.heappush(ready, heapq.heappop(later)[1:])
        _, source, number = heapq.heappop(ready)
        sources[place], numbers[place] = source, number
        if number + 1 < (weight := weights[source]):
            begin, end = (number + 1) * turn // weight, -(-(number + 2) * turn // weight)
            heapq.heappush(later, (begin, end, source, number + 1))
    return sources, numbers


def _show(weights: Sequence[float]) -> str:
    return " ".join(f"{weight:g}" if isinstance(weight, int) else str(weight) for weight in weights)
