"""Files, and files in tar archives, which are named as if the archive were a folder: `europarl.tgz/training/text.en`.

An archive is read from its beginning to its end in constant memory, and never unpacked onto the disk.
"""

import contextlib
import fnmatch
import glob
import lzma
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from ..errors import DataError, did_you_mean
from .compression import chunks, decompressed, nearest, readable, stat
from .left_out import FileError

_SUFFIXES = (".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz")


@dataclass(frozen=True)
class Place:
    """A file, or one in an archive."""

    path: Path
    member: str = ""

    def __str__(self) -> str:
        return f"{self.path}/{self.member}" if self.member else str(self.path)

    @cached_property
    def name(self) -> str:
        """The last part of its name."""
        return PurePosixPath(self.member).name if self.member else self.path.name

    @property
    def kind(self) -> str:
        """What it holds by its name, whether it is compressed or not: ".sgm" of "a.sgm.gz"."""
        name = PurePosixPath(self.name)
        return name.with_suffix("").suffix if name.suffix in (".gz", ".bz2", ".xz", ".zst") else name.suffix

    def status(self) -> tuple[int, int]:
        """Returns the size of the file as it lies on the disk, and its time."""
        status = stat(self.path)
        return status.st_size, status.st_mtime_ns

    def chunks(self) -> Iterator[tuple[bytes, int]]:
        """Yields its bytes, each part with the bytes of the file on the disk read so far."""
        if not self.member:
            yield from chunks(self.path)
            return
        with (
            readable(self.path),
            open(self.path, "rb") as raw,
            _told(self.path),
            tarfile.open(fileobj=raw, mode="r|*") as archive,
        ):
            for entry in archive:
                if entry.name == self.member and (stream := archive.extractfile(entry)) is not None:
                    yield from decompressed(stream, PurePosixPath(self.member).suffix, str(self), raw.tell)
                    return
        raise FileError(
            "an archive has no such file.", kind="unreadable", values=str(self), fix="name one that it has."
        )


def find(pattern: str | Path) -> list[Place]:
    """Returns the files that a path or a glob names, in the order of their names; of archives, files in them."""
    path = Path(pattern).expanduser()
    if path.is_file() and not _is_archive(path):
        return [Place(path)]
    archive = next((one for one in (path, *path.parents) if _is_archive(one) and one.is_file()), None)
    if archive is not None:
        return _in_archive(archive, path.relative_to(archive).as_posix())
    if glob.has_magic(str(path)):
        paths = sorted(Path(match) for match in glob.glob(str(path), recursive=True))
        if files := [Place(path) for path in paths if path.is_file()]:
            return files
        raise DataError("no file matches a pattern.", values=str(pattern), fix=nearest(path))
    if path.is_dir():
        raise DataError("a folder is no file of text.", values=str(path), fix=f"name files in it: {path}/*.en.")
    if path.exists():
        raise DataError(
            "a pipe or a device is no file of text.",
            values=str(path),
            rule="files are looked at before they are read.",
            fix="write it into a file first.",
        )
    raise DataError("a file of text does not exist.", values=str(path), fix=nearest(path))


def _is_archive(path: Path) -> bool:
    return path.name.endswith(_SUFFIXES)


def _in_archive(archive: Path, pattern: str) -> list[Place]:
    with readable(archive), open(archive, "rb") as raw, _told(archive), tarfile.open(fileobj=raw, mode="r|*") as opened:
        names = [entry.name for entry in opened if entry.isfile()]
    if members := sorted(fnmatch.filter(names, pattern)):
        return [Place(archive, member) for member in members]
    raise DataError(
        "an archive has no such file.",
        values=f"{archive}/{'' if pattern == '.' else pattern}",
        rule="a file in an archive is named as if the archive were a folder.",
        fix=f"in {archive}: {did_you_mean(pattern, names)}",
    )


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise FileError(
            "an archive is broken.",
            kind="broken",
            values=f"{path}: {error}",
            fix="fetch or make it again: tar -tf checks one.",
        ) from None
