"""Translation of many texts: searched for in groups of about one length, given back in their order.

A text that is blank has a blank translation, and is never shown to the model. One that is longer than the sources the
model was trained on is cut there, and counted: nobody knows what the model would make of the rest. A translation has at
most one and a half times as many tokens as its source, and ten, as in the paper.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..layout import Layout, RulesLike
from ..mesh import Mesh
from ..models.contract import Model
from .beams import BeamSearch
from .requests import Longest, Request

_PAGE = 64
_LONGEST = Longest(10, 1.5)
_LONGEST_TEXT = 1 << 16  # characters that are encoded: of more, no model reads the tokens


class Words(Protocol):
    """The subwords of a side: a vocabulary."""

    begin: int
    end: int

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the tokens of texts."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Returns the text of tokens."""


@dataclass(frozen=True)
class Translation:
    """A translation, and how likely it is."""

    text: str
    score: float  # the log-probability divided by the penalty of the length


class Translator:
    """Translates with a model on a mesh under a layout."""

    def __init__(
        self,
        model: Model,
        mesh: Mesh,
        layout: Layout | RulesLike,
        vocabularies: tuple[Words, Words],
        *,
        source_length: int,
        length: int,
        beams: int = 4,
        length_penalty: str = "paper",
        alpha: float = 0.6,
        slots: int = 32,
    ):
        """Makes room for a search.

        Args:
            model: the model; placed on the mesh if it is not.
            mesh: the processors.
            layout: which dims are split over which mesh axes.
            vocabularies: of sources and of targets.
            source_length: tokens of a source at most.
            length: tokens of a translation at most, and one more.
            beams: how many beginnings of a translation live on.
            length_penalty: by its name, "paper" or "power".
            alpha: its exponent; 0: lengths do not count.
            slots: how many texts are translated at once.
        """
        self.source_words, self.target_words = vocabularies
        self.source_length, self.length, self.slots = source_length, length, slots
        self.num_cut = 0  # texts that were too long so far
        self._search = BeamSearch(
            model, mesh, layout, beams=beams, length_penalty=length_penalty, alpha=alpha, slots=slots, places=length,
            page=min(_PAGE, length), source_places=source_length,
        )  # fmt: skip

    def translate(
        self, texts: Sequence[str], on_done: Callable[[int], None] = lambda count: None
    ) -> list[list[Translation]]:
        """Returns the best translations of each text, the likeliest first: at most as many as there are beams.

        Args:
            texts: what to translate.
            on_done: is called with the number of texts that have been translated, now and then.
        """
        translations: list[list[Translation]] = [[] for _ in texts]
        waiting = [number for number, text in enumerate(texts) if text.strip()]
        tokens = self.source_words.encode_batch([texts[number].strip()[:_LONGEST_TEXT] for number in waiting])
        sources = dict(zip(waiting, map(self._source, tokens), strict=True))
        on_done(len(texts) - len(waiting))
        # The longest first: what does not fit the memory fails at once.
        waiting.sort(key=lambda number: (-len(sources[number]), number))
        for begin in range(0, len(waiting), self.slots):
            group = waiting[begin : begin + self.slots]
            searched = self._search.search([self._request(sources[number]) for number in group])
            for number, found in zip(group, searched, strict=True):
                translations[number] = [
                    Translation(self.target_words.decode(one.tokens).strip(), one.score) for one in found
                ]
            on_done(len(group))
        return translations

    def _source(self, tokens: list[int]) -> tuple[int, ...]:
        """Returns the tokens of a source with their end."""
        if len(tokens) >= self.source_length:
            self.num_cut += 1
        return (*tokens[: self.source_length - 1], self.source_words.end)

    def _request(self, source: tuple[int, ...]) -> Request:
        most = min(_LONGEST.of(len(source)), self.length - 1)
        return Request((self.target_words.begin,), most, stop=(self.target_words.end,), source=source)
