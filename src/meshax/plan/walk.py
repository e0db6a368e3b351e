"""Walking a traced program: which collectives it has, how often each runs, and which line of the user's caused it."""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from .. import collectives
from ..compat import live_jaxpr

_KINDS = {
    "psum": "all-reduce",
    "psum_invariant": "all-reduce",
    "pmax": "all-reduce",
    "pmin": "all-reduce",
    "all_gather": "all-gather",
    "all_gather_invariant": "all-gather",
    "all_gather_reduced": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all_to_all": "all-to-all",
    "ppermute": "permute",
}
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_OURS = tuple(os.path.join(_PACKAGE, name) for name in ("ops", "nn", "optim", "plan")) + tuple(
    os.path.join(_PACKAGE, f"{name}.py")
    for name in ("dims", "errors", "compat", "mesh", "layout", "tensor", "transfer", "collectives", "program")
)
_JAX = os.path.dirname(os.path.abspath(jax.__file__))


@dataclass(frozen=True)
class Collective:
    """One collective of a program: what each processor sends, how often, and why."""

    kind: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    wire_bytes: int
    count: int
    phase: str
    line: str
    op: str
    scope: str

    @property
    def elements(self) -> int:
        """The elements of the operand on one processor."""
        return math.prod(self.shape)


def collectives_of(jaxpr: Any, axis_sizes: dict[str, int]) -> list[Collective]:
    """Returns the collectives of a traced program, dead code and those among single processors left out."""
    records: list[Collective] = []
    after_backward = False
    for eqn, count, scopes, source in _equations(live_jaxpr(jaxpr), 1, (), ("", "")):
        phase = _phase("/".join(scopes), after_backward)
        after_backward |= phase == "backward"
        if eqn.primitive.name in collectives.PRIMITIVES:
            records += _records(eqn, count, scopes, phase, source, axis_sizes)
    return records


_Source = tuple[str, str]  # the user's line, and the operation of ours that it calls


def _equations(
    jaxpr: Any, count: int, scopes: tuple[str, ...], caller: _Source
) -> Iterator[tuple[Any, int, tuple[str, ...], _Source]]:
    """Iterates over all equations, also of inner programs: how often they run, the scopes around them, their source."""
    for eqn in jaxpr.eqns:
        inside = (*scopes, str(eqn.source_info.name_stack))
        inner_programs = list(jax.extend.core.jaxprs_in_params(eqn.params))
        source = caller
        if inner_programs or eqn.primitive.name in collectives.PRIMITIVES:
            source = _source(eqn) or caller
        yield eqn, count, inside, source
        times = count * eqn.params["length"] if eqn.primitive.name == "scan" else count
        for inner in inner_programs:
            yield from _equations(inner, times, inside, source)


def _records(
    eqn: Any, count: int, scopes: tuple[str, ...], phase: str, source: _Source, axis_sizes: dict[str, int]
) -> Iterator[Collective]:
    axes = eqn.params.get("axes") or eqn.params.get("axis_name")
    axes = tuple(axes) if isinstance(axes, tuple | list | frozenset) else (axes,)
    processors = math.prod(axis_sizes[axis] for axis in axes)
    if processors == 1:
        return
    kind = _KINDS[eqn.primitive.name]
    line, op = source
    for operand in eqn.invars:
        size = math.prod(operand.aval.shape) * np.dtype(operand.aval.dtype).itemsize
        yield Collective(
            kind=kind,
            axes=axes,
            shape=operand.aval.shape,
            dtype=str(operand.aval.dtype),
            bytes=size,
            wire_bytes=_wire_bytes(kind, size, processors),
            count=count,
            phase=phase,
            line=line,
            op=op,
            scope="/".join(scope for scope in scopes if scope),
        )


def _wire_bytes(kind: str, size: int, processors: int) -> int:
    """Returns the bytes that one processor sends in a ring."""
    share = {
        "all-reduce": 2 * (processors - 1) / processors,
        "all-gather": processors - 1,
        "reduce-scatter": (processors - 1) / processors,
        "all-to-all": (processors - 1) / processors,
        "permute": 1,
    }
    return round(share[kind] * size)


def _phase(scope: str, after_backward: bool) -> str:
    if "rematted_computation" in scope:
        return "recompute"
    if "transpose(" in scope:
        return "backward"
    return "update" if after_backward and "jvp(" not in scope else "forward"


def _source(eqn: Any) -> _Source | None:
    """Returns the innermost line of the user's, and the operation of ours that it calls, if the equation knows them."""
    op = ""
    traceback = eqn.source_info.traceback
    for frame in traceback.frames if traceback is not None else ():
        if frame.file_name.startswith(_OURS):
            op = frame.function_name.rpartition(".")[2]
        elif not frame.file_name.startswith((_JAX, "<frozen")):
            return f"{os.path.basename(frame.file_name)}:{frame.line_num}", op
    return None
