"""Programs that were compiled stay on the disk: the second start of a run does not compile again.

JAX does the work; here is where, how much, and when not.
"""

import functools
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ..interrupts import undo_when_ended

if TYPE_CHECKING:
    from rich.console import Console

LIMIT = 8 << 30  # bytes
_SHORTEST = 0.5  # seconds of compiling that are worth a file


def keep_compiled_programs(console: "Console") -> None:
    """Keeps compiled programs in the user's cache, unless JAX was told where, and says so. After the devices are set.

    A program for several CPU processors that was read back may mix up its collectives, in every version of JAX that we
    support, and then aborts (`tests/test_compilers.py`): for them, nothing is kept.
    """
    import jax

    is_unsafe = jax.default_backend() == "cpu" and jax.device_count() > 1
    chosen = jax.config.values
    if is_unsafe or chosen["jax_compilation_cache_dir"] or not chosen["jax_enable_compilation_cache"]:
        return
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "meshax", "compiled")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_oldest(folder)
    except OSError as error:
        console.print(f"compiled programs are not kept: {folder}: {error.strerror}", markup=False, highlight=False)
        return
    undo_when_ended(functools.partial(_remove_last, folder))
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", _SHORTEST)
    words = f"compiled programs are kept in {folder} (JAX_ENABLE_COMPILATION_CACHE=0: nowhere)"
    console.print(words, markup=False, highlight=False, soft_wrap=True)


def _remove_last(folder: Path) -> None:
    """Removes what was being written when the process was ended: JAX would never replace half a program."""
    for path in folder.iterdir():
        if time.time() - path.stat().st_mtime < 1:
            path.unlink(missing_ok=True)


def _remove_oldest(folder: Path) -> None:
    """Removes the programs that were written first, while there are more bytes than the limit."""
    sizes = {path: path.stat() for path in folder.iterdir() if path.is_file()}
    excess = sum(stat.st_size for stat in sizes.values()) - LIMIT
    for path in sorted(sizes, key=lambda path: sizes[path].st_mtime):
        if excess <= 0:
            return
        path.unlink(missing_ok=True)
        excess -= sizes[path].st_size
