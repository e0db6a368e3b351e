"""The exceptions, and how a message is built.

Every error a user can cause is a `MeshaxError` whose text has four parts, in this order: what failed; on which
values, in our notation (`[batch:32/rows, length:128]`); which rule it broke; what to do about it. A note names
the user's own line.
"""

import difflib
import linecache
import os
import sys
from collections.abc import Iterable
from typing import Any

_OTHERS = sys.stdlib_module_names | {"meshax", "jax", "equinox"}


class MeshaxError(ValueError):
    """Base class of all errors that meshax raises on purpose."""

    def __init__(self, what: str, *, values: str = "", rule: str = "", fix: str = ""):
        parts = [what]
        parts += [f"  {label}: {text}" for label, text in (("values", values), ("rule", rule), ("fix", fix)) if text]
        super().__init__("\n".join(parts))
        self._point_at_user()

    def _point_at_user(self) -> None:
        """Notes the user's own line: between it and the error may lie dozens of frames of tracing."""
        frame: Any = sys._getframe(1)
        while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _OTHERS:
            frame = frame.f_back
        if frame is not None:
            self._note(frame.f_code.co_filename, frame.f_lineno)

    def _note(self, file: str, line: int) -> None:
        code = linecache.getline(file, line).strip()
        self.add_note(f"  line: {os.path.basename(file)}:{line}" + (f": {code}" if code else ""))


class DimError(MeshaxError):
    """A dim, or a list of dims, is malformed."""


class ShapeError(MeshaxError):
    """The dims of tensors do not fit an operation, or each other."""


class ArgumentError(MeshaxError):
    """An argument that is not a tensor or a dim is out of range."""


class DtypeError(MeshaxError):
    """The dtype of a tensor does not fit an operation."""


class MeshError(MeshaxError):
    """A mesh is malformed, or does not fit the devices."""


class LayoutError(MeshaxError):
    """A layout is malformed, or splits a tensor in an impossible way."""


class SliceError(MeshaxError):
    """JAX code would combine elements of one processor's slice alone, as if it were the whole."""

    def __init__(self, what: str, *, source: Any = None, **parts: str):
        self._source = source
        super().__init__(what, **parts)

    def _point_at_user(self) -> None:
        """Notes the line of the operation: what runs by now is only the program's call."""
        if self._source is None:
            super()._point_at_user()
        else:
            self._note(self._source.file, self._source.number)


class DataError(MeshaxError):
    """A file of text, of tokens or of a vocabulary is missing, damaged, or does not fit."""


class OptimizerError(MeshaxError):
    """An optimizer would be silently wrong on local slices."""


class TrainingError(MeshaxError):
    """A run of training cannot go on."""


class CheckpointError(MeshaxError):
    """A checkpoint cannot be saved, is damaged, or is not of this model."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns a sentence that offers the nearest known names, or lists them all."""
    known = sorted(set(known))
    close = difflib.get_close_matches(name, known, n=2, cutoff=0.6)
    if close:
        return "did you mean " + " or ".join(f'"{c}"' for c in close) + "?"
    if not known:
        return "there are none yet."
    return "known names: " + (", ".join(known) + "." if len(known) <= 12 else ", ".join(known[:12]) + ", ...")


def shortened(lines: list[str], most: int = 10) -> str:
    """Writes the values of a message under each other, at most so many."""
    rest = [f"and {len(lines) - most} more"] if len(lines) > most else []
    return "\n          ".join([*lines[:most], *rest])
