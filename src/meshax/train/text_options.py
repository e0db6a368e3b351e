"""What a run is told of its text, its pairs of texts or its volumes: plain values, and what is wrong with them."""

import codecs
from dataclasses import dataclass

from ..errors import ArgumentError, did_you_mean
from .volume_options import VolumeFiles, VolumeOptions

# Which options are of other examples than a kind.
_PAIRS = ("source", "target", "pairs", "validation_source", "validation_target", "separate", "target_vocabulary")
_TEXT = ("text", "weights", "lines", "max_bytes")
_VOLUMES = tuple(VolumeOptions.__dataclass_fields__)
_OTHERS = {
    "tokens": (*_PAIRS, *_VOLUMES),
    "pairs": (*_TEXT, *_VOLUMES),
    "volumes": (*_TEXT, *_PAIRS, "validation", "vocabulary", "tokenizer"),
    "images": (*_TEXT, *_PAIRS, "validation", "vocabulary", "tokenizer", "window"),
}
_NAMES = {"tokens": "text", "pairs": "pairs of texts", "volumes": "volumes", "images": "images"}
_INSTEAD = {
    "tokens": "give data.text=, or choose a model that translates.",
    "pairs": "leave it out; pairs are data.source= and data.target=, or data.pairs=.",
    "volumes": "leave it out; volumes are data.images= and data.labels=.",
    "images": "leave it out; images are data.images= and data.labels=.",
}


@dataclass(frozen=True)
class TextOptions(VolumeFiles):
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
    # to translate: files or globs, also in archives, as in a.tgz/training/*.en: plain, compressed, or .sgm
    source: tuple[str, ...] = ()
    target: tuple[str, ...] = ()  # their translations: line n of a file belongs to line n of the source's
    pairs: tuple[str, ...] = ()  # files with a source and its target on each line: two columns with a tab, or .jsonl
    # of pairs: the fields of JSON lines, also within others as in translation.en; or the numbers of columns, from 1
    pair_fields: tuple[str, ...] = ("source", "target")

    def check(self) -> None:
        """Raises if there is no such way to read text."""
        super().check()
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
        if len(self.pair_fields) != 2:
            fields = " ".join(self.pair_fields)
            raise ArgumentError(f"data.pair_fields is {fields!r}.", fix="name two: the source's and the target's.")
        if bool(self.source) != bool(self.target):
            one, other = ("source", "target") if self.source else ("target", "source")
            raise ArgumentError(
                f"there is data.{one}, and no data.{other}.",
                rule="line n of a source belongs to line n of its target.",
                fix=f"give data.{other}= too, or data.pairs= where one file holds both.",
            )

    def check_kind(self, kind: str) -> None:
        """Raises if it is of other examples than of this kind."""
        if kind not in _OTHERS:
            return
        for name in _OTHERS[kind]:
            if (value := getattr(self, name, None)) and value != type(self).__dataclass_fields__[name].default:
                shown = " ".join(map(str, value)) if isinstance(value, tuple) else value
                fix = "leave it out, or choose a model of volumes." if name in _VOLUMES else _INSTEAD[kind]
                raise ArgumentError(f"data.{name} is {shown!r}, and the model learns from {_NAMES[kind]}.", fix=fix)


@dataclass(frozen=True)
class DataOptions(VolumeOptions, TextOptions):
    """The text to learn from."""

    text: tuple[str, ...] = ()  # files, folders or globs; none: the source of Python's standard library
    validation: tuple[str, ...] = ()  # files, folders or globs to evaluate on; none: a twentieth of the text
    validation_source: tuple[str, ...] = ()  # to translate: files to evaluate on
    validation_target: tuple[str, ...] = ()  # their translations
    weights: tuple[float, ...] = ()  # a mixture: for each of the texts, its share of the examples
    vocabulary: str = ""  # a vocabulary file; none: one is trained from the text
    tokenizer: str = ""  # a tokenizer.json from elsewhere, in place of a vocabulary file
    separate: bool = False  # to translate: whether sources and targets have subwords of their own, and so embeddings
    target_vocabulary: str = ""  # then a vocabulary file of the targets; none: one is trained from them
    cache: str = ""  # where tokens are kept; none: in the run's directory

    def check(self) -> None:
        """Raises if there is no such text, or mixture."""
        super().check()
        if self.vocabulary and self.tokenizer:
            raise ArgumentError(
                f"data.vocabulary is {self.vocabulary!r}, and data.tokenizer is {self.tokenizer!r}.",
                fix="name one of the two.",
            )
        if self.target_vocabulary and not self.separate:
            raise ArgumentError(
                f"data.target_vocabulary is {self.target_vocabulary!r}, and sources and targets have one vocabulary.",
                fix="give data.separate=True too, or leave it out.",
            )
        if bool(self.validation_source) != bool(self.validation_target):
            raise ArgumentError(
                "pairs to evaluate on have two sides, and one is named.",
                fix="give both data.validation_source= and data.validation_target=.",
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
