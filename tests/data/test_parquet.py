"""Rows of Parquet files: a round trip, groups of rows one at a time, missing columns, broken files."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from meshax import DataError
from meshax.data import Text
from meshax.data.left_out import LeftOut
from meshax.data.parquet import rows
from meshax.data.reading import Reading
from messages import pinned

TEXTS = [f"document {number}, caf\u00e9 \u4e2d\n" * (1 + number % 7) for number in range(5000)]


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(name, values=TEXTS, kind=None, column="body", group=700):
    table = pa.table({"id": pa.array(range(len(values))), column: pa.array(values, kind)})
    pq.write_table(table, name, row_group_size=group)
    return Path(name)


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())], ids=str
)
def test_a_round_trip(kind):
    values = [text.encode() for text in TEXTS] if kind == pa.binary() else TEXTS
    write("a.parquet", values, kind)
    text = Text.find("a.parquet", field=("text", "body"))
    assert list(text.documents()) == TEXTS
    train, held_out = (list(part.documents()) for part in text.hold_out())
    assert sorted(train + held_out) == sorted(TEXTS) and held_out


def test_groups_of_rows_are_read_one_at_a_time():
    """Of a file with eight times the rows, no more is in memory."""
    before, peaks = pa.total_allocated_bytes(), []
    for count in (1, 8):
        path = write(f"{count}.parquet", [f"{number} " * 200 for number in range(4000 * count)], group=1000)
        peaks.append(max(pa.total_allocated_bytes() - before for _ in rows(path, ["body"])))
    assert peaks[1] < 1.5 * peaks[0]


def test_reading_can_start_at_a_group():
    path = write("a.parquet")
    (value, number, position), *_ = rows(path, ["body"], path.stat().st_size // 2)
    assert number % 700 == 1 and 1400 < number < 2900 and value.decode() == TEXTS[number - 1]
    assert 0 < position < path.stat().st_size


def test_rows_without_text_and_wrong_bytes():
    path = write("a.parquet", [b"one", None, b"caf\xe9", b"two"], pa.binary())
    left_out = LeftOut("skip")
    pieces = Reading(fields=("body",), errors="skip").pieces(path, left_out=left_out)
    assert [piece.text for piece in pieces] == ["one", "two"]
    assert left_out.counts == {"no field": (1, "a.parquet, row 2"), "undecodable": (1, "a.parquet, row 3")}
    replaced = Reading(fields=("body",), errors="replace").pieces(path)
    assert [piece.text for piece in replaced] == ["one", "caf\ufffd", "two"]


def test_files_without_the_column_and_broken_ones_are_left_out():
    write("a.parquet")
    write("b.parquet", column="content")
    content = write("c.parquet").read_bytes()
    Path("c.parquet").write_bytes(content[: len(content) // 2])
    text, left_out = Text.find("*.parquet", field="body", errors="skip"), LeftOut("skip")
    count = sum(piece.is_last for file in text.files for piece in text.pieces(file, left_out=left_out))
    assert count == len(TEXTS)
    assert {kind: number for kind, (number, _) in left_out.counts.items()} == {"no column": 1, "broken": 1}


test_messages = pinned(
    {
        "no column": (
            DataError,
            lambda: Text.find(write("a.parquet"), field="bdy"),
            """
            a Parquet file has no text in the column 'bdy'.
              values: a.parquet
              rule: one column, the same in all files, is the text of documents.
              fix: name the column: field="..."; did you mean "body"?
            """,
        ),
        "a wrong name is seen at once, also if records may be left out": (
            DataError,
            lambda: Text.find(write("a.parquet"), field="id", errors="skip"),
            """
            a Parquet file has no text in the column 'id'.
              values: a.parquet
              rule: one column, the same in all files, is the text of documents.
              fix: name the column: field="..."; known names: body.
            """,
        ),
        "broken": (
            DataError,
            lambda: Path("a.parquet").write_bytes(b"short") and Text.find("a.parquet"),
            """
            a Parquet file is broken.
              values: a.parquet: Parquet file size is 5 bytes, smaller than the minimum file footer (8 bytes)
              fix: fetch or make it again.
            """,
        ),
    }
)
