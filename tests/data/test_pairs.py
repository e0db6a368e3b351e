"""Pairs from files: line n belongs to line n, whatever the lines hold; what is left out is counted and shifts none."""

import gzip
import json
import tarfile
import tracemalloc
from pathlib import Path

import pytest

from meshax.data import pairs as module
from meshax.data.left_out import LeftOut, show_left_out
from meshax.data.limits import Limit
from meshax.data.pairs import Pairs
from meshax.data.tokenizing import tokenize
from meshax.data.vocabulary import Vocabulary
from meshax.errors import ArgumentError, DataError
from messages import pinned

SOURCES = [f"line {number}" for number in range(1, 10)]
TARGETS = [f"ligne {number}" for number in range(1, 10)]
NASTY = ["a\u2028b", "c\rd", "e\0f", "g\u0085h", "i\x0b\x0c\x1cj", "k\r", "\ufeffl"]


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(name, texts, end="\n"):
    content = b"\n".join(text if isinstance(text, bytes) else text.encode() for text in texts) + end.encode()
    Path(name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return name


def sides(pairs):
    return [(pair.source, pair.target) for pair in pairs]


def test_nasty_characters_shift_no_pair():
    write("a.en", [f"{nasty} {number}" for number, nasty in enumerate(NASTY)], end="")
    write("a.fr", [str(number) for number in range(len(NASTY))])
    wanted = [(f"{nasty} {number}", str(number)) for number, nasty in enumerate(NASTY)]
    assert sides(Pairs.find("a.en", "a.fr")) == wanted
    assert sides(Pairs.find("a.fr", "a.en")) == [(target, source) for source, target in wanted]


def test_every_kind_of_file():
    wanted = list(zip(SOURCES, TARGETS, strict=True))
    write("a.en", SOURCES), write("a.fr.gz", TARGETS)
    for name, texts in (("a.en.sgm", SOURCES), ("a.fr.sgm", TARGETS)):
        write(name, ["<doc>", *(f'<seg id="{number}"> {text} </seg>' for number, text in enumerate(texts)), "</doc>"])
    with tarfile.open("a.tgz", "w:gz") as archive:
        archive.add("a.en", "training/a.en"), archive.add("a.fr.gz", "training/a.fr.gz")
    write("a.tsv", [f"{source}\t{target}" for source, target in wanted])
    write("b.tsv.gz", [f"0.{i}\t{target}\t{source}" for i, (source, target) in enumerate(wanted)])
    write("a.jsonl", [json.dumps({"source": source, "target": target}) for source, target in wanted])
    write("b.jsonl.gz", [json.dumps({"pair": {"en": source, "fr": target}}) for source, target in wanted])
    for found in (
        Pairs.find("a.en", "a.fr.gz"),
        Pairs.find("a.en.sgm", "a.fr.sgm"),
        Pairs.find("a.en", "a.tgz/training/*.fr.gz"),
        Pairs.find("a.tgz/training/a.en", "a.tgz/training/a.fr.gz"),
        Pairs.find(both="a.tsv"),
        Pairs.find(both="b.tsv.gz", fields=("3", "2")),
        Pairs.find(both="a.jsonl"),
        Pairs.find(both="b.jsonl.gz", fields=("pair.en", "pair.fr")),
    ):
        assert sides(found) == wanted
    assert sides(Pairs.find("a.en", "a.fr.gz", "a.tsv")) == 2 * wanted
    assert sides(Pairs.find("a.en", "a.fr.gz", limit=Limit(4))) == wanted[:4]


def test_what_is_left_out_is_counted_and_shifts_none(monkeypatch):
    monkeypatch.setattr(module, "PIECE", 20)
    sources = ["one", "", "three", b"\xff four", "five", "six " * 10, "seven", " \r"]
    targets = ["un", "deux", "\t", "quatre", "cinq", "six", "sept", ""]
    write("a.en", sources), write("a.fr", targets)
    pairs = Pairs.find("a.en", "a.fr", errors="skip")
    left_out = LeftOut("skip")
    assert sides(pairs.read(pairs.files[0], left_out)) == [("one", "un"), ("five", "cinq"), ("seven", "sept")]
    assert show_left_out(left_out.counts) == (
        "3 pairs with an empty side (first: a.en, line 2), 1 document with undecodable bytes (a.en, line 4), "
        "1 pair with an over-long side (a.en, line 6)"
    )
    replaced = sides(Pairs.find("a.en", "a.fr", errors="replace"))
    assert replaced == [("one", "un"), ("\ufffd four", "quatre"), ("five", "cinq"), ("seven", "sept")]
    write("a.tsv", ["one\tun", "two", "three\ttrois\tdrei", "", "four\t", "five\tcinq"])
    pairs, left_out = Pairs.find(both="a.tsv", errors="skip"), LeftOut("skip")
    assert sides(pairs.read(pairs.files[0], left_out)) == [("one", "un"), ("five", "cinq")]
    assert show_left_out(left_out.counts) == (
        "2 lines that are not pairs (first: a.tsv, line 2: 'two'), 2 pairs with an empty side (first: a.tsv, line 4)"
    )


def test_unequal_files_are_an_error_also_when_they_are_too_large_to_be_counted(monkeypatch):
    write("a.en", SOURCES), write("a.fr", TARGETS[:-1], end="")
    with pytest.raises(DataError) as counted:
        Pairs.find("a.en", "a.fr", errors="skip")
    monkeypatch.setattr(module, "_COUNTED", 0)
    with pytest.raises(DataError) as read:
        list(Pairs.find("a.en", "a.fr", errors="skip"))
    assert str(counted.value) == str(read.value) and "a.en: 9; a.fr: 8" in str(read.value)


def test_held_out_pairs_share_no_source():
    sources = [f"line {number % 400}" for number in range(2000)]
    write("a.en", sources), write("a.fr", [f"{text}, {number}" for number, text in enumerate(sources)])
    pairs = Pairs.find("a.en", "a.fr")
    train, held_out = (sides(part) for part in pairs.hold_out(0.1))
    assert sorted(train + held_out) == sorted(sides(pairs)) and 100 < len(held_out) < 350
    assert not {source for source, _ in train} & {source for source, _ in held_out}


def test_both_sides_are_tokenized_pair_by_pair(tmp_path):
    write("a.en", ["one", "", "three", "four"]), write("a.fr", ["un", "deux", "trois", ""])
    pairs, vocabulary = Pairs.find("a.en", "a.fr"), Vocabulary.train(SOURCES + TARGETS, 300)
    files = [tokenize(pairs.side(number), vocabulary, tmp_path / str(number)) for number in (0, 1)]
    texts = [[vocabulary.decode(file.document(i)) for i in range(file.num_documents)] for file in files]
    assert texts == [["one", "three"], ["un", "trois"]]
    assert files[0].left_out == files[1].left_out == "2 pairs with an empty side (first: a.en, line 2)"
    assert files[0].fingerprint != files[1].fingerprint
    again = tokenize(Pairs.find("a.en", "a.fr").side(0), vocabulary, tmp_path / "0")
    assert again.fingerprint == files[0].fingerprint
    write("a.fr", ["un", "deux", "trois", "quatre"])  # the other side decides too
    assert tokenize(Pairs.find("a.en", "a.fr").side(0), vocabulary, tmp_path / "0").num_documents == 3


def test_a_sample_has_both_sides():
    write("a.en", SOURCES), write("a.fr", TARGETS), write("a.tsv", [f"x{i}\ty{i}" for i in range(100)])
    pairs = Pairs.find("a.en", "a.fr", "a.tsv")
    samples = ["\n".join(pairs.side(number).sample(10**6)) for number in (0, 1)]
    assert all(text in samples[0] for text in (*SOURCES, "x99")) and all(t in samples[1] for t in (*TARGETS, "y99"))
    assert "ligne" not in samples[0] and len("".join(pairs.side(1).sample(200))) <= 200


def test_a_sample_is_spread_evenly_and_fears_no_bytes(monkeypatch):
    monkeypatch.setattr(module, "_STRETCH", 100)
    write("a.en", [b"\0\xff first", *(f"line {number:04}" for number in range(2000))]), write("a.fr", ["x"] * 2001)
    numbers = [int(text[5:]) for text in Pairs.find("a.en", "a.fr").side(0).sample(3000) if len(text) == 9]
    assert 100 < len(numbers) < 300 and numbers == sorted(set(numbers))
    assert {number // 250 for number in numbers} == set(range(8))


def test_reading_takes_constant_memory():
    number = 20_000
    write("a.en", [f"line {i} " + "x" * 1000 for i in range(number)]), write("a.fr.gz", map(str, range(number)))
    tracemalloc.start()
    assert sum(1 for _ in Pairs.find("a.en", "a.fr.gz")) == number
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * 2**20


def one_pair(source=b"one", target=b"un", **options):
    write("a.en", [source]), write("a.fr", [target])
    return list(Pairs.find("a.en", "a.fr", **options))


def one_line(line, **options):
    return list(Pairs.find(both=write("a.tsv", [line]), **options))


test_messages = pinned(
    {
        "unequal": (
            DataError,
            lambda: one_pair(b"one\ntwo"),
            """
            two files do not have equally many lines.
              values: a.en: 2; a.fr: 1
              rule: line n of one belongs to line n of the other; a line feed ends a line, and nothing else does.
              fix: make or fetch them again; a tool that splits at other characters, or drops empty lines, has shifted them.
            """,  # noqa: E501
        ),
        "empty": (
            DataError,
            lambda: Pairs.find(write("a.en", [], end=""), write("a.fr", [], end="")),
            """
            two files of pairs are empty.
              values: a.en and a.fr
              fix: name others.
            """,
        ),
        "files without a partner": (
            DataError,
            lambda: Pairs.find([write("a.en", SOURCES), write("b.en", SOURCES)], write("a.fr", TARGETS)),
            """
            there are not as many files of sources as of targets.
              values: 2 of sources, 1 of targets
              rule: the first file of the sources belongs to the first of the targets, and so on.
              fix: name both in the same order.
            """,
        ),
        "no files": (
            DataError,
            lambda: Pairs.find(),
            """
            no files of pairs are named.
              fix: name some: source="news.en", target="news.fr", or both="news.tsv".
            """,
        ),
        "undecodable": (
            DataError,
            lambda: one_pair(b"one", b"d\xe9j\xe0"),
            """
            the target of a pair is not UTF-8.
              values: a.en, line 1 and of a.fr: 0xe9 at byte 1 of it: invalid continuation byte
              fix: name its encoding: encoding="latin-1", or do without such bytes: errors="replace", or without such pairs: errors="skip".
            """,  # noqa: E501
        ),
        "no pair": (
            DataError,
            lambda: one_line("one, un"),
            """
            a line holds no pair.
              values: a.tsv, line 1: 'one, un'
              rule: a line of JSON has the fields source and target; other lines have two columns with a tab between them.
              fix: name the fields: fields=("en", "fr"), or columns: fields=("2", "3"); or leave such lines out: errors="skip".
            """,  # noqa: E501
        ),
        "three fields": (
            ArgumentError,
            lambda: one_line("a\tb", fields=("1", "2", "3")),
            """
            a pair has two fields, not 3.
              fix: name them: fields=("en", "fr").
            """,
        ),
        "errors": (
            ArgumentError,
            lambda: one_pair(errors="ignore"),
            """
            errors='ignore' is no way to read text.
              fix: known names: replace, skip, strict.
            """,
        ),
        "encoding": (
            ArgumentError,
            lambda: one_pair(encoding="utf-16"),
            """
            encoding='utf-16' cannot be read line by line.
              rule: a line feed is the byte 10, and nothing else is.
              fix: convert the files with iconv -t utf-8.
            """,
        ),
        "held out": (
            ArgumentError,
            lambda: Pairs(()).hold_out(2),
            """
            2 is not a part to hold out.
              fix: choose one between 0 and 1: 0.05.
            """,
        ),
    }
)


def test_latin_1_and_a_broken_file():
    assert [pair.target for pair in one_pair(b"already", "déjà".encode("latin-1"), encoding="latin-1")] == ["déjà"]
    write("a.en", SOURCES * 5000)
    content = gzip.compress("\n".join(TARGETS * 5000).encode())
    Path("a.fr.gz").write_bytes(content[: len(content) // 2])
    pairs, left_out = Pairs.find("a.en", "a.fr.gz", errors="skip"), LeftOut("skip")
    found = sides(pairs.read(pairs.files[0], left_out))
    assert found == list(zip(SOURCES * 5000, TARGETS * 5000))[: len(found)]  # a line that is cut is no line
    assert left_out.counts["broken"][0] == 1
    with pytest.raises(DataError, match="a compressed file is broken"):
        list(Pairs.find("a.en", "a.fr.gz"))


def test_a_mark_at_the_beginning_is_no_text():
    write("a.en", [b"\xef\xbb\xbfone"]), write("a.fr", [b"\xef\xbb\xbfun"]), write("a.tsv", [b"\xef\xbb\xbfone\tun"])
    assert sides(Pairs.find("a.en", "a.fr", "a.tsv")) == 2 * [("one", "un")]
