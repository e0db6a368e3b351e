"""Files that are whole or not there, and folders that one process at a time writes into.

A lock is a file that names the process which holds it, and is touched every few seconds. It is stale when the process
is gone, or, for a process of another host, when it has not been touched for a while; then the next one takes it over.
"""

import contextlib
import functools
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .interrupts import undo_when_ended, undoing

_TOUCH_EVERY = 15.0
_STALE_AFTER = 120.0
_LOOK_EVERY = 0.1
LOCK = "lock.json"


def write_whole(path: Path, content: bytes | str) -> None:
    """Writes a file so that, whatever happens meanwhile, its name stands for the old content or for the new."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    remove = functools.partial(partial.unlink, missing_ok=True)
    try:
        with undoing(remove), open(partial, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
            os.replace(partial, path)
    finally:
        remove()


def append_whole(path: Path, text: str) -> None:
    """Appends to a file: all of a text, or nothing."""
    size = path.stat().st_size if path.exists() else 0
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        with contextlib.suppress(OSError):
            os.truncate(path, size)
        raise


class Held(Exception):
    """Another holds the lock; the text says who."""

    def __init__(self, holder: str, is_me: bool):
        super().__init__(holder)
        self.is_me = is_me


class Lock:
    """The right to write into a folder, until `release`."""

    def __init__(self, folder: Path):
        """Takes the lock, or raises `Held`."""
        self._path = folder / LOCK
        self._me = {"pid": os.getpid(), "host": socket.gethostname(), "started": _start_of(os.getpid())}
        self._me["token"] = uuid.uuid4().hex
        self._released = threading.Event()
        if not self._create():
            self._remove_stale()
            if not self._create():  # another was faster
                raise self._held(_read(self._path))
        undo_when_ended(self.release)
        threading.Thread(target=self._keep_touching, name="meshax-lock", daemon=True).start()

    @classmethod
    def wait_for(cls, folder: Path, on_wait: Callable[[], None]) -> "Lock":
        """Takes the lock as soon as nobody holds it; `on_wait` is called once if somebody does."""
        while True:
            with contextlib.suppress(Held):
                return cls(folder)
            on_wait()
            on_wait = lambda: None  # noqa: E731
            time.sleep(_LOOK_EVERY)

    def __enter__(self) -> "Lock":
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()

    def is_lost(self) -> bool:
        """Whether another has taken over meanwhile: this process may have been suspended for long."""
        return self._released.is_set() or _read(self._path).get("token") != self._me["token"]

    def is_gone(self) -> bool:
        """Whether nobody holds the lock, because its folder was emptied or is away."""
        return not self._released.is_set() and not _read(self._path)

    def holder(self) -> str:
        """Says who holds the lock now."""
        return _show(_read(self._path))

    def release(self) -> None:
        """Lets another one write."""
        is_mine = _read(self._path).get("token") == self._me["token"] and os.getpid() == self._me["pid"]
        if is_mine and not self._released.is_set():
            self._path.unlink(missing_ok=True)
        self._released.set()

    def _create(self) -> bool:
        try:
            with open(self._path, "x", encoding="utf-8") as file:
                json.dump(self._me, file)
        except FileExistsError:
            return False
        return True

    def _remove_stale(self) -> None:
        holder = _read(self._path)
        if holder.get("host") == self._me["host"]:
            is_stale = _start_of(holder.get("pid", 0)) != holder.get("started")
        else:
            is_stale = self._seconds_untouched() > _STALE_AFTER
        if not is_stale:
            raise self._held(holder)
        removed = self._path.with_name(f"{LOCK}.{self._me['token']}")
        with contextlib.suppress(FileNotFoundError):
            self._path.rename(removed)
            if _read(removed) != holder:  # of another, who took it over a moment before
                removed.rename(self._path)
                raise self._held(_read(self._path))
            removed.unlink()

    def _held(self, holder: dict[str, Any]) -> Held:
        is_me = all(holder.get(key) == self._me[key] for key in ("pid", "host", "started"))
        return Held("this very process" if is_me else _show(holder), is_me)

    def _seconds_untouched(self) -> float:
        """By the clock of the file system: those of two hosts may differ."""
        probe = self._path.with_name(f"lock.{self._me['token']}")
        probe.touch()
        try:
            return probe.stat().st_mtime - self._path.stat().st_mtime
        except FileNotFoundError:
            return float("inf")
        finally:
            probe.unlink()

    def _keep_touching(self) -> None:
        while not self._released.wait(_TOUCH_EVERY):
            with contextlib.suppress(OSError):
                os.utime(self._path)


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def _show(holder: dict[str, Any]) -> str:
    return f"process {holder['pid']} on {holder['host']}" if "pid" in holder else "nobody: its lock is empty or gone"


def _start_of(pid: int) -> str | None:
    """Returns when a process started, None if there is none: numbers are used again."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
        state, *rest = status.rpartition(")")[2].split()
        return rest[18] if state not in "ZX" else None  # a zombie is gone
    except FileNotFoundError:
        pass
    if Path("/proc/self/stat").exists():
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return "unknown"
