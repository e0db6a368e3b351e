"""Which line of the user's an operation of a trace comes from."""

import importlib.util
import os
import sysconfig
from dataclasses import dataclass
from typing import Any

from .errors import LIBRARY, called_name

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_FILES = [os.path.join(_ROOT, *module.split(".")) for module in LIBRARY]
OURS = tuple(path + os.sep if os.path.isdir(path) else f"{path}.py" for path in _FILES)
LIBRARIES = tuple(
    os.path.dirname(spec.origin) + os.sep
    for spec in map(importlib.util.find_spec, ("jax", "equinox", "optax"))
    if spec is not None and spec.origin
)
_STANDARD = sysconfig.get_paths()["stdlib"] + os.sep
_BOUNDARY = "run_locally"  # what calls the user's function: lines further out only start the program

# Functions of ours that run under a name no user has seen.
PUBLIC = {
    "value_and_gradient": "value_and_grad", "gradient": "grad", "lifted": "lift", "tree_flatten": "",
    "tree_flatten_with_keys": "", "tree_unflatten": "", "run_locally": "", "array": "", "apply": "optimizer",
    "init": "optimizer", "gather_and_call": "local",
}  # fmt: skip


@dataclass(frozen=True)
class Source:
    """A line of the user's, and the operation it calls."""

    file: str = ""
    number: int = 0
    op: str = ""

    @property
    def line(self) -> str:
        """The line, as `file.py:14`."""
        return f"{os.path.basename(self.file)}:{self.number}" if self.file else ""


def source_of(traceback: Any) -> Source | None:
    """Returns the user's line that caused an operation, given its traceback, if there is one."""
    operation = ""
    for frame in traceback.frames if traceback is not None else ():
        if frame.file_name.startswith(OURS):
            if frame.function_name.endswith(_BOUNDARY):
                return None
            name = called_name(frame.function_name)
            operation = name if not name.startswith(("_", "<")) else operation
        elif not frame.file_name.startswith(LIBRARIES) and not _is_standard(frame.file_name):
            return Source(frame.file_name, frame.line_num, PUBLIC.get(operation, operation))
    return None


def _is_standard(file: str) -> bool:
    return file.startswith("<frozen") or (file.startswith(_STANDARD) and "site-packages" not in file)
