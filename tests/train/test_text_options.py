"""Options of text that cannot be are found before anything is read."""

import pytest

import meshax as mx
from meshax.train.text_options import DataOptions, TextOptions
from messages import pinned


@pytest.mark.parametrize("errors", ["strict", "replace", "skip"])
def test_options_that_can_be(errors):
    TextOptions(errors=errors, encoding="latin-1", field=("text", "body"), max_documents=3).check()
    DataOptions(text=("a", "b", "c"), weights=(5, 3, 2), errors=errors).check()


test_messages = pinned(
    {
        "three fields of pairs": (
            mx.ArgumentError,
            TextOptions(pair_fields=("a", "b", "c")).check,
            """
            data.pair_fields is 'a b c'.
              fix: name two: the source's and the target's.
            """,
        ),
        "a source without a target": (
            mx.ArgumentError,
            TextOptions(source=("a.en",)).check,
            """
            there is data.source, and no data.target.
              rule: line n of a source belongs to line n of its target.
              fix: give data.target= too, or data.pairs= where one file holds both.
            """,
        ),
        "a vocabulary of targets": (
            mx.ArgumentError,
            DataOptions(target_vocabulary="a.json").check,
            """
            data.target_vocabulary is 'a.json', and sources and targets have one vocabulary.
              fix: give data.separate=True too, or leave it out.
            """,
        ),
        "one side to evaluate on": (
            mx.ArgumentError,
            DataOptions(validation_target=("a.fr",)).check,
            """
            pairs to evaluate on have two sides, and one is named.
              fix: give both data.validation_source= and data.validation_target=.
            """,
        ),
        "pairs for a language model": (
            mx.ArgumentError,
            lambda: TextOptions(pairs=("a.tsv", "b.tsv")).check_kind("tokens"),
            """
            data.pairs is 'a.tsv b.tsv', and the model learns from text.
              fix: give data.text=, or choose a model that translates.
            """,
        ),
        "errors": (
            mx.ArgumentError,
            DataOptions(errors="skipp").check,
            """
            data.errors is 'skipp'.
              fix: did you mean "skip"?
            """,
        ),
        "a limit below nothing": (
            mx.ArgumentError,
            TextOptions(max_bytes=-1).check,
            """
            data.max_bytes is -1.
              fix: give a number, 0 or more.
            """,
        ),
        "two vocabularies": (
            mx.ArgumentError,
            DataOptions(vocabulary="a.json", tokenizer="b.json").check,
            """
            data.vocabulary is 'a.json', and data.tokenizer is 'b.json'.
              fix: name one of the two.
            """,
        ),
        "no field": (
            mx.ArgumentError,
            TextOptions(field=()).check,
            """
            data.field is empty.
              fix: name the field that holds the text.
            """,
        ),
        "an encoding": (
            mx.ArgumentError,
            TextOptions(encoding="klingon").check,
            """
            data.encoding is 'klingon'.
              fix: choose utf-8, latin-1, cp1252, utf-16 or another that Python knows.
            """,
        ),
        "weights without texts": (
            mx.ArgumentError,
            DataOptions(text=("a", "b"), weights=(0.5, 0.3, 0.2)).check,
            """
            data.weights is 0.5 0.3 0.2.
              values: 3 weights, 2 texts
              rule: each pattern of data.text= is a source of a mixture, and has a weight.
              fix: give as many weights as texts; several files of one source are a folder or a glob in quotes.
            """,
        ),
        "a weight of nothing": (
            mx.ArgumentError,
            DataOptions(text=("a", "b"), weights=(1.0, 0.0)).check,
            """
            1.0 0.0 are not the weights of a mixture.
              fix: give a number above 0 for each source; leave a source out that is not to be read.
            """,
        ),
    }
)
