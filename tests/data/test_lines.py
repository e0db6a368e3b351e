"""Lines as bytes: only a line feed ends one; segments of .sgm files; however long, in constant memory."""

import tracemalloc
from pathlib import Path

import pytest

from meshax.data import lines as module
from meshax.data.archives import Place
from meshax.data.lines import lines, split

NASTY = "a\u2028b\nc\rd\n\ne\0f\ng\u0085h\x0b\x0c\x1c\x1d\x1ei\r\n".encode() + b"\xff\xfe\n last"


def contents(data, size):
    chunks = ((data[begin : begin + size], begin + size) for begin in range(0, len(data), size))
    return [line.content for line in split(chunks)]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_only_a_line_feed_ends_a_line(size):
    assert contents(NASTY, size) == NASTY.split(b"\n")
    assert contents(NASTY + b"\n", size) == NASTY.split(b"\n")  # a last line may have its end
    assert contents(NASTY + b"\n\n", size) == [*NASTY.split(b"\n"), b""]
    assert contents(b"", size) == [] and contents(b"\n", size) == [b""]


def test_a_long_line_is_cut_in_constant_memory(monkeypatch):
    monkeypatch.setattr(module, "LONGEST", 1 << 16)
    part = b"x" * (1 << 14)
    tracemalloc.start()
    found = list(split((chunk, 0) for chunk in (*[part] * 1000, b"\nshort\n" + part)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [(len(line.content), line.is_cut) for line in found] == [(1 << 16, True), (5, False), (1 << 14, False)]
    assert peak < 1 << 20


def test_segments(tmp_path):
    path = Path(tmp_path, "a.sgm")
    path.write_text(
        '<refset setid="x" srclang="any">\n<doc docid="1">\n<p>\n<seg id="1">One &amp; two.</seg>\n'
        '<SEG id="2"> "\u2028" &lt;b&gt; </SEG><seg id="3">\xe9t\xe9</seg>\n</p>\n'
        '<seg id="4">on two\nlines</seg> rest\n<seg id="5"></seg>\nno segment\n</doc>\n</refset>\n',
        encoding="utf-8",
    )
    assert [line.content.decode() for line in lines(Place(path))] == [
        "One & two.", '"\u2028" <b>', "\xe9t\xe9", "on two lines", "",
    ]  # fmt: skip
