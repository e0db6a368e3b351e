"""Targets: how a command line says which program it means.

`FILE.py:FUNCTION` names a function without required arguments. It returns `(fn, args)` or `(fn, args, donate)`, as one
would give them to `mx.spmd`, or `(program, args)`. Arguments may be tensors of `jax.ShapeDtypeStruct`: nothing runs.
"""

import contextlib
import importlib.util
import inspect
import linecache
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from ...errors import ArgumentError, MeshaxError, did_you_mean
from ...layout import Layout
from ...mesh import Mesh
from ...program import Program, spmd
from ..cost.hardware import Hardware
from ..cost.processors import DescribedMesh
from ..search.named_layouts import find_layout, sizes_of
from .overlap import overlapping
from .topologies import CPU

_EXAMPLE = "write FILE.py:FUNCTION, as in examples/transformer.py:tiny."
_RETURNS = "it returns (fn, args), (fn, args, donate) or (program, args)."


@dataclass(frozen=True)
class Target:
    """A program to look at, and its arguments."""

    name: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    donate: tuple[int, ...] = ()
    program: Program | None = None  # with a mesh and a layout of its own
    path: Path | None = None  # of its file
    tokens: int = 0  # that a call writes
    unsplit: tuple[str, ...] = ()  # dims that no layout is to split
    flags: Callable[[Mesh], Mapping[str, Any]] = lambda mesh: {}  # of the compiler, for processors

    def axes(self, mesh: str = "") -> str:
        """Returns the mesh that is given, or the target's own."""
        if not mesh and self.program is None:
            raise ArgumentError(f"{self.name} has no mesh of its own.", fix='give one: mesh="data:2 model:4".')
        own = self.program.mesh.axes if self.program is not None else {}
        return mesh or " ".join(f"{axis}:{size}" for axis, size in own.items())

    def build(
        self,
        mesh: str = "",
        layout: str = "",
        params: str = "",
        optimizer: str = "",
        topology: str | None = None,
        overlap: bool = False,
        hardware: Hardware | None = None,
        rings: str = "",
    ) -> Program:
        """Makes the program, without devices unless a topology is named; what is not given is the target's own.

        Without devices it is that of some hardware, if one is given.
        """
        own, axes = self.program, self.axes(mesh)
        if topology == CPU:
            processors = Mesh(axes)
        elif topology:
            processors = Mesh(axes, topology=topology)
        else:
            processors = DescribedMesh(axes, hardware) if hardware else Mesh(axes, abstract=True)
        # XLA tries out tiles for Triton's products, and without a GPU may find none that fit.
        untried = {"xla_gpu_enable_triton_gemm": False} if processors.platform == "gpu" else {}
        flags = untried | dict(self.flags(processors)) | (overlapping(processors.platform) if overlap else {})
        if own is not None and not (layout or params or optimizer):
            rules = own.layout
            if rings:
                rules = Layout(dict(rules.rules), dict(rules.params), dict(rules.optimizer), rings)
            return spmd(own.fn, processors, rules, own.donate, flags)
        rules = find_layout(layout or "none", processors, params, optimizer, sizes=sizes_of(self.args), rings=rings)
        return spmd(self.fn, processors, rules, self.donate, flags)


def check_target(target: str) -> tuple[Path, str]:
    """Returns the file and the name of the function, or raises if the text is not of that form."""
    file, colon, name = target.rpartition(":")
    if not (file.endswith(".py") and colon and name.isidentifier()):
        raise ArgumentError(f"{target!r} does not name a program.", fix=_EXAMPLE)
    return Path(file), name


def load_target(target: str) -> Target:
    """Finds the function, calls it, and checks what it returns."""
    path, name = check_target(target)
    if not path.is_file():
        raise ArgumentError(f"there is no file {str(path)!r}.", values=target, fix=_EXAMPLE)
    with blamed(target, path, "cannot be loaded"):
        module = _load(path)
    function = getattr(module, name, None)
    if not callable(function):
        names = [n for n, v in vars(module).items() if not n.startswith("_") and _is_own_function(v)]
        raise ArgumentError(f"{path.name} has no function {name!r}.", values=target, fix=did_you_mean(name, names))
    if required := _required(function):
        raise ArgumentError(
            f"{target} takes arguments: {', '.join(required)}.",
            rule="a target is called without arguments.",
            fix="give them defaults, or bind them: small = functools.partial(function, size=8).",
        )
    with blamed(target, path, "failed"):
        returned = function()
    return replace(_checked(target, returned), path=path)


@contextlib.contextmanager
def blamed(target: str, path: Path | None, what: str) -> Iterator[None]:
    """Says of which target, and at which of its lines, an error came up. Errors of ours say that themselves."""
    try:
        yield
    except MeshaxError:
        raise
    except Exception as error:
        raise ArgumentError(f"{target} {what}.", values=f"{_words(error)}, at {_line(error, path)}") from error


def _words(error: Exception) -> str:
    text = str(error).strip()
    return type(error).__name__ + (f": {text.splitlines()[0][:300]}" if text else "")


def _line(error: Exception, path: Path | None) -> str:
    """Returns the last line of the target's file that ran, or the wrong one if it could not even be read."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}:{error.lineno}: {(error.text or '').strip()}"
    frames = traceback.extract_tb(error.__traceback__)
    wanted = [f for f in frames if path and Path(f.filename).resolve() == path.resolve()] or frames
    number = wanted[-1].lineno or 0
    return f"{Path(wanted[-1].filename).name}:{number}: {linecache.getline(wanted[-1].filename, number).strip()}"


def _load(path: Path) -> ModuleType:
    """Runs the file as Python would: what lies beside it can be imported."""
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    name = f"target_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _is_own_function(value: Any) -> bool:
    """Whether something is a function of the target's file; a partial has no module of its own."""
    made_there = getattr(value, "__module__", "target_").startswith(("target_", "functools"))
    return callable(value) and not isinstance(value, type) and made_there


def _required(function: Callable[..., Any]) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [p.name for p in parameters if p.default is p.empty and p.kind in plain]


def _checked(target: str, returned: Any) -> Target:
    match returned:
        case (Program() as program, tuple() | list() as args):
            return Target(target, program.fn, tuple(args), program.donate, program)
        case (fn, tuple() | list() as args) if callable(fn):
            return Target(target, fn, tuple(args))
        case (fn, tuple() | list() as args, int() | tuple() | list() as donate) if callable(fn):
            return Target(target, fn, tuple(args), (donate,) if isinstance(donate, int) else tuple(donate))
    shown = type(returned).__name__
    if isinstance(returned, tuple):
        shown = f"({', '.join(type(part).__name__ for part in returned)})"
    raise ArgumentError(
        f"{target} does not return a program.",
        values=shown,
        rule=_RETURNS,
        fix="return for example step, (w, images, labels): args is a tuple, also if there is one.",
    )
