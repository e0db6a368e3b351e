"""Disks that are full: a small real one where a test may mount it, otherwise files that may not grow."""

import contextlib
import subprocess
import sys
from functools import cache


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
