"""Which files, in which order, and what is held out of them."""

import gzip
import json
import os
from pathlib import Path

import pytest

from meshax import ArgumentError, DataError
from meshax.data import Limit, Text, documents, standard_library
from meshax.data.left_out import LeftOut
from messages import pinned


@pytest.fixture(autouse=True)
def books(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = Path("books")
    (folder / "more").mkdir(parents=True)
    for number in range(5):
        (folder / f"{number}.txt").write_text(f"book {number}\nits end\n")
    (folder / "more" / "5.txt.gz").write_bytes(gzip.compress(b"book 5\n\nits end"))
    (folder / "more" / "6.jsonl").write_text(json.dumps({"text": "book 6"}))
    return folder


def test_documents_come_file_by_file():
    assert list(documents("books/?.txt")) == [f"book {n}\nits end\n" for n in range(5)]
    assert list(documents(["books/more/*", "books/0.txt"], per="line")) == [
        *("book 5", "its end", "book 6", "book 0", "its end"),
    ]


def test_a_file_is_taken_once():
    text = Text.find([Path("books/3.txt"), "books/**/*.txt"])
    assert [file.name for file in text.files] == ["3.txt", "0.txt", "1.txt", "2.txt", "4.txt"]
    assert text.num_bytes == 5 * len("book 0\nits end\n")


def test_a_folder_is_all_of_its_files():
    Path("books/.hidden").write_text("hidden")
    Path("books/.git").mkdir()
    Path("books/.git/config").write_text("hidden")
    text = Text.find("books")
    assert [str(file) for file in text.files] == [
        *(f"books/{n}.txt" for n in range(5)), "books/more/5.txt.gz", "books/more/6.jsonl",
    ]  # fmt: skip
    assert len(list(text.documents())) == 7


def test_links_in_a_folder():
    """They are followed, but not in a circle; one to what is gone cannot be opened; a pipe is no file."""
    Path("elsewhere").mkdir()
    Path("elsewhere/7.txt").write_text("book 7")
    Path("books/linked").symlink_to("../elsewhere")
    Path("elsewhere/back").symlink_to("../books")
    Path("books/8.txt").symlink_to("gone.txt")
    os.mkfifo("books/pipe")
    text, left_out = Text.find("books", errors="skip"), LeftOut("skip")
    names = [str(file.relative_to("books")) for file in text.files]
    assert names == [*(f"{n}.txt" for n in range(5)), "8.txt", "linked/7.txt", "more/5.txt.gz", "more/6.jsonl"]
    assert len([piece for file in text.files for piece in text.pieces(file, left_out=left_out)]) == 8
    assert left_out.counts == {"unreadable": (1, "books/8.txt: No such file or directory")}
    with pytest.raises(DataError, match="books/8.txt: No such file or directory"):
        Text.find("books")


def test_what_may_be_left_out_is_not_looked_at_first():
    Path("books/empty.txt").touch()
    Path("books/broken.gz").write_bytes(b"plain")
    with pytest.raises(DataError):
        Text.find("books")
    text, left_out = Text.find("books", errors="skip"), LeftOut("skip")
    assert len([piece for file in text.files for piece in text.pieces(file, left_out=left_out)]) == 7
    assert {kind: count for kind, (count, _) in left_out.counts.items()} == {"empty": 1, "broken": 1}


@pytest.mark.parametrize(
    ("content", "words"), [(b"", "1 empty file (a.txt)"), (b"GIF\0", "1 binary file (a.txt: a zero byte at byte 3)")]
)
def test_a_lone_file_is_looked_at_in_any_case(content, words):
    """To leave it out would leave nothing, and is not what to do about it."""
    Path("a.txt").write_bytes(content)
    with pytest.raises(DataError) as error:
        Text.find("a.txt", errors="skip")
    assert str(error.value) == f"no text can be read.\n  values: {words}\n  fix: correct it, or name other files."


LINES = [f"line {number} caf\u00e9" for number in range(2000)]


@pytest.mark.parametrize("files", [1, 7])
@pytest.mark.parametrize("count", [1, 3, 1999, 2000, 5000])
def test_a_limit_of_documents_is_exact(files, count):
    for number in range(files):
        Path(f"books/lines{number}.txt").write_text("\n\n".join(LINES[number::files]))
    whole = list(documents("books/lines*", per="line"))
    text = Text.find("books/lines*", per="line", limit=Limit(documents=count))
    assert list(text.documents()) == whole[:count]
    train, held_out = (list(part.documents()) for part in text.hold_out(0.3))
    assert set(train).isdisjoint(held_out) and len(train) == min(count, len(train)) and len(held_out) <= count


@pytest.mark.parametrize("size", [1, 11, 12, 5000, 10**6])
def test_a_limit_of_bytes_is_exact_but_for_half_a_character(size):
    Path("books/lines.txt").write_text("\n".join(LINES))
    whole = list(documents("books/lines.txt", per="line"))
    limited = list(Text.find("books/lines.txt", per="line", limit=Limit(bytes=size)).documents())
    assert "".join(limited) == "".join(whole).encode()[:size].decode(errors="ignore")
    assert limited[:-1] == whole[: len(limited) - 1]


def test_a_limited_text_is_sampled_within_its_limit():
    Path("books/lines.txt").write_text("\n".join(LINES))
    text = Text.find("books/lines.txt", per="line", limit=Limit(documents=3))
    assert "".join(text.sample(10**6)) == "".join(LINES[:3])
    assert "".join(text.sample(10)) == "line 0 caf"


def test_a_name_with_brackets_is_a_name():
    Path("books/[1].txt").write_text("brackets")
    assert list(documents("books/[1].txt")) == ["brackets"]


def test_files_are_held_out_by_their_names(tmp_path):
    for number in range(100):
        Path(f"books/many{number}.txt").write_text(f"{number}")
    train, held_out = Text.find("books/many*").hold_out()
    (tmp_path / "elsewhere").mkdir()
    for number in range(100):
        Path(f"elsewhere/many{number}.txt").write_text("another text")
    again = Text.find("elsewhere/many*").hold_out()[1]

    assert len(held_out.files) == 5
    assert set(train.files).isdisjoint(held_out.files) and len(train.files) == 95
    assert [file.name for file in again.files] == [file.name for file in held_out.files]


def test_of_few_files_one_is_held_out():
    train, held_out = Text.find("books/?.txt").hold_out()
    assert (len(train.files), len(held_out.files)) == (4, 1)


def test_documents_are_held_out_by_their_words():
    lines = [f"line {number}" for number in range(3000)]
    Path("books/lines.txt").write_text("\n".join(lines + lines[:1500]))
    train, held_out = (list(part.documents()) for part in Text.find("books/lines.txt", per="line").hold_out(0.1))

    assert sorted(train + held_out) == sorted(lines + lines[:1500])
    assert set(train).isdisjoint(held_out)
    assert 300 < len(held_out) < 600


def test_a_sample_is_spread_over_the_text():
    lines = [f"{number:07}" for number in range(600_000)]
    Path("books/long.txt").write_text("\n".join(lines))
    sample = "".join(Text.find("books/long.txt").sample(2_200_000)).split()

    assert sum(len(line) + 1 for line in sample) <= 2_200_000
    assert len(sample) == len(set(sample)) > 200_000
    first, second = (number for number in map(int, sample) if number in (0, 300_001))
    assert (first, second) == (0, 300_001)
    assert max(map(int, sample)) > 430_000


@pytest.mark.parametrize("errors", ["skip", "replace"])
@pytest.mark.parametrize("per", ["file", "line"])
def test_a_sample_of_text_with_wrong_bytes(per, errors):
    """It may begin within a document that will be left out."""
    Path("books/long.txt").write_bytes(b"some words \xff and more\n" * 200_000)
    sample = "".join(Text.find("books/long.txt", per=per, errors=errors).sample(2_200_000))
    assert set(sample) <= set("some words and more\n\ufffd")
    assert len(sample) > 10**6 or (per, errors) == ("line", "skip")


def test_a_sample_of_small_files_goes_through_many():
    for number in range(200):
        Path(f"books/small{number:03}.txt").write_text(f"{number:03} " * 5000)
    sample = "".join(Text.find("books/small*").sample(3 * 2**20))
    assert len(set(sample.split())) > 120
    assert 2.9 * 2**20 < len(sample) <= 3 * 2**20


def test_a_sample_of_compressed_files_takes_their_beginnings():
    for number in range(3):
        Path(f"books/zipped{number}.gz").write_bytes(gzip.compress(f"{number} ".encode() * 2**20))
    sample = "".join(Text.find("books/zipped*").sample(3 * 2**20)).split()
    counts = [sample.count(str(number)) for number in range(3)]
    assert sum(counts) * 2 <= 3 * 2**20 and counts[0] > 0

    everything = "".join(Text.find("books/zipped*").sample(10**8)).split()
    assert sorted(set(everything)) == ["0", "1", "2"]
    assert len(everything) == 3 * 2**20


def test_a_sample_of_nothing():
    for name in ("a.gz", "b.txt", "c.gz"):
        Path(f"books/more/{name}").touch()
    Path("books/more/d.txt").symlink_to("gone")
    assert list(Text.find("books/more/[abcd].*", errors="skip").sample(100)) == []
    assert "".join(Text.find("books/more", field="text", errors="skip").sample(100)) == "book 5\n\nits endbook 6"


def test_a_short_text_is_its_own_sample():
    text = Text.find("books/?.txt")
    assert "".join(text.sample(10**6)) == "".join(text.documents())
    assert "".join(text.sample(9)) == "book 0\nit"


def test_the_standard_library_is_there():
    corpus = standard_library()
    files = {*corpus.train.files, *corpus.held_out.files}

    assert corpus.num_left_out < 10
    assert set(corpus.train.files).isdisjoint(corpus.held_out.files)
    assert len(corpus.held_out.files) == round(len(files) / 20)
    assert corpus.train.num_bytes > 5_000_000
    assert {"argparse.py", "ast.py"} <= {file.name for file in files}
    assert not any({"test", "site-packages"} & set(file.parts[-3:]) for file in files)
    assert standard_library() == corpus


test_messages = pinned(
    {
        "missing": (
            DataError,
            lambda: Text.find("books/00.txt"),
            """
            a file of text does not exist.
              values: books/00.txt
              fix: in books/: did you mean "0.txt" or "4.txt"?
            """,
        ),
        "missing folder": (
            DataError,
            lambda: Text.find("bokos/0.txt"),
            """
            a file of text does not exist.
              values: bokos/0.txt
              fix: in ./: did you mean "books"?
            """,
        ),
        "nothing matches": (
            DataError,
            lambda: Text.find("books/more/*.txt"),
            """
            no file matches a pattern.
              values: books/more/*.txt
              fix: in books/more/: did you mean "5.txt.gz"?
            """,
        ),
        "no folder matches": (
            DataError,
            lambda: Text.find("*/less/*.txt"),
            """
            no file matches a pattern.
              values: */less/*.txt
              fix: in ./: known names: books.
            """,
        ),
        "an empty folder": (
            DataError,
            lambda: Path("books/none").mkdir() or Text.find("books/none"),
            """
            a folder has no files of text.
              values: books/none
              fix: name another, or files.
            """,
        ),
        "an encoding": (
            ArgumentError,
            lambda: Text.find("books", encoding="klingon"),
            """
            encoding='klingon' is not an encoding of text.
              fix: choose utf-8, latin-1, cp1252, utf-16 or another that Python knows.
            """,
        ),
        "a field that no record has, though records may be left out": (
            DataError,
            lambda: Text.find("books", field="txt", errors="skip"),
            """
            a record has no text in the field 'txt'.
              values: books/more/6.jsonl, line 1
              rule: each record is an object, and one of its fields, the same in all, is the text of a document.
              fix: name the field: field="..."; did you mean "text"?
            """,
        ),
        "nothing": (
            DataError,
            lambda: Text.find([]),
            """
            no files of text are named.
              fix: name some, for example "books/*.txt".
            """,
        ),
        "another unit": (
            ArgumentError,
            lambda: Text.find("books/*.txt", per="lines"),
            """
            per='lines' is no way to read text.
              fix: did you mean "line"?
            """,
        ),
        "another part": (
            ArgumentError,
            lambda: Text.find("books/*.txt").hold_out(5),
            """
            5 is not a part to hold out.
              fix: choose one between 0 and 1: 0.05.
            """,
        ),
        "one document": (
            DataError,
            lambda: Text.find("books/0.txt").hold_out(),
            """
            one document cannot be both trained on and held out.
              values: books/0.txt
              rule: where a file is a document, whole files are held out.
              fix: name other files to evaluate on, cut the file up, or make each line a document: per="line".
            """,
        ),
    }
)


def test_a_python_without_its_sources(tmp_path, monkeypatch):
    monkeypatch.setattr("sysconfig.get_path", lambda name: "books")
    with pytest.raises(DataError) as raised:
        standard_library()
    assert str(raised.value) == (
        "the sources of Python's standard library are not on this machine.\n"
        "  values: books\n  fix: name files of text of your own."
    )
