"""The bytes of a file of text, decompressed as its name says, in constant memory."""

import bz2
import contextlib
import glob
import gzip
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from ..errors import did_you_mean
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
    with readable(path), open(path, "rb") as raw:
        yield from decompressed(raw, path.suffix, str(path), raw.tell, start)


def decompressed(
    raw: Any, suffix: str, where: str, position: Callable[[], int], start: int = 0
) -> Iterator[tuple[bytes, int]]:
    """Yields the bytes of an open file, decompressed as its suffix says.

    Args:
        raw: what to read.
        suffix: of its name.
        where: what to call it in messages.
        position: says how many bytes, as they lie on the disk, are read so far.
        start: the byte to begin at.
    """
    size = _FIRST if not start else _CHUNK
    is_packed = suffix in _OPENERS
    stream = _OPENERS[suffix](raw) if is_packed else raw
    # What comes before the place where a file is broken is not lost with it.
    num_read, read = start, getattr(stream, "read1" if is_packed else "read", stream.read)
    if start:
        stream.seek(start)
    while True:
        try:
            chunk = read(size)
        except (OSError, EOFError, zlib.error, lzma.LZMAError, ValueError) as error:
            if not is_packed:
                raise
            raise FileError(
                "a compressed file is broken.",
                kind="broken",
                values=f"{where}: after {num_read:,} bytes of text: {error}",
                fix=f"fetch or make it again: {_TOOLS[suffix]} --test checks one.",
            ) from None
        if not chunk:
            return
        num_read += len(chunk)
        yield chunk, position()
        size = _CHUNK


def nearest(path: Path) -> str:
    """Returns which files there are, for whoever has named one that there is not."""
    folder = path.parent
    while not folder.is_dir() and folder != folder.parent:
        path, folder = folder, folder.parent
    if glob.has_magic(str(folder)):
        return "correct the pattern."
    names = [entry.name for entry in islice(folder.iterdir(), 1000)]
    return f"in {folder}/: {did_you_mean(path.name, names)}"
