"""The bytes of a file of text, decompressed as its name says, in constant memory."""

import bz2
import contextlib
import gzip
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..extras import extra
from .left_out import FileError

_FIRST, _CHUNK = 1 << 13, 1 << 20  # bytes read at a time: a look at many files costs little, the rest is read fast


def pyarrow_for(what: str) -> Any:
    """Returns the library that some files need, or says how to get it."""
    with extra("parquet", what):
        import pyarrow
        import pyarrow.parquet
    return pyarrow


def _zstd(raw: Any) -> Any:
    arrow = pyarrow_for(".zst files")
    return arrow.CompressedInputStream(arrow.PythonFile(raw, "r"), "zstd")


_OPENERS: dict[str, Callable[[Any], Any]] = {
    ".gz": lambda raw: gzip.GzipFile(fileobj=raw),
    ".bz2": bz2.BZ2File,
    ".xz": lzma.LZMAFile,
    ".zst": _zstd,
}
_TOOLS = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "zstd"}


def is_compressed(path: Path) -> bool:
    """Says whether a file has to be decompressed, and so read from its beginning."""
    return path.suffix in _OPENERS


def kind_of(path: Path) -> str:
    """Returns what a file holds by its name, whether it is compressed or not: ".jsonl" of "a.jsonl.gz"."""
    return path.with_suffix("").suffix if is_compressed(path) else path.suffix


def stat(path: Path) -> os.stat_result:
    """Returns the size and time of a file of text."""
    with readable(path):
        return path.stat()


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """Makes an error of the system one of ours."""
    try:
        yield
    except OSError as error:
        raise FileError(
            "a file of text cannot be read.",
            kind="unreadable",
            values=f"{path}: {error.strerror or error}",
            fix="look whether it is there, and at its permissions.",
        ) from None


def chunks(path: Path, start: int = 0) -> Iterator[tuple[bytes, int]]:
    """Yields the bytes of a file from some byte on, each part with the bytes of the file, as it lies, read so far."""
    size = _FIRST if not start else _CHUNK
    with readable(path), open(path, "rb") as raw:
        stream = _OPENERS[path.suffix](raw) if is_compressed(path) else raw
        # What comes before the place where a file is broken is not lost with it.
        num_read, read = start, getattr(stream, "read1" if is_compressed(path) else "read", stream.read)
        if start:
            stream.seek(start)
        while True:
            try:
                chunk = read(size)
            except (OSError, EOFError, zlib.error, lzma.LZMAError, ValueError) as error:
                if not is_compressed(path):
                    raise
                raise FileError(
                    "a compressed file is broken.",
                    kind="broken",
                    values=f"{path}: after {num_read:,} bytes of text: {error}",
                    fix=f"fetch or make it again: {_TOOLS[path.suffix]} --test checks one.",
                ) from None
            if not chunk:
                return
            num_read += len(chunk)
            yield chunk, raw.tell()
            size = _CHUNK
