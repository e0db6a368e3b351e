"""Sentences by hand: agreement, order, dates, times; and what is held out."""

from random import Random

import pytest

from meshax.data.numerals import sentence_pairs
from meshax.data.numerals.sentences import ADJECTIVES, NOUNS, counted, date, is_held_out, ranked, time

NOUN = {noun.one: noun for noun in NOUNS}
ADJECTIVE = {adjective.english: adjective for adjective in ADJECTIVES}


@pytest.mark.parametrize(
    ("number", "noun", "adjective", "words", "phrase"),
    [
        (21, "house", None, "twenty-one houses", "vingt et une maisons"),
        (1, "hotel", "beautiful", "one beautiful hotel", "un bel hôtel"),
        (1, "bird", "new", "one new bird", "un nouvel oiseau"),
        (1, "tree", "old", "one old tree", "un vieil arbre"),
        (1, "cat", "old", "one old cat", "un vieux chat"),
        (1, "house", "old", "one old house", "une vieille maison"),
        (1, "tree", "white", "one white tree", "un arbre blanc"),
        (3, "house", "white", "three white houses", "trois maisons blanches"),
        (80, "horse", "black", "eighty black horses", "quatre-vingts chevaux noirs"),
        (2, "mouse", "small", "two small mice", "deux petites souris"),
        (1_000_000, "star", None, "one million stars", "un million d'étoiles"),
        (2_000_000, "star", "old", "two million old stars", "deux millions de vieilles étoiles"),
        (1_000_200, "star", None, "one million two hundred stars", "un million deux cents étoiles"),
    ],
)
def test_counted(number, noun, adjective, words, phrase):
    assert counted(number, NOUN[noun], ADJECTIVE.get(adjective)) == (words, phrase)


def test_ranked():
    assert ranked(1, NOUN["apple"], ADJECTIVE["red"]) == ("the first red apple", "la première pomme rouge")
    assert ranked(81, NOUN["tree"]) == ("the eighty-first tree", "le quatre-vingt-unième arbre")


def said(what, *args):
    """Every way in which something is said, with its French, in many draws."""
    return {what(Random(seed), *args) for seed in range(200)}


def test_dates():
    assert said(date, 1, 2, 1980) == {
        (words, "le premier mars mille neuf cent quatre-vingt")
        for words in (
            "the first of March, nineteen eighty",
            "March the first, nineteen eighty",
            "March first, nineteen eighty",
        )
    }
    assert said(date, 2, 7, None, 0) == {
        (words, "le lundi deux août")
        for words in ("Monday, the second of August", "Monday, August the second", "Monday, August second")
    }


@pytest.mark.parametrize(
    ("hour", "minute", "words", "phrase"),
    [
        (12, 0, "noon", "midi"),
        (0, 0, "midnight", "minuit"),
        (12, 30, "half past noon", "midi et demi"),
        (0, 15, "a quarter past midnight", "minuit et quart"),
        (11, 45, "a quarter to noon", "midi moins le quart"),
        (23, 40, "twenty to midnight", "minuit moins vingt"),
        (12, 40, "twelve forty p.m.", "midi quarante"),
        (1, 0, "one o'clock a.m.", "une heure du matin"),
        (1, 0, "one o'clock", "une heure"),
        (3, 30, "half past three in the morning", "trois heures et demie du matin"),
        (15, 30, "three thirty p.m.", "trois heures trente de l'après-midi"),
        (15, 45, "a quarter to four in the afternoon", "quatre heures moins le quart de l'après-midi"),
        (20, 5, "eight oh five", "huit heures cinq"),
        (20, 5, "five past eight in the evening", "huit heures cinq du soir"),
        (8, 21, "twenty-one past eight", "huit heures vingt et une"),
        (12, 59, "one to one p.m.", "une heure moins une de l'après-midi"),
    ],
)
def test_times(hour, minute, words, phrase):
    assert (words, phrase) in said(time, hour, minute)


def test_pairs_are_seeded_exact_and_apart():
    train, held_out = sentence_pairs(6_000, 300)
    assert (train, held_out) == sentence_pairs(6_000, 300) != sentence_pairs(6_000, 300, seed=1)
    assert (len(set(train)), len(set(held_out))) == (6_000, 300)
    for side in (0, 1):
        assert not {pair[side] for pair in train} & {pair[side] for pair in held_out}
    translations = {}
    for words, phrase in train + held_out:
        assert translations.setdefault(words, phrase) == phrase  # one right translation
        assert "\n" not in words + phrase and "  " not in words + phrase and ".." not in words
    assert len({phrase for _, phrase in train}) < len({words for words, _ in train})  # said in several ways
    assert all(is_held_out(phrase) for _, phrase in held_out) and not any(is_held_out(phrase) for _, phrase in train)


def test_every_kind_of_sentence_is_drawn():
    phrases = " | ".join(phrase for _, phrase in sentence_pairs(3_000, 0)[0])
    for part in (
        "Il y a", "n'avons pas", " ans.", "coûte", "Il est", "part-il à", "Elle est née le", "C'est à la page",
        "C'était au", "C'était en", "du matin", "de l'après-midi", "du soir", "et demie", "moins le quart", "premier",
        "millions de",
    ):  # fmt: skip
        assert part in phrases
