"""Operations know their names: which of them, called by which line of the user's, emitted what is in a trace.

An operation that a line of the user's calls enters a scope, and JAX writes the scope to everything that is emitted
inside, through derivatives too. What one operation does for another stays in the other's scope.
"""

import functools
import importlib.util
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import jax

P = ParamSpec("P")
R = TypeVar("R")

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# The modules below models: for who asks which line of a program costs what, a model's lines are as good as a user's.
_LIBRARY = tuple(
    f"meshax.{name}"
    for name in (
        *("ops", "spatial", "nn", "optim", "plan", "bench", "testing"),
        *("dim", "errors", "compat", "mesh", "layout", "tensors", "rings", "transfer", "collectives", "program"),
        *("checking", "sources"),
    )
)
_FILES = [os.path.join(_ROOT, *module.split(".")) for module in _LIBRARY]
_OURS = tuple(path + os.sep if os.path.isdir(path) else f"{path}.py" for path in _FILES)
_LIBRARIES = tuple(
    os.path.dirname(spec.origin) + os.sep
    for spec in map(importlib.util.find_spec, ("jax", "equinox", "optax"))
    if spec is not None and spec.origin
)
_STANDARD = sysconfig.get_paths()["stdlib"] + os.sep
_BOUNDARY = "run_locally"  # what calls the user's function: lines further out only start the program


@dataclass(frozen=True)
class Source:
    """A line of the user's, and the operation it calls."""

    file: str = ""
    number: int = 0
    op: str = ""
    told_apart: str = ""  # what the file is called where another one has its name

    @property
    def name(self) -> str:
        """What the file is called."""
        return self.told_apart or os.path.basename(self.file)

    @property
    def line(self) -> str:
        """The line, as `file.py:14`."""
        return f"{self.name}:{self.number}" if self.file else ""


def operation(fn: Callable[P, R], name: str = "") -> Callable[P, R]:
    """Makes an operation of a function of ours: what it emits bears its name, and the line of the user's that calls it.

    Args:
        fn: the function, or method.
        name: what users call it; by default its own name, or that of the class whose instances are called.
    """
    called = name or fn.__qualname__.removesuffix(".__call__")

    @functools.wraps(fn)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        frame: Any = sys._getframe(1)
        while frame is not None and (place := place_of(frame.f_code.co_filename)) != "user":
            if place == "ours":
                return fn(*args, **kwargs)
            frame = frame.f_back
        if frame is None:
            return fn(*args, **kwargs)
        with jax.named_scope(_label(frame.f_code.co_filename, frame.f_lineno, called)):
            return fn(*args, **kwargs)

    return run


def name_operations(namespace: MutableMapping[str, Any], names: Iterable[str]) -> None:
    """Makes operations of those functions of a module, or package, that users call."""
    namespace.update({name: operation(namespace[name], name) for name in names})


@functools.cache
def place_of(file: str) -> str:
    """Returns whose a file is: "ours", the "user"'s (or a model's), or of a "library" between the two."""
    if file.startswith(_OURS):
        return "ours"
    is_standard = file.startswith("<frozen") or (file.startswith(_STANDARD) and "site-packages" not in file)
    return "library" if is_standard or file.startswith(_LIBRARIES) else "user"


LABELS: dict[str, Source] = {}  # the name of a scope, and what it stands for


@functools.cache
def _label(file: str, number: int, op: str) -> str:
    label = re.sub(r"[/()]", "_", f"{op} at {os.path.basename(file)}:{number}")
    while label in LABELS:  # the same line of another file of this name
        label += "'"
    LABELS[label] = Source(file, number, op)
    return label


def operations_in(scope: str) -> Iterator[Source]:
    """Iterates over the operations that a scope is in, the innermost first."""
    return (LABELS[part] for part in reversed(re.split(r"[/()]", scope)) if part in LABELS)


def source_of(traceback: Any, scope: str = "") -> Source | None:
    """Returns the user's line that caused something in a trace, if there is one, and the operation which it calls.

    Args:
        traceback: that of an operation of JAX's.
        scope: where it stands; what the user's line asks of JAX itself is no operation of ours, whatever is around it.
    """
    is_ours = False
    for frame in traceback.frames if traceback is not None else ():
        place = place_of(frame.file_name)
        if place == "user":
            line = Source(frame.file_name, frame.line_num)
            called = operations_in(scope) if is_ours else ()
            return next((s for s in called if (s.file, s.number) == (line.file, line.number)), line)
        if place == "ours":
            if frame.function_name.endswith(_BOUNDARY):
                return None
            is_ours = True
    return None


def is_of_library(jaxpr: Any) -> bool:
    """Whether a function that was traced is a library's.

    JAX traces its own functions once for all who call them, and they remember the first one's line.
    """
    defined = str(getattr(getattr(jaxpr, "debug_info", None), "func_src_info", ""))
    return any(path in defined for path in _LIBRARIES)
