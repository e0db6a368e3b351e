"""One checkpoint on its way to the disk, beside the training.

It grows under a temporary name, and gets its own at the very end, by one rename: whatever interrupts it, it is whole or
it is not there. Several processes write into the same directory (a shared one) and need no collective for it, which a
thread could not order between those of the training: each leaves a note when its part is done, and the first process
waits for the notes, joins the parts, writes the manifest and renames.

Disks fill up and come back. What could not be written is tried again after a pause, from the copy in memory and under
another temporary name; the first process says when, the others follow.
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
from .failures import reason
from .manifest import File, Manifest, files_under, hash_files

ARRAYS = "arrays"
TEMPORARY = ".tmp"
_BROKEN = ".broken"

PAUSES = (1.0, 5.0, 20.0)  # seconds before what could not be written is tried again

_CORES = 0.25  # the share of them that hashes: steps go on meanwhile, and are prepared on the others

_PATIENCE = 300.0  # seconds that a process waits for another one which writes nothing
_LOOK_EVERY = 0.05
_ASK_EVERY = 5.0  # seconds: whether it writes is asked of the disk, too


@dataclass(frozen=True)
class Saving:
    """What is to be written, and by which of how many processes."""

    directory: Path
    name: str
    manifest: Manifest  # its files still unknown
    snapshots: Mapping[str, Snapshot]
    process: int = 0
    num_processes: int = 1
    before: Callable[[], None] = lambda: None  # the first process begins; it may raise
    on_retry: Callable[[str], None] = lambda text: None
    attempt: int = 0

    @property
    def _temporary(self) -> Path:
        return self.directory / (self.name + (f".{self.attempt}" if self.attempt else "") + TEMPORARY)

    @property
    def _is_there(self) -> bool:
        return (self.directory / self.name).is_dir()

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
        if self.process:
            self._fetch()
            self._follow()
            return
        try:
            self._fetch()
            self._lead_patiently()
        except BaseException:
            if self.num_processes > 1:
                with contextlib.suppress(OSError):
                    self._failed.mkdir()
            raise

    def _fetch(self) -> None:
        """Brings the snapshots to the host, one after the other: steps read their losses the same way."""
        for snapshot in self.snapshots.values():
            snapshot.fetch()

    def _lead_patiently(self) -> None:
        for attempt, pause in enumerate((*PAUSES, None)):
            saving = replace(self, attempt=attempt)
            try:
                saving._lead()
                for number in range(attempt):  # whose directories may have been made again by who came late
                    shutil.rmtree(replace(self, attempt=number)._temporary, ignore_errors=True)
                return
            except Exception as error:
                shutil.rmtree(saving._temporary, ignore_errors=True)
                if pause is None:
                    raise
                self.on_retry(f"step {self.manifest.step} could not be saved: {reason(error)}; again in {pause:g} s")
                time.sleep(pause)
            except BaseException:
                shutil.rmtree(saving._temporary, ignore_errors=True)
                raise

    def _lead(self) -> None:
        self.before()
        self._temporary.mkdir()
        files = self._write_part()
        for process in range(1, self.num_processes):
            files |= self._part_of(process)
        whole = self._temporary / ARRAYS
        arrays.merge(whole, [whole / _part(process) for process in range(self.num_processes)])
        rest = [name for name in files_under(self._temporary) if name not in files]
        files |= hash_files(self._temporary, rest, cores=_CORES)
        replace(self.manifest, files=dict(sorted(files.items()))).write(self._temporary)
        for folder, _, _ in os.walk(self._temporary):
            _sync(Path(folder))
        self._temporary.rename(self.directory / self.name)
        _sync(self.directory)

    def _follow(self) -> None:
        """Writes its part as often as the first process begins; one that failed at once may go unnoticed."""
        cause: Exception = OSError("the first process could not write it")
        following = 0
        while following <= len(PAUSES):
            since = following
            self._wait_for(
                lambda: self._is_there or self._failed.is_dir() or bool(self._begun(since)),  # noqa: B023
                "the first process to begin",
            )
            if self._is_there:
                return
            begun = self._begun(following)
            if self._failed.is_dir() or not begun:
                break
            cause = replace(self, attempt=begun[-1])._follow_once() or OSError("the first process could not finish it")
            if self._is_there:
                return
            following = begun[-1] + 1
        raise cause

    def _begun(self, first: int) -> list[int]:
        """Returns which attempts, from one on, have a directory."""
        return [n for n in range(first, len(PAUSES) + 1) if replace(self, attempt=n)._temporary.is_dir()]

    def _follow_once(self) -> Exception | None:
        """Writes its part and waits for the first process; returns what went wrong here, if anything did."""
        try:
            note, failure = json.dumps({name: asdict(file) for name, file in self._write_part().items()}), None
        except Exception as error:
            note, failure = json.dumps(f"process {self.process}: {error}"), error
        self._leave_note(note)
        # the first process may have deleted the directory while this one's writing made it again
        ends = lambda: not self._temporary.is_dir() or self._failed.is_dir() or bool(self._begun(self.attempt + 1))  # noqa: E731
        self._wait_for(ends, "the first process to finish", self.directory)
        return failure

    def _write_part(self) -> dict[str, File]:
        part = self._temporary / ARRAYS / _part(self.process)
        arrays.write(part, self.snapshots)
        prefix = part.relative_to(self._temporary).as_posix()
        return hash_files(self._temporary, [f"{prefix}/{name}" for name in files_under(part)], cores=_CORES)

    def _leave_note(self, text: str) -> None:
        try:
            write_whole(self._note(self.process), text)
        except OSError:  # the first process has given up already; or there is no room, but a name can be changed
            part = self._temporary / ARRAYS / _part(self.process)
            with contextlib.suppress(OSError):
                part.rename(part.with_name(part.name + _BROKEN))

    def _part_of(self, process: int) -> dict[str, File]:
        note, part = self._note(process), self._temporary / ARRAYS / _part(process)
        broken = part.with_name(part.name + _BROKEN)
        self._wait_for(lambda: note.exists() or broken.exists(), f"process {process}", part)
        if not note.exists():
            raise OSError(f"process {process} could not write its part")
        told: Any = json.loads(note.read_text(encoding="utf-8"))  # the files, or what went wrong
        note.unlink()
        if isinstance(told, str):
            raise OSError(told)
        return {name: File(**file) for name, file in told.items()}

    def _note(self, process: int) -> Path:
        return self._temporary / f"process-{process}.done"

    def _wait_for(self, condition: Callable[[], bool], what: str, written: Path | None = None) -> None:
        """Waits as long as it takes if something is `written` meanwhile, but not for ever if nothing is."""
        end, ask, seen = time.monotonic() + _PATIENCE, time.monotonic() + _ASK_EVERY, -1
        while not condition():
            now = time.monotonic()
            if written is not None and now > ask:
                ask, size = now + _ASK_EVERY, _bytes_under(written)
                end, seen = (now + _PATIENCE if size != seen else end), size
            if now > end:
                raise TimeoutError(f"waited {_PATIENCE:g} seconds for {what}")
            time.sleep(_LOOK_EVERY)


def _bytes_under(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(place, name)).st_size
    return total


def _part(process: int) -> str:
    return f"process-{process}"


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
