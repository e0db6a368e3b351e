"""Massive model parallelism, and data parallelism, and any mix, made easy.

Write a tensor program once, with named dims. One layout line decides how it is split over a mesh of processors.
"""

import importlib
import importlib.util
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .language import *  # noqa: F403
    from .language import __all__ as __all__

__version__ = "0.1.0"

# XLA's CPU client takes more threads than virtual processors, unless the user has chosen their number: with as many,
# collectives of executions that wait for each other can take them all and never end. To be set before JAX starts.
if "PJRT_NPROC" not in os.environ and "NPROC" not in os.environ:
    os.environ["PJRT_NPROC"] = str(max(64, os.cpu_count() or 1))


def __getattr__(name: str) -> object:
    """Imports the language when its first word is used: JAX takes a second, and the command line's help needs none."""
    is_module = importlib.util.find_spec(f"{__name__}.{name}") is not None  # `from . import mesh` asks here first
    if not is_module and (not name.startswith("__") or name == "__all__"):
        globals().update(_words())
    if name in globals():
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_words()})


def _words() -> dict[str, object]:
    language = importlib.import_module(f"{__name__}.language")
    return {"__all__": language.__all__, **{word: getattr(language, word) for word in language.__all__}}
