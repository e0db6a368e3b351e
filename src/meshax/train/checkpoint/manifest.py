"""The manifest of a checkpoint: what is in it, and a hash of every file.

It is written last, and carries its own hash, which every version of meshax computes alike: so a manifest in another
format is told from a damaged one. Storage flips bits, cuts files short and loses them, and whoever reads
arrays afterwards gets wrong weights without a word; with the manifest, each of these has a name.
"""

import contextlib
import hashlib
import json
import os
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from ...errors import CheckpointError
from ...files import write_whole
from ...plan.printing.units import show_bytes

MANIFEST = "manifest.json"
VERSION = 1

_SHOW_PROGRESS_FROM = 1 << 30
_MAX_BYTES = 1 << 30  # of a manifest
_READ_BYTES = 4 << 20  # at a time: between two reads a thread needs Python's lock, which a training run needs, too
_MOST_THREADS = 16
_DRAWN = "/d/"  # in the names of files that no other checkpoint has: the library draws them


@dataclass(frozen=True)
class Entry:
    """One saved array: its logical dims (None: an array without names), its shape, dtype and role."""

    dims: tuple[tuple[str, int], ...] | None
    shape: tuple[int, ...]
    dtype: str
    role: str | None = None

    def __str__(self) -> str:
        named = [f"{name}:{size}" for name, size in self.dims] if self.dims is not None else map(str, self.shape)
        return f"[{', '.join(named)}] {self.dtype}" + (f" {self.role}" if self.role else "")


@dataclass(frozen=True)
class File:
    """A file as it was written."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """A checkpoint: its step, metric and extra; its arrays by name; its files."""

    step: int
    metric: float | None
    extra: Mapping[str, Any]
    arrays: Mapping[str, Entry]
    files: Mapping[str, File]
    made_by: Mapping[str, str]

    @property
    def num_bytes(self) -> int:
        """The size of all files."""
        return sum(file.bytes for file in self.files.values())

    def __str__(self) -> str:
        metric = "" if self.metric is None else f", metric {self.metric:g}"
        made_by = ", ".join(f"{name} {value}" for name, value in self.made_by.items())
        lines = [f"step {self.step}{metric}: {len(self.arrays)} arrays, {show_bytes(self.num_bytes)} ({made_by})"]
        return "\n".join(lines + [f"  {name} {entry}" for name, entry in self.arrays.items()])

    def write(self, directory: Path) -> None:
        """Writes the manifest, hash included, down to the disk."""
        body = {"format": "meshax checkpoint", "version": VERSION, **asdict(self)}
        write_whole(directory / MANIFEST, json.dumps({"sha256": _hash_of(body), **body}, indent=1))


class Damage(Exception):
    """A manifest that cannot be trusted; the text says why."""


class OtherVersion(Exception):
    """A manifest in a format that this version does not read; the text says which."""


def meshax_version() -> str:
    """Returns the version of meshax that is running."""
    try:
        return version("meshax")
    except PackageNotFoundError:
        return "unknown"


def read_manifest(directory: Path) -> Manifest:
    """Reads the manifest of a checkpoint, or raises `Damage` or `OtherVersion`."""
    try:
        size = (directory / MANIFEST).stat().st_size
        if size > _MAX_BYTES:
            raise Damage(f"{MANIFEST}: has {size:,} bytes, which none needs")
        return parse_manifest((directory / MANIFEST).read_bytes())
    except FileNotFoundError:
        raise Damage(f"{MANIFEST}: is missing") from None
    except OSError as error:
        raise Damage(f"{MANIFEST}: cannot be read: {error.strerror}") from None


def parse_manifest(data: bytes) -> Manifest:
    """Reads what a manifest says, or raises `Damage` or `OtherVersion`."""
    try:
        body = json.loads(data)
        is_as_written = body.pop("sha256", None) == _hash_of(body)
        if is_as_written and body["version"] != VERSION:
            there, here = body.get("made_by", {}).get("meshax", "unknown"), meshax_version()
            raise OtherVersion(
                f"{MANIFEST}: format {body['version']}, by meshax {there}; meshax {here} reads format {VERSION}"
            )
        if not is_as_written:
            raise Damage(f"{MANIFEST}: its content has changed")
        arrays = {name: _entry(**entry) for name, entry in body["arrays"].items()}
        files = {name: File(**file) for name, file in body["files"].items()}
        if outside := [name for name in files if name.startswith("/") or ".." in name.split("/")]:
            raise Damage(f"{MANIFEST}: names a file outside, {outside[0]!r}")
        return Manifest(body["step"], body["metric"], body["extra"], arrays, files, body["made_by"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise Damage(f"{MANIFEST}: is not JSON any more") from None


def _entry(dims: list[list[Any]] | None, shape: list[int], dtype: str, role: str | None) -> Entry:
    return Entry(None if dims is None else tuple((name, size) for name, size in dims), tuple(shape), dtype, role)


def _hash_of(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def check_json(value: Any, path: str) -> None:
    """Raises if JSON would not give back the value (a tuple comes back as a list)."""
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        for key, part in value.items():
            check_json(part, f"{path}[{key!r}]")
    elif isinstance(value, list | tuple):
        for number, part in enumerate(value):
            check_json(part, f"{path}[{number}]")
    elif value is not None and type(value) not in (bool, int, float, str):
        raise CheckpointError(
            f"extra holds what JSON can hold, not {type(value).__name__}"
            + (" with keys that are no strings." if isinstance(value, dict) else "."),
            values=f"{path}: {value!r}"[:120],
            fix="use numbers, strings, lists and dicts of them: float(x), x.tolist(), str(key).",
        )


def files_under(directory: Path) -> list[str]:
    """Returns the relative paths of all files, the manifest not among them."""
    paths = (Path(folder, name).relative_to(directory) for folder, _, names in os.walk(directory) for name in names)
    return sorted(path.as_posix() for path in paths if path.as_posix() != MANIFEST)


def hash_files(directory: Path, names: Sequence[str], label: str = "", cores: float = 1.0) -> dict[str, File]:
    """Hashes files in parallel.

    Args:
        directory: where they are.
        names: of the files.
        label: with one, and gigabytes to read, progress is shown on stderr.
        cores: the share of them that may be busy with it.
    """
    sizes = {name: (directory / name).stat().st_size for name in names}
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    quiet = not label or sum(sizes.values()) < _SHOW_PROGRESS_FROM
    with Progress(*columns, console=Console(stderr=True), disable=quiet) as progress:
        task = progress.add_task(label, total=sum(sizes.values()))

        def hashed(name: str) -> File:
            digest = _hash_of_file(directory / name)
            progress.advance(task, sizes[name])
            return File(sizes[name], digest)

        return _in_threads(hashed, names, min(_MOST_THREADS, int(cores * (os.cpu_count() or 1))))


def _hash_of_file(path: Path) -> str:
    digest, buffer = hashlib.sha256(), bytearray(_READ_BYTES)
    with open(path, "rb", buffering=0) as file:
        while size := file.readinto(buffer):
            digest.update(memoryview(buffer)[:size])
    return digest.hexdigest()


def _in_threads(work: Callable[[str], File], names: Sequence[str], most: int) -> dict[str, File]:
    """Maps names in parallel, or here if no thread can be started: the interpreter may be waiting for us to exit."""
    left, done, failed = queue.SimpleQueue[str](), dict[str, File](), list[BaseException]()
    for name in names:
        left.put(name)

    def run() -> None:
        try:
            while not failed:
                name = left.get_nowait()
                done[name] = work(name)
        except queue.Empty:
            pass
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run) for _ in range(min(most, len(names)) - 1)]
    with contextlib.suppress(RuntimeError):
        for thread in threads:
            thread.start()
    run()
    for thread in threads:
        if thread.ident is not None:
            thread.join()
    if failed:
        raise failed[0]
    return {name: done[name] for name in names}


def find_damage(directory: Path, manifest: Manifest, share: int = 0, num_shares: int = 1) -> list[str]:
    """Compares the files with the manifest; returns what is wrong, one line a file.

    Args:
        directory: the checkpoint.
        manifest: its manifest.
        share: of several processes, each hashes a share of the files.
        num_shares: the number of shares.
    """
    return list(_damage(directory, manifest, share, num_shares))


def _damage(directory: Path, manifest: Manifest, share: int, num_shares: int) -> Iterator[str]:
    present = {name: (directory / name).stat().st_size for name in files_under(directory)}
    drawn, here = ({name for name in names if _DRAWN in name} for names in (manifest.files, present))
    if drawn and here and not drawn & here:
        yield f"{MANIFEST}: is of another checkpoint"
    intact = []
    for name, file in manifest.files.items():
        if name not in present:
            yield f"{name}: is missing"
        elif (directory / name).is_symlink():
            yield f"{name}: is a link, not a file"
        elif present[name] != file.bytes:
            yield f"{name}: has {present[name]:,} bytes instead of {file.bytes:,}"
        else:
            intact.append(name)
    hashes = hash_files(directory, sorted(intact)[share::num_shares], f"verifying step {manifest.step}")
    for name, file in hashes.items():
        if file != manifest.files[name]:
            yield f"{name}: its content has changed"
    for name in sorted(present.keys() - manifest.files.keys()):
        yield f"{name}: does not belong here"
