"""BLEU and chrF of two files that are kept here: what sacrebleu's own command says."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from meshax.cli import main
from meshax.data.bleu import measures
from meshax.errors import ArgumentError
from messages import pinned

FILES = Path(__file__).with_name("bleu")
TRANSLATIONS, REFERENCE = FILES / "translations.fr", FILES / "reference.fr"


def texts(path):
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def by_sacrebleu(*options):
    command = [sys.executable, "-m", "sacrebleu", str(REFERENCE), "-i", str(TRANSLATIONS), "-w", "6", *options]
    result = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return {one["name"]: one for one in (result if isinstance(result, list) else [result])}


def test_as_the_command_sacrebleu(capsys):
    theirs = by_sacrebleu("-m", "bleu", "chrf")
    assert main(["bleu", "--translations", str(TRANSLATIONS), "--references", str(REFERENCE), "--json"]) == 0
    ours = json.loads(capsys.readouterr().out)
    assert ours["lines"] == 10
    for name, their_name in (("BLEU", "BLEU"), ("chrF", "chrF2")):
        assert round(ours["measures"][name]["value"], 6) == theirs[their_name]["score"]
        assert ours["measures"][name]["signature"] == theirs[their_name]["signature"]
    assert ours["measures"]["BLEU"]["signature"] == "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"


def test_the_figures_of_the_files_that_are_kept():
    shown = [str(one) for one in measures(texts(TRANSLATIONS), [texts(REFERENCE)], paper=True)]
    assert shown == [
        "BLEU 61.51  nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0",
        "chrF 85.78  nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:2.6.0",
        "BLEU as the paper counted 66.30  nrefs:1|case:mixed|eff:no|tok:intl|smooth:none|version:2.6.0",
    ]


def test_the_paper_cuts_compounds_at_their_hyphens():
    """One wrong part of a compound leaves the others right."""
    translations, references = ["il a quatre-vingt-deux ans"] * 2, ["il a quatre-vingt-trois ans"] * 2
    plain, _, paper = measures(translations, [references], paper=True)
    apart = [[line.replace("-", " - ") for line in lines] for lines in (translations, references)]
    assert paper.value == pytest.approx(measures(apart[0], [apart[1]])[0].value)
    assert paper.value > plain.value + 20


def test_several_references():
    one, other = ["le chat est ici maintenant"], ["il y a un chat ici maintenant"]
    both = measures(one, [other, one])
    assert both[0].value == pytest.approx(100) and both[0].signature.startswith("nrefs:2|")
    assert measures(one, [one])[1].value == 100


test_messages = pinned(
    {
        "unequal": (
            ArgumentError,
            lambda: measures(["a", "b"], [["a"], ["a", "b"]]),
            """
            translations and references are not of the same texts.
              values: 2 translations; references: 1, 2
              rule: there is at least one, and line n of one belongs to line n of the others.
              fix: name files of equally many lines.
            """,
        ),
        "none": (
            ArgumentError,
            lambda: measures(["a"], []),
            """
            translations and references are not of the same texts.
              values: 1 translations; references: none
              rule: there is at least one, and line n of one belongs to line n of the others.
              fix: name files of equally many lines.
            """,
        ),
    }
)
