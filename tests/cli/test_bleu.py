"""`meshax bleu`: what it prints, and what it says of wrong files. Its figures are in tests/data/test_bleu.py."""

import pytest

from meshax.cli import main


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, content in (("a", "le chat est ici maintenant\n\u2028\n"), ("b", "x\n"), ("c", b"\xff\n")):
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def test_what_it_prints(capsys):
    assert main(["bleu", "--translations", "a", "--references", "a", "a", "--paper"]) == 0
    assert capsys.readouterr().out == (
        "BLEU 100.00  nrefs:2|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0\n"
        "chrF 100.00  nrefs:2|case:mixed|eff:yes|nc:6|nw:0|space:no|version:2.6.0\n"
        "BLEU as the paper counted 100.00  nrefs:2|case:mixed|eff:no|tok:intl|smooth:none|version:2.6.0\n"
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("", "there are no translations.\n  fix: give --translations FILE.\n"),
        ("--translations a", "there are no references.\n  fix: give --references FILE.\n"),
        ("--translations a --references b", "translations and references are not of the same texts.\n"),
        ("--translations c --references b", "'c' is not UTF-8.\n  fix: convert it with iconv -t utf-8.\n"),
        ("--translations a --references ?", "'?' is several files.\n  fix: name one.\n"),
        ("--translations d --references b", "a file of text does not exist.\n  values: d\n"),
    ],
)
def test_what_is_wrong(capsys, options, words):
    assert main(["bleu", *options.split()]) == 2
    assert words in capsys.readouterr().err
