"""How much of the tests runs: `make test` runs one case of each kind, `make test-all` all of them.

A promise is kept by both. What is a product of many values (every layout, every dtype) is marked `exhaustive`, but for
the few that stand for the others; the harness draws a smaller sample.
"""

import os

import pytest

WHOLE = os.environ.get("MESHAX_TESTS") == "all"


def some(values, *chosen):
    """Returns the values for `parametrize`: `make test` runs those that are chosen, `make test-all` every one."""
    values = list(values)
    missing = [value for value in chosen if value not in values]
    assert chosen and not missing, f"not among the values: {missing}"
    return [value if value in chosen else pytest.param(value, marks=pytest.mark.exhaustive) for value in values]
