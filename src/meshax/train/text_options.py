"""What a run is told of its text: plain values, and what is wrong with them."""

import codecs
from dataclasses import dataclass

from ..errors import ArgumentError, did_you_mean


@dataclass(frozen=True)
class TextOptions:
    """Other text to evaluate on."""

    text: tuple[str, ...] = ()  # files, folders or globs; none: what the run held out
    lines: bool = False  # whether each line is a document, as in LM1B's files
    field: tuple[str, ...] = ("text",)  # of JSON lines, or the column of Parquet; of several names the first there is
    encoding: str = "utf-8"  # of files without a mark that says it
    # what happens to what cannot be read: strict stops, skip leaves it out and counts it, replace reads wrong bytes as
    # U+FFFD and leaves out the rest
    errors: str = "skip"
    max_documents: int = 0  # read the first so many; 0: all
    max_bytes: int = 0  # of text, read the first so many; 0: all
    cache: str = ""  # where tokens are kept; none: nowhere

    def check(self) -> None:
        """Raises if there is no such way to read text."""
        if self.errors not in (known := ("strict", "replace", "skip")):
            raise ArgumentError(f"data.errors is {self.errors!r}.", fix=did_you_mean(self.errors, known))
        for name in ("max_documents", "max_bytes"):
            if getattr(self, name) < 0:
                raise ArgumentError(f"data.{name} is {getattr(self, name)}.", fix="give a number, 0 or more.")
        if not all(self.field) or not self.field:
            raise ArgumentError("data.field is empty.", fix="name the field that holds the text.")
        try:
            codecs.lookup(self.encoding)
        except LookupError:
            fix = "choose utf-8, latin-1, cp1252, utf-16 or another that Python knows."
            raise ArgumentError(f"data.encoding is {self.encoding!r}.", fix=fix) from None


@dataclass(frozen=True)
class DataOptions(TextOptions):
    """The text to learn from."""

    text: tuple[str, ...] = ()  # files, folders or globs; none: the source of Python's standard library
    validation: tuple[str, ...] = ()  # files, folders or globs to evaluate on; none: a twentieth of the text
    weights: tuple[float, ...] = ()  # a mixture: for each of the texts, its share of the examples
    vocabulary: str = ""  # a vocabulary file; none: one is trained from the text
    tokenizer: str = ""  # a tokenizer.json from elsewhere, in place of a vocabulary file
    cache: str = ""  # where tokens are kept; none: in the run's directory

    def check(self) -> None:
        """Raises if there is no such text, or mixture."""
        super().check()
        if self.vocabulary and self.tokenizer:
            raise ArgumentError(
                f"data.vocabulary is {self.vocabulary!r}, and data.tokenizer is {self.tokenizer!r}.",
                fix="name one of the two.",
            )
        if not self.weights:
            return
        if len(self.weights) != len(self.text):
            raise ArgumentError(
                f"data.weights is {' '.join(f'{weight:g}' for weight in self.weights)}.",
                values=f"{len(self.weights)} weights, {len(self.text)} texts",
                rule="each pattern of data.text= is a source of a mixture, and has a weight.",
                fix="give as many weights as texts; several files of one source are a folder or a glob in quotes.",
            )
        from ..data.mixture import Mixture  # after the help, which needs no numpy

        Mixture(self.weights)
