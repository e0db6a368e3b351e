"""Choices and rounding that hold for one number, and for an array with one number for each of many layouts.

What is read of a trace and what it costs is computed by the same functions for both: a report has numbers, a search
prices thousands of layouts at once and has arrays.
"""

from typing import Any

import numpy as np

Number = Any  # an int or a float, or an array of them


def where(condition: Number, yes: Number, no: Number) -> Number:
    """Returns one of two numbers, for each layout."""
    if isinstance(condition, np.ndarray):
        return np.where(condition, yes, no)
    return yes if condition else no


def rounded(number: Number) -> Number:
    """Returns the nearest whole number."""
    return np.rint(number).astype(np.int64) if isinstance(number, np.ndarray) else round(number)


def key_of(number: Number) -> Any:
    """Returns what is equal for equal numbers, and can be looked up in a dict."""
    return number.tobytes() if isinstance(number, np.ndarray) else number
