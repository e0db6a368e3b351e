"""What is asked of a model, and what comes back."""

import math
import re
from dataclasses import dataclass, field

from ..errors import ArgumentError

MAX_SEED = 2**32
MAX_CANDIDATES = 5


@dataclass(frozen=True)
class Request:
    """A text to write on from, and how tokens are chosen.

    The tokens that come out follow from the request alone: not from what else is written at the same time, nor from
    the slot, nor from the layout. They are drawn by the seed and the position, so two requests that differ in nothing
    but the seed are two draws.

    Args:
        prompt: the tokens before, at least one.
        tokens: how many tokens to write at most.
        temperature: below 1 the likely become likelier; 0 takes the likeliest, the first of several.
        top_k: how many of the likeliest tokens may be drawn, and those as likely as the last; 0: all.
        top_p: of what is left, the likeliest that together have this probability may be drawn, and those as likely as
            the last.
        min_p: tokens may be drawn that are at least so likely as this share of the likeliest.
        repetition_penalty: logits of tokens that are in the text are divided by it, or multiplied if negative.
        banned: tokens that are never chosen.
        forced: the tokens that the text goes on with, whatever the model says.
        stop: tokens that end the text, and are not part of it.
        stop_strings: texts that end the text, and are not part of it.
        seed: chooses the draws.
        candidates: how many of the likeliest tokens are told at each place, beside the one that is chosen.
        log_probabilities: whether it is told how likely each token was. Without that a step is a little faster.
        source: the tokens of the text to write from, for a model that reads one; such a model needs one.
    """

    prompt: tuple[int, ...]
    tokens: int = 100
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    banned: tuple[int, ...] = ()
    forced: tuple[int, ...] = ()
    stop: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    seed: int = 0
    candidates: int = 0
    log_probabilities: bool = True
    source: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Raises if nobody can do what is asked."""
        for name, is_right, rule in (
            ("tokens", self.tokens >= 0, "0 or more"),
            ("temperature", 0 <= self.temperature < float("inf"), "0 or more"),
            ("top_k", 0 <= self.top_k < 2**31, "0 or more, and less than 2147483648"),
            ("top_p", 0 < self.top_p <= 1, "more than 0, and 1 at most"),
            ("min_p", 0 <= self.min_p <= 1, "0 to 1"),
            ("repetition_penalty", 0 < self.repetition_penalty < float("inf"), "more than 0"),
            ("seed", 0 <= self.seed < MAX_SEED, f"0 or more, and less than {MAX_SEED}"),
            ("candidates", 0 <= self.candidates <= MAX_CANDIDATES, f"0 to {MAX_CANDIDATES}"),
        ):
            if not is_right:
                raise ArgumentError(f"{name} is {getattr(self, name)}.", fix=f"give a number, {rule}.")
        if "" in self.stop_strings:
            raise ArgumentError("a string that stops a text is empty.", fix="leave it out.")
        if not self.prompt:
            raise ArgumentError("a prompt has at least one token.", fix="begin with the token that ends a document.")


@dataclass(frozen=True)
class Longest:
    """How many tokens a text may have: so many, and a multiple of those that it is written from.

    >>> Longest.read("1.5x+10").of(7), Longest.read("100").of(7)
    (20, 100)
    """

    more: int
    factor: float = 0.0

    @classmethod
    def read(cls, text: str) -> "Longest":
        """Reads a number, "100", or a multiple of a length x, "1.5x+10"."""
        match = re.fullmatch(r"(?:(\d+(?:\.\d+)?)x)?(?:(?:(?<=x)\+|(?<!x))(\d+))?", text.replace(" ", ""))
        if match is None or not match[0]:
            raise ArgumentError(
                f"{text!r} does not say how long a text may be.",
                fix="give a number, 0 or more, or a multiple of the length x before it, as 1.5x+10.",
            )
        return cls(int(match[2] or 0), float(match[1] or 0))

    def of(self, length: int) -> int:
        """Returns how many tokens a text may have that is written from one of this length."""
        return self.more + int(self.factor * length)


@dataclass
class Written:
    """What a model has written for a request so far."""

    tokens: list[int] = field(default_factory=list)
    log_probabilities: list[float] = field(default_factory=list)  # as the model alone predicts it, as asked for
    candidates: list[list[tuple[int, float]]] = field(default_factory=list)  # the likeliest in its place, as asked for
    ended_by: str = ""  # "stop" or "length", once it has ended
    text: str | None = None  # where a string stopped it: the text before

    @property
    def log_probability(self) -> float:
        """That of all tokens, in nats; of a token that has ended the text too. Not a number, if nobody asked for it."""
        return sum(self.log_probabilities) if self.log_probabilities or not self.tokens else math.nan
