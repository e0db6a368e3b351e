"""Numbers, years and times of day in English words."""

_SMALL = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
]  # fmt: skip
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_SCALES = ((10**6, "million"), (10**3, "thousand"))
_ORDINALS = {
    "one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth",
    "twelve": "twelfth",
}  # fmt: skip
WEEKDAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
MONTHS = [
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
]  # fmt: skip


def cardinal(number: int, *, with_and: bool = True, article: bool = False) -> str:
    """Returns a number below a billion in words.

    Args:
        number: 0 or more.
        with_and: "two hundred and five" as the British say it, not "two hundred five".
        article: "a hundred", "a thousand" where the number begins so, not "one hundred".

    >>> cardinal(1_342), cardinal(2_005, with_and=False), cardinal(1_000, article=True)
    ('one thousand three hundred and forty-two', 'two thousand five', 'a thousand')
    """
    words = " ".join(_words(number, with_and))
    begins = words.startswith(("one hundred", "one thousand", "one million"))
    return f"a {words.removeprefix('one ')}" if article and begins else words


def _words(number: int, with_and: bool) -> list[str]:
    words = []
    for scale, name in _SCALES:
        if number >= scale:
            words += [*_words(number // scale, with_and), name]
            number %= scale
    if number >= 100:
        words += [_SMALL[number // 100], "hundred"]
        number %= 100
    if number or not words:
        words += ["and"] if words and with_and else []
        words.append(_below_hundred(number))
    return words


def _below_hundred(number: int) -> str:
    if number < 20:
        return _SMALL[number]
    tens, ones = divmod(number, 10)
    return _TENS[tens - 2] + (f"-{_SMALL[ones]}" if ones else "")


def ordinal(number: int) -> str:
    """Returns the place of a number in words.

    >>> [ordinal(number) for number in (1, 12, 20, 43, 105)]
    ['first', 'twelfth', 'twentieth', 'forty-third', 'one hundred and fifth']
    """
    words = cardinal(number)
    cut = max(words.rfind(" "), words.rfind("-")) + 1
    last = words[cut:]
    last = _ORDINALS.get(last) or (f"{last[:-1]}ieth" if last.endswith("y") else f"{last}th")
    return words[:cut] + last


def year(number: int, *, with_and: bool = True) -> str:
    """Returns a year between 1000 and 2999 as it is said.

    >>> [year(number) for number in (1066, 1900, 1905, 1999, 2000, 2007, 2024)][:4]
    ['ten sixty-six', 'nineteen hundred', 'nineteen oh five', 'nineteen ninety-nine']
    >>> [year(number) for number in (2000, 2007, 2024)]
    ['two thousand', 'two thousand and seven', 'twenty twenty-four']
    """
    century, rest = divmod(number, 100)
    if number % 1000 < 10:
        return cardinal(number, with_and=with_and)
    if not rest:
        return f"{_below_hundred(century)} hundred"
    return f"{_below_hundred(century)} {f'oh {_SMALL[rest]}' if rest < 10 else _below_hundred(rest)}"
