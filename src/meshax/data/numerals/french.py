"""Numbers, places and agreement in French words, in the spelling before 1990: "vingt et un", "deux cents"."""

_SMALL = [
    "zéro", "un", "deux", "trois", "quatre", "cinq", "six", "sept", "huit", "neuf", "dix", "onze", "douze", "treize",
    "quatorze", "quinze", "seize", "dix-sept", "dix-huit", "dix-neuf",
]  # fmt: skip
_TENS = {2: "vingt", 3: "trente", 4: "quarante", 5: "cinquante", 6: "soixante", 8: "quatre-vingt"}
_VOWELS = tuple("aàâeéèêëiîïoôuùûyhœ")  # of the words here that begin with h, none is aspirated
WEEKDAYS = ["lundi", "mardi", "mercredi", "jeudi", "vendredi", "samedi", "dimanche"]
MONTHS = [
    "janvier", "février", "mars", "avril", "mai", "juin", "juillet", "août", "septembre", "octobre", "novembre",
    "décembre",
]  # fmt: skip


def cardinal(number: int, *, feminine: bool = False, invariable: bool = False) -> str:
    """Returns a number below a billion in words.

    Args:
        number: 0 or more.
        feminine: whether it counts something feminine: "vingt et une".
        invariable: whether it says which one, not how many: "page quatre-vingt", "l'an mille neuf cent".

    >>> [cardinal(number) for number in (21, 71, 80, 81, 91, 200, 202)][:4]
    ['vingt et un', 'soixante et onze', 'quatre-vingts', 'quatre-vingt-un']
    >>> [cardinal(number) for number in (91, 200, 202, 1_000, 80_000, 2_000_000)][:3]
    ['quatre-vingt-onze', 'deux cents', 'deux cent deux']
    >>> cardinal(1_000), cardinal(80_000), cardinal(200_000_000)
    ('mille', 'quatre-vingt mille', 'deux cents millions')
    """
    words = []
    millions, rest = divmod(number, 10**6)
    if millions:  # a noun: what is before it is a number that ends
        words.append(f"{cardinal(millions)} million{'s' if millions > 1 else ''}")
    thousands, rest = divmod(rest, 1000)
    if thousands:
        words += ([] if thousands == 1 else [_below_thousand(thousands, ends=False)]) + ["mille"]
    if rest or not words:
        words.append(_below_thousand(rest, ends=not invariable, feminine=feminine))
    return " ".join(words)


def _below_thousand(number: int, *, ends: bool, feminine: bool = False) -> str:
    """Returns a number in words; vingt and cent have an s only where a number ends with several of them."""
    hundreds, rest = divmod(number, 100)
    words = [] if hundreds < 2 else [_SMALL[hundreds]]
    words += ["cents" if hundreds > 1 and not rest and ends else "cent"] if hundreds else []
    if rest or not words:
        words.append(_below_hundred(rest, ends, feminine))
    return " ".join(words)


def _below_hundred(number: int, ends: bool, feminine: bool) -> str:
    one = "une" if feminine else "un"
    if number < 20:
        return one if number == 1 else _SMALL[number]
    tens, ones = divmod(number, 10)
    if tens in (7, 9):
        tens, ones = tens - 1, ones + 10
    if tens == 8:
        return f"quatre-vingt-{one if ones == 1 else _SMALL[ones]}" if ones else f"quatre-vingt{'s' if ends else ''}"
    if ones in (1, 11):
        return f"{_TENS[tens]} et {one if ones == 1 else 'onze'}"
    return _TENS[tens] + (f"-{_SMALL[ones]}" if ones else "")


def ordinal(number: int, *, feminine: bool = False) -> str:
    """Returns the place of a number in words.

    >>> [ordinal(number) for number in (1, 5, 9, 21, 80, 1_000)]
    ['premier', 'cinquième', 'neuvième', 'vingt et unième', 'quatre-vingtième', 'millième']
    """
    if number == 1:
        return "première" if feminine else "premier"
    words = cardinal(number, invariable=True)
    if words.endswith("f"):
        words = f"{words[:-1]}v"
    return (f"{words}u" if words.endswith("q") else words.removesuffix("e")) + "ième"


def of(words: str) -> str:
    """Returns "de" and some words.

    >>> of("livres"), of("étoiles")
    ('de livres', "d'étoiles")
    """
    return f"d'{words}" if words.startswith(_VOWELS) else f"de {words}"


def begins_with_vowel(word: str) -> bool:
    """Says whether a word begins so that others change before it: "un vieil homme"."""
    return word.startswith(_VOWELS)
