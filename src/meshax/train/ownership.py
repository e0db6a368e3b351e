"""Who may write into a directory: one run at a time.

A lock file names the process that holds it, and is touched every few seconds. It is stale when the process is gone, or,
for a process of another host, when it has not been touched for a while; then the next run takes it over.
"""

import contextlib
import json
import os
import socket
import threading
import uuid
from pathlib import Path
from typing import Any

from ..errors import CheckpointError

_TOUCH_EVERY = 15.0
_STALE_AFTER = 120.0


class Ownership:
    """The right to write into a directory, until `release`."""

    def __init__(self, directory: Path):
        self._path = directory / "lock.json"
        self._me = {"pid": os.getpid(), "host": socket.gethostname(), "started": _start_of(os.getpid())}
        self._me["token"] = uuid.uuid4().hex
        self._released = threading.Event()
        if not self._create():
            self._check_stale()
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()
            if not self._create():  # another run was faster
                raise self._held(_read(self._path))
        threading.Thread(target=self._keep_touching, name="meshax-checkpoint-lock", daemon=True).start()

    def check(self) -> None:
        """Raises if another run has taken over meanwhile: this process may have been suspended for long."""
        if self._released.is_set() or _read(self._path).get("token") != self._me["token"]:
            raise CheckpointError(
                "another run has taken over this checkpoint directory.",
                values=f"{self._path.parent}, now of {_show(_read(self._path))}",
                rule="one run writes into a directory at a time; a lock that nobody touches is taken over.",
                fix="stop one of the two runs, or give each a directory of its own.",
            )

    def release(self) -> None:
        """Lets another run write."""
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

    def _check_stale(self) -> None:
        holder = _read(self._path)
        if holder.get("host") == self._me["host"]:
            stale = _start_of(holder.get("pid", 0)) != holder.get("started")
        else:
            stale = self._seconds_untouched() > _STALE_AFTER
        if not stale:
            raise self._held(holder)

    def _held(self, holder: dict[str, Any]) -> CheckpointError:
        mine = all(holder.get(key) == self._me[key] for key in ("pid", "host", "started"))
        return CheckpointError(
            "another run writes into this checkpoint directory.",
            values=f"{self._path.parent}, held by {'this very process' if mine else _show(holder)}",
            rule="one run writes into a directory at a time.",
            fix="call .close() on the other Checkpoints, or open this one with read_only=True."
            if mine
            else "stop that run, or give this one a directory of its own; to look only, open it with read_only=True.",
        )

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
