"""Programs that were compiled stay on the disk: the second start of a run does not compile again.

JAX does the work; here is where, how much, and when not. JAX writes a program under its final name: a process that is
killed, and a disk that is full, leave half of one. It would warn of it at every start, and never replace it; so when it
warns, such files are removed, and a line of ours is said in its place. Then JAX writes the program anew.
"""

import contextlib
import functools
import os
import re
import stat
import tempfile
import time
import warnings
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..interrupts import undo_when_ended

if TYPE_CHECKING:
    from rich.console import Console

LIMIT = 8 << 30  # bytes
_SHORTEST = 0.5  # seconds of compiling that are worth a file
_READING = "Error reading persistent compilation cache entry"
_WRITING = "Error writing persistent compilation cache entry"


def keep_compiled_programs(console: "Console") -> None:
    """Keeps compiled programs in the user's cache, unless JAX was told where, and says so. After the devices are set.

    A program for several CPU processors that was read back may mix up its collectives, in every version of JAX that we
    support, and then aborts (`tests/test_compilers.py`): for them, nothing is kept.
    """
    import jax

    from ..plan.cost.hardware import cache_folder

    say = functools.partial(console.print, markup=False, highlight=False, soft_wrap=True)
    is_unsafe = jax.default_backend() == "cpu" and jax.device_count() > 1
    chosen = jax.config.values
    if not chosen["jax_enable_compilation_cache"] or (is_unsafe and not chosen["jax_compilation_cache_dir"]):
        return None
    if is_unsafe:
        jax.config.update("jax_enable_compilation_cache", False)
        return say("compiled programs are not kept: for several processors of a CPU, what is read back may abort")
    if chosen["jax_compilation_cache_dir"]:
        return None
    cache = cache_folder()
    if cache is None:
        return say("compiled programs are not kept: there is no home, HOME is not set")
    folder = cache / "compiled"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()  # may this process write here?
        _remove_oldest(folder)
    except OSError as error:
        return say(f"compiled programs are not kept: {folder}: {error.strerror}")
    undo_when_ended(functools.partial(_remove_last, folder))
    _mend_on_warnings(folder, say)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", _SHORTEST)
    return say(f"compiled programs are kept in {folder} (JAX_ENABLE_COMPILATION_CACHE=0: nowhere)")


def _mend_on_warnings(folder: Path, say: Any) -> None:
    """Removes damaged programs as soon as JAX warns of one, and says one line for all of its warnings."""
    show, say_once = warnings.showwarning, functools.cache(say)

    def mend(message: Warning | str, *place: Any, **more: Any) -> None:
        text = str(message)
        failed = re.search(r"\[Errno \d+\] ([^:]*)", text) if text.startswith(_WRITING) else None
        num_removed = _remove_damaged(folder) if failed or text.startswith(_READING) else 0
        if failed:
            say_once(f"compiled programs are not kept: {folder}: {failed[1]}")
        elif num_removed:
            say_once(f"a compiled program in {folder} was damaged: it is compiled again")
        else:
            show(message, *place, **more)

    for start in (_READING, _WRITING):
        warnings.filterwarnings("always", start)  # whatever was asked of others
    warnings.showwarning = mend


def _remove_damaged(folder: Path) -> int:
    """Removes the programs that are not whole, and returns how many: JAX's warning does not say which it read.

    What was compressed by other means than zlib, which JAX uses if nothing else is installed, counts as damaged. So
    does what another process is writing: it goes on writing into a file without a name.
    """
    num_removed = 0
    for path in folder.glob("*-cache"):
        try:
            zlib.decompress(path.read_bytes())
        except (OSError, zlib.error):
            with contextlib.suppress(OSError):
                path.unlink()
                num_removed += 1
    return num_removed


def _remove_last(folder: Path) -> None:
    """Removes what was being written when the process was ended: half a program is of no use."""
    for path, status in _files(folder).items():
        if time.time() - status.st_mtime < 1:
            path.unlink(missing_ok=True)


def _remove_oldest(folder: Path) -> None:
    """Removes the programs that were written first, while there are more bytes than the limit."""
    files = _files(folder)
    excess = sum(status.st_size for status in files.values()) - LIMIT
    for path in sorted(files, key=lambda path: files[path].st_mtime):
        if excess <= 0:
            return
        path.unlink(missing_ok=True)
        excess -= files[path].st_size


def _files(folder: Path) -> dict[Path, os.stat_result]:
    found = {}
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process removes some too
            found[path] = path.stat()
    return {path: status for path, status in found.items() if stat.S_ISREG(status.st_mode)}
