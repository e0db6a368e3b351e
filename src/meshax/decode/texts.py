"""Text of tokens as they come: what is sure to stay of it, and where a string ends it.

A decoder may look at the tokens just before, so text is made of the new tokens and a few before them. What that gives
ends with half a character now and then: such tokens are read again with the next ones.
"""

from collections.abc import Callable, Sequence
from copy import copy
from itertools import chain

from .requests import Written

HALF = "\N{REPLACEMENT CHARACTER}"  # what a decoder makes of a part of a character
_CONTEXT = 64  # tokens before, that are decoded again


class Spelling:
    """The text of tokens, however many have come before: each is decoded a few times, whatever the length."""

    def __init__(self, decode: Callable[[list[int], Sequence[int]], str], prompt: Sequence[int] = ()):
        """Begins a text.

        Args:
            decode: makes text of tokens that come after others.
            prompt: the tokens before the text.
        """
        self.text = self.settled = ""  # all, and what no further token changes
        self._decode = decode
        # Tokens of what is settled, in parts that begin where a character begins.
        self._before: tuple[tuple[int, ...], ...] = (tuple(prompt),)
        self._open: tuple[int, ...] = ()  # the tokens of the rest

    def add(self, tokens: Sequence[int]) -> str:
        """Takes more tokens, and returns the text."""
        self._open = (*self._open, *tokens)
        self.text = self.settled + self._decode(list(self._open), [*chain(*self._before)])
        if not self.text.endswith(HALF):
            self.settled, self._before, self._open = self.text, (*self._before, self._open), ()
            while sum(map(len, self._before[1:])) >= _CONTEXT:
                self._before = self._before[1:]
        return self.text


def cut_at(strings: Sequence[str], written: Written, spelling: Spelling, first: int) -> bool:
    """Cuts a text before the first of some strings that is whole, and says whether there was one.

    Args:
        strings: what ends a text.
        written: the text.
        spelling: has its first tokens, in which there is none, and gets the others.
        first: how many these are.
    """
    again = copy(spelling)
    begin = max(len(spelling.settled) - max(map(len, strings)), 0)  # no string that ends later begins before

    def starts(text: str) -> list[int]:
        return [start for string in strings if (start := text.find(string, begin)) >= 0]

    text = spelling.add(written.tokens[first:])
    if not starts(text):
        return False
    for count in range(first + 1, len(written.tokens) + 1):  # by tokens: how many come at once does not matter
        if starts(earlier := again.add(written.tokens[count - 1 : count])):
            text = earlier
            break
    written.text = text[: min(starts(text))]
    for told in (written.tokens, written.log_probabilities, written.candidates):
        del told[count:]
    return True


def sure_part(text: str, stops: Sequence[str]) -> str:
    """Returns what of a text stays, whatever comes: no half character, and nothing that may begin a string of `stops`.

    >>> sure_part("to be or n", ["not to", "be"])
    'to be or '
    """
    text = text.rstrip(HALF)
    longest = max(map(len, stops), default=1) - 1
    for count in range(min(longest, len(text)), 0, -1):
        if any(stop.startswith(text[-count:]) for stop in stops):
            return text[:-count]
    return text
