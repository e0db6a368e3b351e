"""Sentences in English and in French, drawn at random, of which the French is exact.

What is said in several ways in English has one French translation. Pairs are held out by their French: no sentence of
theirs, in either language, is trained on.
"""

import datetime as calendar
from collections.abc import Callable
from hashlib import blake2b
from random import Random
from typing import NamedTuple

from . import english, french

Pair = tuple[str, str]  # English, French
_HELD_OUT = 16  # one French sentence of so many is held out


class Noun(NamedTuple):
    """A thing that can be counted."""

    one: str
    many: str
    un: str
    des: str
    feminine: bool


class Adjective(NamedTuple):
    """A word for a thing: in French its forms, and whether it comes before the thing."""

    english: str
    masculine: str
    feminine: str
    masculine_many: str
    feminine_many: str
    is_before: bool = False
    before_vowel: str = ""  # masculine, if another one is used there


NOUNS = (
    Noun("house", "houses", "maison", "maisons", True),
    Noun("book", "books", "livre", "livres", False),
    Noun("cat", "cats", "chat", "chats", False),
    Noun("star", "stars", "étoile", "étoiles", True),
    Noun("horse", "horses", "cheval", "chevaux", False),
    Noun("coat", "coats", "manteau", "manteaux", False),
    Noun("apple", "apples", "pomme", "pommes", True),
    Noun("hotel", "hotels", "hôtel", "hôtels", False),
    Noun("mouse", "mice", "souris", "souris", True),
    Noun("bird", "birds", "oiseau", "oiseaux", False),
    Noun("key", "keys", "clé", "clés", True),
    Noun("tree", "trees", "arbre", "arbres", False),
)
ADJECTIVES = (
    Adjective("red", "rouge", "rouge", "rouges", "rouges"),
    Adjective("white", "blanc", "blanche", "blancs", "blanches"),
    Adjective("black", "noir", "noire", "noirs", "noires"),
    Adjective("small", "petit", "petite", "petits", "petites", True),
    Adjective("old", "vieux", "vieille", "vieux", "vieilles", True, "vieil"),
    Adjective("new", "nouveau", "nouvelle", "nouveaux", "nouvelles", True, "nouvel"),
    Adjective("beautiful", "beau", "belle", "beaux", "belles", True, "bel"),
)
_HAVING = (("I have", "J'ai"), ("She has", "Elle a"), ("We have", "Nous avons"), ("They have", "Ils ont"))
_NOT_HAVING = (
    ("I do not have", "Je n'ai pas"), ("He does not have", "Il n'a pas"), ("We do not have", "Nous n'avons pas"),
)  # fmt: skip
_AGED = (("He is", "Il a"), ("She is", "Elle a"), ("My sister is", "Ma sœur a"), ("I am", "J'ai"))
_BORN = (
    ("I was born", "Je suis né"), ("She was born", "Elle est née"), ("They were born", "Ils sont nés"),
    ("We arrived", "Nous sommes arrivés"), ("The meeting is", "La réunion est"),
    ("The letter came", "La lettre est venue"),
)  # fmt: skip
_STARTING = (
    ("The train leaves", "Le train part"), ("The shop opens", "Le magasin ouvre"), ("We eat", "Nous mangeons"),
    ("The film begins", "Le film commence"),
)  # fmt: skip
_PLACES = (("in the street", "dans la rue"), ("in the garden", "dans le jardin"), ("here", "ici"))
_NUMBERED = (("page", "page"), ("room", "chambre"), ("chapter", "chapitre"), ("line", "ligne"))


def sentence_pairs(num_train: int, num_held_out: int, seed: int = 0) -> tuple[list[Pair], list[Pair]]:
    """Returns pairs of sentences to train on and pairs to evaluate on, the same for a seed.

    None comes twice, and no sentence of the latter, English or French, is among the former.
    """
    draw = Random(seed)
    wanted = {True: num_held_out, False: num_train}
    pairs: dict[bool, dict[Pair, None]] = {True: {}, False: {}}
    while any(len(pairs[part]) < count for part, count in wanted.items()):
        words, phrase = draw.choices(*_KINDS)[0](draw)
        pair = words.replace("m..", "m."), phrase  # one stop ends both "a.m." and the sentence
        part = is_held_out(pair[1])
        if len(pairs[part]) < wanted[part]:
            pairs[part][pair] = None
    return list(pairs[False]), list(pairs[True])


def is_held_out(sentence: str) -> bool:
    """Says whether a French sentence is one to evaluate on: a matter of its words alone."""
    return blake2b(sentence.encode(), digest_size=1).digest()[0] % _HELD_OUT == 0


def draw_number(draw: Random) -> int:
    """Draws a number: of few digits as often as of many, and often a round one."""
    number = draw.randrange(10 ** draw.choice((1, 2, 2, 3, 3, 4, 5, 6)))
    return number - number % draw.choice((1, 1, 1, 10, 100, 1000))


def counted(number: int, noun: Noun, adjective: Adjective | None = None, *, with_and: bool = True) -> Pair:
    """Returns so many things, 1 or more, in both languages.

    >>> counted(1, NOUNS[7], ADJECTIVES[4]), counted(2_000_000, NOUNS[3])
    (('one old hotel', 'un vieil hôtel'), ('two million stars', "deux millions d'étoiles"))
    """
    thing, chose = described(noun, adjective, is_one=number == 1)
    nombre = french.cardinal(number, feminine=noun.feminine)
    if number % 10**6 == 0:
        chose = french.of(chose)
    return f"{english.cardinal(number, with_and=with_and)} {thing}", f"{nombre} {chose}"


def described(noun: Noun, adjective: Adjective | None, *, is_one: bool) -> Pair:
    """Returns a thing, or things, and what they are like."""
    thing, chose = (noun.one, noun.un) if is_one else (noun.many, noun.des)
    if adjective is None:
        return thing, chose
    forms = (adjective.masculine_many, adjective.feminine_many, adjective.masculine, adjective.feminine)
    form = forms[2 * is_one + noun.feminine]
    if is_one and not noun.feminine and adjective.before_vowel and french.begins_with_vowel(chose):
        form = adjective.before_vowel
    return f"{adjective.english} {thing}", f"{form} {chose}" if adjective.is_before else f"{chose} {form}"


def ranked(number: int, noun: Noun, adjective: Adjective | None = None) -> Pair:
    """Returns the so-manieth thing.

    >>> ranked(1, NOUNS[0], ADJECTIVES[1])
    ('the first white house', 'la première maison blanche')
    """
    thing, chose = described(noun, adjective, is_one=True)
    place = french.ordinal(number, feminine=noun.feminine)
    return f"the {english.ordinal(number)} {thing}", f"{'la' if noun.feminine else 'le'} {place} {chose}"


def date(draw: Random, day: int, month: int, year: int | None = None, weekday: int | None = None) -> Pair:
    """Returns a day, said in one of several ways.

    >>> date(Random(2), 1, 2, 1980)
    ('the first of March, nineteen eighty', 'le premier mars mille neuf cent quatre-vingt')
    """
    rank, name = english.ordinal(day), english.MONTHS[month]
    words = draw.choice((f"the {rank} of {name}", f"{name} the {rank}", f"{name} {rank}"))
    jour = f"{'premier' if day == 1 else french.cardinal(day)} {french.MONTHS[month]}"
    if weekday is not None:
        words, jour = f"{english.WEEKDAYS[weekday]}, {words}", f"{french.WEEKDAYS[weekday]} {jour}"
    if year is not None:
        words += f", {english.year(year, with_and=draw.random() < 0.5)}"
        jour += f" {french.cardinal(year, invariable=True)}"
    return words, f"le {jour}"


def time(draw: Random, hour: int, minute: int) -> Pair:
    """Returns a time of day, hours counted to 23, said in one of several ways.

    >>> time(Random(0), 12, 0), time(Random(0), 0, 30)
    (('noon', 'midi'), ('half past midnight', 'minuit et demi'))
    """
    if minute > 30 and draw.random() < 0.6:  # before the next hour
        return _around(draw, (hour + 1) % 24, 60 - minute, is_before=True)
    if minute <= 30 and (minute == 0 or hour % 12 == 0 or draw.random() < 0.6):
        return _around(draw, hour, minute, is_before=False)
    part, partie = _part_of_day(draw, hour)
    digits = f"oh {english.cardinal(minute)}" if minute < 10 else english.cardinal(minute)
    return f"{english.cardinal(hour % 12 or 12)} {digits}{part}", f"{_heures(hour)} {_minutes(minute)}{partie}"


def _around(draw: Random, hour: int, minute: int, *, is_before: bool) -> Pair:
    """Returns a time as minutes before or after a full hour."""
    named = {0: "midnight", 12: "noon"}.get(hour)
    part, partie = ("", "") if named else _part_of_day(draw, hour)
    words, heures = named or english.cardinal(hour % 12), _heures(hour)
    if minute == 0:
        return words if named else f"{words} o'clock{part}", f"{heures}{partie}"
    spoken = {15: "a quarter", 30: "half"}.get(minute) or english.cardinal(minute)
    if is_before:
        moins = "le quart" if minute == 15 else _minutes(minute)
        return f"{spoken} to {words}{part}", f"{heures} moins {moins}{partie}"
    plus = {15: "et quart", 30: "et demi" if named else "et demie"}.get(minute) or _minutes(minute)
    return f"{spoken} past {words}{part}", f"{heures} {plus}{partie}"


def _heures(hour: int) -> str:
    if hour % 12 == 0:
        return "midi" if hour else "minuit"
    return f"{french.cardinal(hour % 12, feminine=True)} heure{'s' if hour % 12 > 1 else ''}"


def _minutes(minute: int) -> str:
    return french.cardinal(minute, feminine=True)


def _part_of_day(draw: Random, hour: int) -> Pair:
    """Returns the part of the day, which English says in two ways, or not at all; noon and midnight say it."""
    if hour % 12 == 0:
        return " p.m." if hour else " a.m.", ""
    if draw.random() < 0.4:
        return "", ""
    if hour < 12:
        return draw.choice((" a.m.", " in the morning")), " du matin"
    if hour < 18:
        return draw.choice((" p.m.", " in the afternoon")), " de l'après-midi"
    return draw.choice((" p.m.", " in the evening")), " du soir"


def _drawn_thing(draw: Random) -> tuple[Noun, Adjective | None]:
    return draw.choice(NOUNS), draw.choice((None, *ADJECTIVES))


def _drawn_amount(draw: Random) -> Pair:
    number = draw.choice((1, 2, 3, 20)) * 10**6 if draw.random() < 0.05 else max(draw_number(draw), 1)
    return counted(number, *_drawn_thing(draw), with_and=draw.random() < 0.5)


def _drawn_date(draw: Random) -> Pair:
    first = calendar.date(1700, 1, 1)
    day = first + calendar.timedelta(draw.randrange(400 * 365))
    year = draw.choice((None, day.year))
    return date(draw, day.day, day.month - 1, year, draw.choice((None, day.weekday())))


def _drawn_time(draw: Random) -> Pair:
    return time(draw, draw.randrange(24), draw.choice((0, 15, 30, 45, draw.randrange(60))))


def _number(draw: Random) -> Pair:
    number, style = draw_number(draw), {"with_and": draw.random() < 0.5, "article": draw.random() < 0.5}
    return english.cardinal(number, **style), french.cardinal(number)


def _existence(draw: Random) -> Pair:
    (things, choses), (place, lieu) = _drawn_amount(draw), draw.choice(_PLACES)
    is_one = things.startswith("one ") and choses.startswith("un")  # not cent, mille
    verb = "is" if is_one and "million" not in choses else "are"
    return f"There {verb} {things} {place}.", f"Il y a {choses} {lieu}."


def _possession(draw: Random) -> Pair:
    (things, choses), (has, a) = _drawn_amount(draw), draw.choice(_HAVING + _NOT_HAVING)
    return f"{has} {things}.", f"{a} {choses}."


def _age(draw: Random) -> Pair:
    number, (is_, a) = draw.randrange(2, 120), draw.choice(_AGED)
    years = english.cardinal(number, with_and=draw.random() < 0.5)
    return f"{is_} {years} years old.", f"{a} {french.cardinal(number)} ans."


def _price(draw: Random) -> Pair:
    thing, chose = ranked(draw.randrange(1, 100), *_drawn_thing(draw))
    number = draw_number(draw) + 2
    money, coins = draw.choice((("euros", "euros"), ("dollars", "dollars"), ("pounds", "livres")))
    is_feminine = coins == "livres"
    amount = english.cardinal(number, with_and=draw.random() < 0.5)
    words = f"{_capitalized(thing)} costs {amount} {money}."
    return words, f"{_capitalized(chose)} coûte {french.cardinal(number, feminine=is_feminine)} {coins}."


def _clock(draw: Random) -> Pair:
    when, quand = _drawn_time(draw)
    return f"It is {when}.", f"Il est {quand}."


def _start(draw: Random) -> Pair:
    (when, quand), (starts, part) = _drawn_time(draw), draw.choice(_STARTING)
    if draw.random() < 0.5:
        return f"{starts} at {when}.", f"{part} à {quand}."
    day, jour = _drawn_date(draw)
    words = draw.choice((f"{starts} at {when} on {day}.", f"On {day}, {_uncapitalized(starts)} at {when}."))
    return words, f"{part} {jour} à {quand}."


def _question(draw: Random) -> Pair:
    when, quand = _drawn_time(draw)
    asked, question = draw.choice((("Does the train leave", "Le train part-il"), ("Do you eat", "Mangez-vous")))
    return f"{asked} at {when}?", f"{question} à {quand} ?"


def _event(draw: Random) -> Pair:
    (day, jour), (was, fut) = _drawn_date(draw), draw.choice(_BORN)
    return f"{was} on {day}.", f"{fut} {jour}."


def _reference(draw: Random) -> Pair:
    number, (kind, genre) = draw.randrange(1, 1000), draw.choice(_NUMBERED)
    words = f"It is on {kind}" if kind == "page" else f"Look at {kind}"
    phrase = f"C'est à la {genre}" if kind == "page" else f"Regardez {'le' if genre == 'chapitre' else 'la'} {genre}"
    return f"{words} {english.cardinal(number)}.", f"{phrase} {french.cardinal(number, invariable=True)}."


def _century(draw: Random) -> Pair:
    number, year = draw.randrange(1, 22), draw.randrange(1000, 2100)
    if draw.random() < 0.3:
        return f"It was in the {english.ordinal(number)} century.", f"C'était au {french.ordinal(number)} siècle."
    said = english.year(year, with_and=draw.random() < 0.5)
    return f"It was in {said}.", f"C'était en {french.cardinal(year, invariable=True)}."


def _capitalized(words: str) -> str:
    return words[0].upper() + words[1:]


def _uncapitalized(words: str) -> str:
    return words[0].lower() + words[1:]


_KINDS: tuple[tuple[Callable[[Random], Pair], ...], tuple[int, ...]] = (
    (_number, _existence, _possession, _age, _price, _clock, _start, _question, _event, _reference, _century),
    (3, 4, 4, 1, 3, 1, 4, 1, 4, 1, 2),
)
