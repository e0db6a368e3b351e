"""The documents of one file: exact, in constant memory, and with errors that name the line."""

import gzip
import json
import tracemalloc
from pathlib import Path

import pytest

from meshax import DataError
from meshax.data.reading import PIECE, Reading
from messages import pinned

TEXT = "one\n\ntwo \u00e9\u4e2d\U0001f600\r\n  \nthree"


def joined(pieces):
    documents, parts = [], []
    for piece in pieces:
        parts.append(piece.text)
        if piece.is_last:
            documents.append("".join(parts))
            parts = []
    assert not parts
    return documents


def written(folder, name, content):
    path = folder / name
    content = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.md"])
def test_a_file_is_a_document_or_each_line_is(tmp_path, name):
    path = written(tmp_path, name, TEXT)

    assert joined(Reading().pieces(path)) == [TEXT]
    assert joined(Reading(per="line").pieces(path)) == ["one", "two \u00e9\u4e2d\U0001f600", "three"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_json_line_is_a_document(tmp_path, name):
    texts = ["one\nline", " ", "two \u00e9"]
    path = written(tmp_path, name, "".join(json.dumps({"id": 1, "body": text}) + "\n\n" for text in texts))

    assert joined(Reading(field="body").pieces(path)) == ["one\nline", "two \u00e9"]


@pytest.mark.parametrize("per", ["file", "line"])
@pytest.mark.parametrize("unit", ["\U0001f600\u4e2d", "words and words ", "a line\n"])
def test_long_documents_come_in_pieces_and_lose_nothing(tmp_path, per, unit):
    text = unit * (3 * 2**20 // len(unit.encode()))  # the blocks that are read end within characters
    path = written(tmp_path, "a.txt", text)
    pieces = list(Reading(per).pieces(path))

    assert all(len(piece.text) <= PIECE for piece in pieces)
    expected = text.split("\n")[:-1] if per == "line" and "\n" in unit else [text]
    assert joined(pieces) == expected
    assert pieces[-1].position == len(text.encode())


def test_reading_takes_constant_memory(tmp_path):
    path = written(tmp_path, "a.txt.gz", "some words, without end " * 2**20)
    for per in ("file", "line"):
        tracemalloc.start()
        size = sum(len(piece.text) for piece in Reading(per).pieces(path))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert size == 24 * 2**20
        assert peak < 10 * 2**20


def test_a_mark_at_the_beginning_is_no_text(tmp_path):
    assert joined(Reading().pieces(written(tmp_path, "a.txt", b"\xef\xbb\xbfone"))) == ["one"]


def test_a_python_source_says_its_encoding(tmp_path):
    path = written(tmp_path, "a.py", "# coding: latin-1\ncaf\u00e9".encode("latin1"))
    assert joined(Reading().pieces(path)) == ["# coding: latin-1\ncaf\u00e9"]


@pytest.mark.parametrize(
    ("start", "rest"), [(1, "cd\nef"), (2, "cd\nef"), (4, "cd\nef"), (5, "ef"), (7, "ef"), (8, "ef"), (9, "f")]
)
def test_reading_can_start_anywhere(tmp_path, start, rest):
    path = written(tmp_path, "a.txt", "a\u00e9b\ncd\nef")
    assert joined(Reading().pieces(path, start)) == [rest]


def test_a_start_within_a_long_line_is_at_a_character(tmp_path):
    path = written(tmp_path, "a.txt", "\u4e2d" * 10)
    assert joined(Reading().pieces(path, 4)) == ["\u4e2d" * 8]


def test_what_is_wrong_can_be_replaced(tmp_path):
    reading = Reading(errors="replace")
    assert joined(reading.pieces(written(tmp_path, "a.txt", b"caf\xe9 \xff"))) == ["caf\ufffd \ufffd"]
    assert joined(reading.pieces(written(tmp_path, "a.txt", b"caf\xc3"))) == ["caf\ufffd"]
    assert joined(reading.pieces(written(tmp_path, "a.jsonl", '{"text": "a\\ud800b"}'))) == ["a?b"]


def test_the_place_of_a_wrong_byte_is_exact_far_into_a_file(tmp_path):
    good = "caf\u00e9\n" * 600_000
    path = written(tmp_path, "a.txt", good.encode() + b"x\xff\n")
    with pytest.raises(DataError, match=f"line 600,001: 0xff at byte {len(good.encode()) + 1:,}: invalid start byte"):
        list(Reading().pieces(path))


def test_an_empty_or_strange_file_is_seen_at_first_look(tmp_path):
    for name, content in [("a.txt", b""), ("b.txt.gz", b""), ("c.txt", b"a\0"), ("d.txt", b"\xff"), ("e.jsonl", "1")]:
        with pytest.raises(DataError):
            Reading().look(written(tmp_path, name, content))


def reading(name, content, **options):
    """Reads a file whose path is its name, as a message has it."""

    def wrong():
        path = Path(name)
        if content is not None:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        Reading(**options).look(path)
        list(Reading(**options).pieces(path))

    return wrong


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


test_messages = pinned(
    {
        "missing": (
            DataError,
            reading("a.txt", None),
            """
            a file of text cannot be read.
              values: a.txt: No such file or directory
              fix: look whether it is there, and at its permissions.
            """,
        ),
        "empty": (
            DataError,
            reading("a.txt", ""),
            """
            a file of text is empty.
              values: a.txt
              fix: remove it, or leave it out of the list.
            """,
        ),
        "empty when decompressed": (
            DataError,
            reading("a.gz", gzip.compress(b"", mtime=0)),
            """
            a file of text is empty.
              values: a.gz
              fix: remove it, or leave it out of the list.
            """,
        ),
        "binary": (
            DataError,
            reading("a.txt", b"GIF89a\0\1"),
            """
            a file of text holds binary data.
              values: a.txt: a zero byte at byte 6
              fix: text is UTF-8, plain or in .gz or .jsonl files: convert it, or leave it out of the list.
            """,
        ),
        "latin1": (
            DataError,
            reading("a.txt", b"one\ncaf\xe9 two"),
            """
            a file of text is not UTF-8.
              values: a.txt, line 2: 0xe9 at byte 7: invalid continuation byte
              fix: convert it: iconv -f latin1 -t utf-8, or read what is wrong as U+FFFD: errors="replace".
            """,
        ),
        "cut within a character": (
            DataError,
            reading("a.txt", "one\ncaf\u00e9".encode()[:-1]),
            """
            a file of text is not UTF-8.
              values: a.txt, line 2: 0xc3 at byte 7: unexpected end of data
              fix: convert it: iconv -f latin1 -t utf-8, or read what is wrong as U+FFFD: errors="replace".
            """,
        ),
        "a source in no encoding": (
            DataError,
            reading("a.py", b"# coding: klingon\n"),
            """
            a Python source names an encoding that does not exist, or is not in the one it names.
              values: a.py: unknown encoding for 'a.py': klingon
              fix: correct it, or leave it out of the list.
            """,
        ),
        "not gzip": (
            DataError,
            reading("a.gz", b"plain text"),
            """
            a gzipped file is broken.
              values: a.gz: after 0 bytes of text: Not a gzipped file (b'pl')
              fix: fetch or make it again: gzip --test checks one.
            """,
        ),
        "gzip cut off": (
            DataError,
            reading("a.gz", gzip.compress(bytes(range(48, 123)) * 300, mtime=0)[:-20]),
            """
            a gzipped file is broken.
              values: a.gz: after 8,192 bytes of text: Compressed file ended before the end-of-stream marker was reached
              fix: fetch or make it again: gzip --test checks one.
            """,
        ),
        "not JSON": (
            DataError,
            reading("a.jsonl", '{"text": "one"}\n\n{"text": "tw'),
            """
            a line is not JSON.
              values: a.jsonl, line 3: Unterminated string starting at: line 1 column 10 (char 9)
              fix: correct or remove it.
            """,
        ),
        "no field": (
            DataError,
            reading("a.jsonl", '{"text": "one"}\n{"texts": "two", "id": 3}'),
            """
            a JSON line has no text in the field 'text'.
              values: a.jsonl, line 2
              rule: each line is an object, and one of its fields, the same in all, is the text of a document.
              fix: name the field: field="..."; did you mean "texts"?
            """,
        ),
        "half a pair": (
            DataError,
            reading("a.jsonl", '{"text": "ab\\ud800"}'),
            """
            a JSON line holds half of a surrogate pair, which is no character.
              values: a.jsonl, line 1: character 2 of the text is '\\ud800'
              fix: correct the line, or read such characters as "?": errors="replace".
            """,
        ),
    }
)
