"""The bytes of files, plain or compressed: all of them, in constant memory, or an error that says where it broke."""

import builtins
import bz2
import gzip
import lzma
import tracemalloc
from functools import cache
from pathlib import Path

import pyarrow
import pytest

from meshax.data.compression import chunks, is_compressed, kind_of, pyarrow_for
from meshax.data.left_out import FileError
from meshax.extras import ExtraError
from messages import pinned

CONTENT = b"".join(b"%d %d\n" % (number, number * 7919 % 10007) for number in range(300_000))
COMPRESS = {
    ".txt": bytes,
    ".gz": lambda content: gzip.compress(content, 1),
    ".bz2": bz2.compress,
    ".xz": lambda content: lzma.compress(content, preset=0),
    ".zst": lambda content: pyarrow.compress(content, codec="zstd", asbytes=True),
}


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@cache
def compressed(suffix):
    return COMPRESS[suffix](CONTENT)


@pytest.mark.parametrize("suffix", COMPRESS)
def test_all_bytes_come_in_constant_memory(suffix):
    path = Path(f"a{suffix}")
    path.write_bytes(compressed(suffix))
    tracemalloc.start()
    parts, positions = zip(*((hash(part), position) for part, position in chunks(path)), strict=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert b"".join(part for part, _ in chunks(path)) == CONTENT
    assert len(parts) > 3 and sorted(positions) == list(positions) and positions[-1] == path.stat().st_size
    assert peak < 4 * 2**20


@pytest.mark.parametrize("suffix", [suffix for suffix in COMPRESS if suffix != ".txt"])
@pytest.mark.parametrize("damage", ["cut off", "something else"])
def test_a_broken_file_is_an_error(suffix, damage):
    path, content = Path(f"a{suffix}"), compressed(suffix)
    path.write_bytes(content[: len(content) // 2] if damage == "cut off" else b"plain text, nothing else")
    with pytest.raises(FileError, match=r"a compressed file is broken.\n  values: a\.") as raised:
        for _ in chunks(path):
            pass
    assert raised.value.kind == "broken" and "--test checks one" in str(raised.value)


def test_names_say_what_a_file_holds():
    assert [kind_of(Path(name)) for name in ("a.jsonl.gz", "a.jsonl", "a.txt.zst", "a.gz")] == [
        *(".jsonl", ".jsonl", ".txt", ""),
    ]
    assert is_compressed(Path("a.xz")) and not is_compressed(Path("a.parquet"))


def without_pyarrow():
    importing = builtins.__import__

    def failing(name, *rest):
        if name.startswith("pyarrow"):
            raise ModuleNotFoundError(name, name=name)
        return importing(name, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builtins, "__import__", failing)
        pyarrow_for("Parquet files")


test_messages = pinned(
    {
        "no pyarrow": (
            ExtraError,
            without_pyarrow,
            """
            Parquet files need pyarrow.
              fix: pip install 'meshax[parquet]'.
            """,
        ),
    }
)
