"""Every irregularity of English numbers, written by hand."""

import pytest

from meshax.data.numerals import english

CARDINALS = {
    0: "zero", 1: "one", 11: "eleven", 12: "twelve", 13: "thirteen", 15: "fifteen", 18: "eighteen", 20: "twenty",
    40: "forty", 42: "forty-two", 80: "eighty", 99: "ninety-nine", 100: "one hundred", 101: "one hundred and one",
    342: "three hundred and forty-two", 1_000: "one thousand", 1_001: "one thousand and one",
    1_100: "one thousand one hundred", 12_020: "twelve thousand and twenty",
    100_000: "one hundred thousand", 305_017: "three hundred and five thousand and seventeen",
    1_000_000: "one million", 2_000_080: "two million and eighty",
    31_100_900: "thirty-one million one hundred thousand nine hundred",
}  # fmt: skip
ORDINALS = {
    1: "first", 2: "second", 3: "third", 4: "fourth", 5: "fifth", 8: "eighth", 9: "ninth", 10: "tenth", 11: "eleventh",
    12: "twelfth", 13: "thirteenth", 20: "twentieth", 21: "twenty-first", 22: "twenty-second", 23: "twenty-third",
    30: "thirtieth", 99: "ninety-ninth", 100: "one hundredth", 101: "one hundred and first",
}  # fmt: skip
YEARS = {
    1000: "one thousand", 1066: "ten sixty-six", 1700: "seventeen hundred", 1776: "seventeen seventy-six",
    1900: "nineteen hundred", 1905: "nineteen oh five", 1912: "nineteen twelve", 1980: "nineteen eighty",
    1999: "nineteen ninety-nine", 2000: "two thousand", 2007: "two thousand and seven", 2010: "twenty ten",
    2024: "twenty twenty-four",
}  # fmt: skip


@pytest.mark.parametrize(("number", "words"), CARDINALS.items())
def test_cardinals(number, words):
    assert english.cardinal(number) == words


@pytest.mark.parametrize(("number", "words"), ORDINALS.items())
def test_ordinals(number, words):
    assert english.ordinal(number) == words


@pytest.mark.parametrize(("number", "words"), YEARS.items())
def test_years(number, words):
    assert english.year(number) == words


def test_ways_to_say_it():
    assert english.cardinal(305_017, with_and=False) == "three hundred five thousand seventeen"
    assert english.cardinal(100, article=True) == "a hundred"
    assert english.cardinal(1_100, article=True) == "a thousand one hundred"
    assert english.cardinal(21_000, article=True) == "twenty-one thousand"
    assert english.cardinal(1, article=True) == "one"
    assert english.year(2007, with_and=False) == "two thousand seven"


def test_numbers_differ():
    """No two numbers are said alike."""
    assert len({english.cardinal(number) for number in range(20_000)}) == 20_000
