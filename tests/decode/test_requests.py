"""Requests that nobody can serve, and how long a text may be."""

import pytest

from meshax.decode import Longest, Request
from meshax.errors import ArgumentError


@pytest.mark.parametrize(
    ("option", "rule"),
    [
        ({"tokens": -1}, "0 or more"),
        ({"temperature": float("inf")}, "0 or more"),
        ({"top_k": -2}, "0 or more, and less than 2147483648"),
        ({"top_k": 2**31}, "0 or more, and less than 2147483648"),
        ({"top_p": 0.0}, "more than 0, and 1 at most"),
        ({"min_p": 1.5}, "0 to 1"),
        ({"repetition_penalty": 0.0}, "more than 0"),
        ({"seed": 2**32}, "0 or more, and less than 4294967296"),
        ({"candidates": 6}, "0 to 5"),
    ],
    ids=str,
)
def test_wrong_numbers(option, rule):
    ((name, value),) = option.items()
    with pytest.raises(ArgumentError) as error:
        Request((1,), **option)
    assert str(error.value) == f"{name} is {value}.\n  fix: give a number, {rule}."


def test_an_empty_string_stops_nothing():
    with pytest.raises(ArgumentError, match=r"^a string that stops a text is empty\.\n  fix: leave it out\."):
        Request((1,), 5, stop_strings=("end", ""))


def test_no_prompt():
    with pytest.raises(ArgumentError, match=r"^a prompt has at least one token\.\n  fix: begin with the token that"):
        Request(())


@pytest.mark.parametrize(
    ("text", "lengths"),
    [("100", [100, 100]), ("2x", [0, 18]), ("1.5x+10", [10, 23]), ("0.5x + 0", [0, 4]), ("0", [0, 0])],
)
def test_lengths(text, lengths):
    assert [Longest.read(text).of(length) for length in (0, 9)] == lengths


@pytest.mark.parametrize("text", ["", "-2", "x10", "1.5", "2x10", "2x-1", "1e3", "nanx", "ten"])
def test_no_lengths(text):
    with pytest.raises(ArgumentError) as error:
        Longest.read(text)
    assert str(error.value) == (
        f"{text!r} does not say how long a text may be.\n"
        "  fix: give a number, 0 or more, or a multiple of the length x before it, as 1.5x+10."
    )
