"""Disks that are full: a small real one where a test may mount it, otherwise files that may not grow."""

import contextlib
import resource
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path


@cache
def can_mount():
    """Whether this machine lets us mount a disk in a namespace of our own."""
    command = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"]
    with contextlib.suppress(FileNotFoundError):
        return subprocess.run(command, capture_output=True).returncode == 0
    return False


def with_little_room(folder, num_bytes):
    """Returns what a command begins with so that it has little room in a folder, and what it is told then."""
    if can_mount():
        mount = f'mount -t tmpfs -o size={num_bytes} none {folder} && exec "$@"'
        return ["unshare", "-rm", "sh", "-c", mount, "sh"], "No space left on device"
    limit = f"resource.setrlimit(resource.RLIMIT_FSIZE, ({num_bytes}, resource.RLIM_INFINITY))"
    script = f"import os, resource, sys; {limit}; os.execvp(sys.argv[1], sys.argv[1:])"
    return [sys.executable, "-c", script], "File too large"


class Disk:
    """Somewhere to write to, for commands that begin with `prefix`."""

    def copy(self, path, to):
        """Returns a copy of what is there, but for what is being written."""
        return shutil.copytree(path, to, ignore=shutil.ignore_patterns("*.tmp"))


class Mounted(Disk):
    """A small disk at a folder."""

    reason = "No space left on device"

    def __init__(self, folder, num_bytes):
        mount = f"mount -t tmpfs -o size={num_bytes} none {folder} && echo mounted && exec sleep 3600"
        self._holder = subprocess.Popen(["unshare", "-rm", "sh", "-c", mount], stdout=subprocess.PIPE, text=True)
        assert self._holder.stdout.readline() == "mounted\n"
        self.prefix = ["nsenter", "-t", str(self._holder.pid), "-U", "-m", "--preserve-credentials", "--"]
        self.folder = Path(f"/proc/{self._holder.pid}/root{folder}")  # as this process sees it

    def fill(self, processes):
        """Leaves not a byte."""
        with contextlib.suppress(OSError), open(self.folder / "other", "wb", buffering=0) as file:
            while file.write(bytes(1 << 12)):
                pass

    def empty(self, processes):
        """Makes room again."""
        (self.folder / "other").unlink()

    def close(self):
        self._holder.kill()
        self._holder.communicate()


class Limited(Disk):
    """A folder in which files of some processes may not grow."""

    prefix, reason = (), "File too large"

    def __init__(self, folder, num_bytes):
        self.folder = folder

    def fill(self, processes):
        for pid in processes:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))

    def empty(self, processes):
        for pid in processes:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)

    def close(self):
        pass


@contextlib.contextmanager
def small_disk(folder, num_bytes, kind=None):
    """Gives a disk that can be filled while processes use it."""
    folder.mkdir()
    disk = (kind or (Mounted if can_mount() else Limited))(folder, num_bytes)
    try:
        yield disk
    finally:
        disk.close()
