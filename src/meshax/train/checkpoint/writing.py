"""One checkpoint on its way to the disk, beside the training.

It grows under a temporary name, and gets its own at the very end, by one rename: whatever interrupts it, it is whole or
it is not there. Several processes write into the same directory (a shared one) and need no collective for it, which a
thread could not order between those of the training: each leaves a note when its part is done, and the first process
waits for the notes, joins the parts, writes the manifest and renames.
"""

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ...files import write_whole
from . import arrays
from .arrays import Snapshot
from .manifest import File, Manifest, files_under, hash_files

ARRAYS = "arrays"
TEMPORARY = ".tmp"

_PATIENCE = 3600.0  # seconds that a process waits for another one


@dataclass(frozen=True)
class Saving:
    """What is to be written, and by which of how many processes."""

    directory: Path
    name: str
    manifest: Manifest  # its files still unknown
    snapshots: Mapping[str, Snapshot]
    process: int = 0
    num_processes: int = 1

    @property
    def _temporary(self) -> Path:
        return self.directory / (self.name + TEMPORARY)

    @property
    def _failed(self) -> Path:
        """Tells processes that come late that there is nothing to wait for; it goes when a run opens the directory."""
        return self.directory / f"{self.name}.failed{TEMPORARY}"

    @property
    def num_bytes(self) -> int:
        """The bytes that this process writes."""
        return sum(snapshot.num_bytes for snapshot in self.snapshots.values())

    def run(self) -> None:
        """Writes this process's part, and returns when the whole checkpoint is there."""
        if self.process == 0:
            try:
                self._lead()
            except BaseException:
                shutil.rmtree(self._temporary, ignore_errors=True)
                if self.num_processes > 1:
                    self._failed.mkdir()
                raise
        else:
            self._follow()

    def _lead(self) -> None:
        self._temporary.mkdir()
        files = self._write_part()
        for process in range(1, self.num_processes):
            files |= self._part_of(process)
        whole = self._temporary / ARRAYS
        arrays.merge(whole, [whole / _part(process) for process in range(self.num_processes)])
        rest = [name for name in files_under(self._temporary) if name not in files]
        files |= hash_files(self._temporary, rest)
        replace(self.manifest, files=dict(sorted(files.items()))).write(self._temporary)
        for folder, _, _ in os.walk(self._temporary):
            _sync(Path(folder))
        self._temporary.rename(self.directory / self.name)
        _sync(self.directory)

    def _follow(self) -> None:
        self._wait_for(lambda: self._temporary.is_dir() or self._failed.is_dir(), "the first process to begin")
        if self._failed.is_dir():
            raise OSError("the first process could not write it")
        try:
            note = json.dumps({name: asdict(file) for name, file in self._write_part().items()})
        except Exception as error:
            note = json.dumps(f"process {self.process}: {error}")
            raise
        finally:
            self._leave_note(note)
        # the first process may have deleted the directory while this one's writing made it again
        self._wait_for(lambda: not self._temporary.is_dir() or self._failed.is_dir(), "the first process to finish")
        if not (self.directory / self.name).is_dir():
            raise OSError("the first process could not finish it")

    def _write_part(self) -> dict[str, File]:
        part = self._temporary / ARRAYS / _part(self.process)
        arrays.write(part, self.snapshots)
        prefix = part.relative_to(self._temporary).as_posix()
        return hash_files(self._temporary, [f"{prefix}/{name}" for name in files_under(part)])

    def _leave_note(self, text: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # the first process has given up already
            write_whole(self._note(self.process), text)

    def _part_of(self, process: int) -> dict[str, File]:
        note = self._note(process)
        self._wait_for(note.exists, f"process {process}")
        told: Any = json.loads(note.read_text(encoding="utf-8"))  # the files, or what went wrong
        note.unlink()
        if isinstance(told, str):
            raise OSError(told)
        return {name: File(**file) for name, file in told.items()}

    def _note(self, process: int) -> Path:
        return self._temporary / f"process-{process}.done"

    def _wait_for(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + _PATIENCE
        while not condition():
            if time.monotonic() > end:
                raise TimeoutError(f"waited {_PATIENCE:g} seconds for {what}")
            time.sleep(0.05)


def _part(process: int) -> str:
    return f"process-{process}"


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
