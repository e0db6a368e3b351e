"""Every irregularity of French numbers, written by hand."""

import pytest

from meshax.data.numerals import french

CARDINALS = {
    0: "zéro", 1: "un", 16: "seize", 17: "dix-sept", 19: "dix-neuf", 20: "vingt", 21: "vingt et un", 22: "vingt-deux",
    31: "trente et un", 61: "soixante et un", 69: "soixante-neuf", 70: "soixante-dix", 71: "soixante et onze",
    72: "soixante-douze", 79: "soixante-dix-neuf", 80: "quatre-vingts", 81: "quatre-vingt-un", 88: "quatre-vingt-huit",
    90: "quatre-vingt-dix", 91: "quatre-vingt-onze", 99: "quatre-vingt-dix-neuf", 100: "cent", 101: "cent un",
    171: "cent soixante et onze", 180: "cent quatre-vingts", 200: "deux cents", 202: "deux cent deux",
    280: "deux cent quatre-vingts", 1_000: "mille", 1_001: "mille un", 1_100: "mille cent", 2_000: "deux mille",
    2_200: "deux mille deux cents", 21_000: "vingt et un mille", 80_000: "quatre-vingt mille",
    200_000: "deux cent mille", 200_200: "deux cent mille deux cents", 1_000_000: "un million",
    2_000_000: "deux millions", 80_000_000: "quatre-vingts millions", 200_000_000: "deux cents millions",
    1_001_080: "un million mille quatre-vingts",
}  # fmt: skip
FEMININE = {1: "une", 21: "vingt et une", 71: "soixante et onze", 81: "quatre-vingt-une", 101: "cent une",
            21_000: "vingt et un mille", 1_000_001: "un million une"}  # fmt: skip
INVARIABLE = {80: "quatre-vingt", 200: "deux cent", 1980: "mille neuf cent quatre-vingt", 1900: "mille neuf cent",
              2000: "deux mille", 81: "quatre-vingt-un"}  # fmt: skip
ORDINALS = {
    1: "premier", 2: "deuxième", 3: "troisième", 4: "quatrième", 5: "cinquième", 9: "neuvième", 11: "onzième",
    19: "dix-neuvième", 21: "vingt et unième", 30: "trentième", 71: "soixante et onzième", 80: "quatre-vingtième",
    81: "quatre-vingt-unième", 95: "quatre-vingt-quinzième", 100: "centième", 200: "deux centième", 1000: "millième",
}  # fmt: skip


@pytest.mark.parametrize(("number", "words"), CARDINALS.items())
def test_cardinals(number, words):
    assert french.cardinal(number) == words


@pytest.mark.parametrize(("number", "words"), FEMININE.items())
def test_feminine(number, words):
    assert french.cardinal(number, feminine=True) == words


@pytest.mark.parametrize(("number", "words"), INVARIABLE.items())
def test_which_one_not_how_many(number, words):
    assert french.cardinal(number, invariable=True) == words


@pytest.mark.parametrize(("number", "words"), ORDINALS.items())
def test_ordinals(number, words):
    assert french.ordinal(number) == words
    assert french.ordinal(number, feminine=True) == ("première" if number == 1 else words)


def test_of():
    assert [french.of(word) for word in ("chats", "étoiles", "hôtels", "oiseaux", "vieilles souris")] == [
        "de chats", "d'étoiles", "d'hôtels", "d'oiseaux", "de vieilles souris",
    ]  # fmt: skip


def test_numbers_differ():
    assert len({french.cardinal(number) for number in range(20_000)}) == 20_000
