"""The documents of one file: exact, in constant memory, and with errors that name the line."""

import gzip
import json
import tracemalloc
from pathlib import Path

import pytest

from meshax import DataError
from meshax.data.left_out import LeftOut
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

    assert joined(Reading(fields=("body",)).pieces(path)) == ["one\nline", "two \u00e9"]


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


WRONG = {
    "bytes.txt": b"good\nbad \xff\xe9\ngood again",
    "bytes.jsonl": b'{"text": "good"}\n{"text": "bad \xff"}\n{"text": "good again"}\n',
    "half.jsonl": '{"text": "good"}\n{"text": "bad \\ud800"}\n{"text": "good again"}\n',
    "json.jsonl": '{"text": "good"}\n{"text": "ba\n{"text": "good again"}\n',
    "field.jsonl": '{"text": "good"}\n{"texts": "bad"}\n{"text": null}\n[1]\n{"text": "good again"}\n',
}
COUNTED = {"bytes": "undecodable", "half": "undecodable", "json": "not JSON", "field": "no field"}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_left_out_and_counted(tmp_path, name):
    path, left_out = written(tmp_path, name, WRONG[name]), LeftOut("skip")
    pieces = Reading(per="line", errors="skip").pieces(path, left_out=left_out)
    assert joined(pieces) == ["good", "good again"]
    kind, name = COUNTED[path.stem], f"{path}, line 2"
    assert list(left_out.counts) == [kind]
    count, first = left_out.counts[kind]
    assert count == (3 if kind == "no field" else 1) and first.startswith(name)
    with pytest.raises(DataError):
        list(Reading(per="line").pieces(path))


def test_wrong_bytes_are_replaced_where_that_is_asked_for(tmp_path):
    reading, left_out = Reading(per="line", errors="replace"), LeftOut("replace")
    for name, wrong in [("bytes.txt", "bad \ufffd\ufffd"), ("bytes.jsonl", "bad \ufffd"), ("half.jsonl", "bad ?")]:
        pieces = reading.pieces(written(tmp_path, name, WRONG[name]), left_out=left_out)
        assert joined(pieces) == ["good", wrong, "good again"]
    assert not left_out.counts
    assert joined(reading.pieces(written(tmp_path, "json.jsonl", WRONG["json.jsonl"]), left_out=left_out)) == [
        "good",
        "good again",
    ]
    assert list(left_out.counts) == ["not JSON"]


@pytest.mark.parametrize("size", [10, 5 * 2**20], ids=["short", "long"])
def test_a_file_that_is_one_document_is_read_whole_or_not_at_all(tmp_path, size):
    """A wrong byte at its end, far from the first piece: nothing of the document comes."""
    good = "word " * (size // 5)
    path, left_out = written(tmp_path, "a.txt", good.encode() + b"\xff"), LeftOut("skip")
    assert list(Reading(errors="skip").pieces(path, left_out=left_out)) == []
    assert left_out.counts == {"undecodable": (1, str(path))}
    assert joined(Reading(errors="replace").pieces(path)) == [good + "\ufffd"]
    assert joined(Reading(errors="skip").pieces(written(tmp_path, "b.txt", good))) == [good]


@pytest.mark.parametrize("errors", ["skip", "replace"])
def test_files_that_are_empty_blank_binary_or_gone_are_counted(tmp_path, errors):
    left_out = LeftOut(errors)
    files = {
        "empty.txt": b"",
        "blank.txt": b" \n\n",
        "empty.jsonl": b"",
        "c.txt": b"GIF\0",
        "d.py": b"# coding: klingon\n",
    }
    for path in [written(tmp_path, name, content) for name, content in files.items()] + [tmp_path / "gone.txt"]:
        assert list(Reading(errors=errors).pieces(path, left_out=left_out)) == []
    assert {kind: count for kind, (count, _) in left_out.counts.items()} == {
        "empty": 3, "binary": 1, "undecodable": 1, "unreadable": 1,
    }  # fmt: skip


def cut_off(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    return path


def test_of_a_broken_file_the_documents_before_the_break_are_kept(tmp_path):
    lines = [f"{number} {number * 7919 % 10007}" for number in range(100_000)]
    path, left_out = cut_off(written(tmp_path, "a.txt.gz", "\n".join(lines))), LeftOut("skip")
    documents = joined(Reading(per="line", errors="skip").pieces(path, left_out=left_out))
    assert 30_000 < len(documents) < 70_000 and documents == lines[: len(documents)]
    assert left_out.counts["broken"][0] == 1
    assert list(Reading(errors="skip").pieces(path, left_out=left_out)) == []
    assert left_out.counts["broken"][0] == 2


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32", "utf-16-be"])
def test_a_mark_says_the_encoding(tmp_path, encoding):
    text = "caf\u00e9 \u4e2d\n" * 3
    content = ("\ufeff" + text if encoding == "utf-16-be" else text).encode(encoding)
    path = written(tmp_path, "a.txt", content)
    assert joined(Reading().pieces(path)) == [text]
    sampled = joined(Reading().pieces(path, start=5))  # after the first line, if it can be entered there
    assert sampled == [text if encoding.startswith(("utf-16", "utf-32")) else text[7:]]


def test_another_encoding(tmp_path):
    path = written(tmp_path, "a.txt", "caf\u00e9\nth\u00e9".encode("latin-1"))
    assert joined(Reading(encoding="iso8859-1").pieces(path)) == ["caf\u00e9\nth\u00e9"]
    assert joined(Reading(encoding="iso8859-1").pieces(path, start=2)) == ["th\u00e9"]


def test_of_several_fields_the_first_there_is(tmp_path):
    path = written(
        tmp_path, "a.jsonl", '{"body": "one"}\n{"text": "two", "body": "no"}\n{"text": null, "body": "three"}'
    )
    assert joined(Reading(fields=("text", "body")).pieces(path)) == ["one", "two", "three"]


def test_json_files_have_lines_if_they_are_asked_to(tmp_path):
    path = written(tmp_path, "c4.json.gz", '{"text": "one"}\n{"text": "two"}')
    assert joined(Reading(per="line").pieces(path)) == ["one", "two"]
    assert len(joined(Reading().pieces(path))) == 1


ARRAY = '[{"text": "word"}' + ', {"text": "word"}' * 10**5 + "]"


@pytest.mark.parametrize("content", [ARRAY, '{"text": "' + "word " * 10**6], ids=["an array", "no end"])
def test_a_line_of_json_without_end_takes_no_memory_without_end(tmp_path, monkeypatch, content):
    """Such as all records in one array: the file is named wrongly. It is read a million bytes at a time."""
    monkeypatch.setattr("meshax.data.reading._LONGEST_RECORD", 10**5)
    path, left_out = written(tmp_path, "a.jsonl", f'{content}\n{{"text": "good"}}\n{content}'), LeftOut("skip")
    assert joined(Reading(errors="skip").pieces(path, left_out=left_out)) == ["good"]
    assert left_out.counts == {"not JSON": (2, f"{path}, line 1: it is longer than 100,000 characters")}
    with pytest.raises(DataError, match="a.jsonl, line 1: it is longer than 100,000 characters"):
        list(Reading().pieces(path))


def test_a_long_line_with_a_wrong_byte_is_left_out(tmp_path):
    path = written(tmp_path, "a.txt", b"word " * 100_000 + b"\xff\ngood")
    assert joined(Reading(per="line", errors="skip").pieces(path)) == ["good"]


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
              fix: remove it, or leave such files out: errors="skip".
            """,
        ),
        "empty when decompressed": (
            DataError,
            reading("a.gz", gzip.compress(b"", mtime=0)),
            """
            a file of text is empty.
              values: a.gz
              fix: remove it, or leave such files out: errors="skip".
            """,
        ),
        "binary": (
            DataError,
            reading("a.txt", b"GIF89a\0\1"),
            """
            a file of text holds binary data.
              values: a.txt: a zero byte at byte 6
              fix: text is plain, compressed, JSON lines or Parquet: convert it, or leave such files out: errors="skip".
            """,
        ),
        "latin1": (
            DataError,
            reading("a.txt", b"one\ncaf\xe9 two"),
            """
            a file of text is not UTF-8.
              values: a.txt, line 2: 0xe9 at byte 7: invalid continuation byte
              fix: name its encoding: encoding="latin-1", or do without such bytes: errors="replace" or errors="skip".
            """,
        ),
        "cut within a character": (
            DataError,
            reading("a.txt", "one\ncaf\u00e9".encode()[:-1]),
            """
            a file of text is not UTF-8.
              values: a.txt, line 2: 0xc3 at byte 7: unexpected end of data
              fix: name its encoding: encoding="latin-1", or do without such bytes: errors="replace" or errors="skip".
            """,
        ),
        "a source in no encoding": (
            DataError,
            reading("a.py", b"# coding: klingon\n"),
            """
            a Python source names an encoding that does not exist, or is not in the one it names.
              values: a.py: unknown encoding for 'a.py': klingon
              fix: correct it, or leave such files out: errors="skip".
            """,
        ),
        "not gzip": (
            DataError,
            reading("a.gz", b"plain text"),
            """
            a compressed file is broken.
              values: a.gz: after 0 bytes of text: Not a gzipped file (b'pl')
              fix: fetch or make it again: gzip --test checks one.
            """,
        ),
        "gzip cut off": (
            DataError,
            reading("a.gz", gzip.compress(bytes(range(48, 123)) * 10, mtime=0)[:-4]),
            """
            a compressed file is broken.
              values: a.gz: after 750 bytes of text: Compressed file ended before the end-of-stream marker was reached
              fix: fetch or make it again: gzip --test checks one.
            """,
        ),
        "not JSON": (
            DataError,
            reading("a.jsonl", '{"text": "one"}\n\n{"text": "tw'),
            """
            a line is not JSON.
              values: a.jsonl, line 3: Unterminated string starting at: line 1 column 10 (char 9)
              fix: correct or remove it, or leave such lines out: errors="skip".
            """,
        ),
        "no field": (
            DataError,
            reading("a.jsonl", '{"text": "one"}\n{"texts": "two", "id": 3}'),
            """
            a record has no text in the field 'text'.
              values: a.jsonl, line 2
              rule: each record is an object, and one of its fields, the same in all, is the text of a document.
              fix: name the field: field="..."; did you mean "texts"?
            """,
        ),
        "half a pair": (
            DataError,
            reading("a.jsonl", '{"text": "ab\\ud800"}'),
            """
            a JSON line holds half of a surrogate pair, which is no character.
              values: a.jsonl, line 1: character 2 of the text is '\\ud800'
              fix: correct it, or replace what is wrong: errors="replace", or leave such records out: errors="skip".
            """,
        ),
    }
)
