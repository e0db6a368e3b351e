"""The collectives of a program: what each processor sends, how often, and which line of the user's caused it."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .broadcasting import Number, rounded, where
from .walk import Block, Source, Step, without_operations

JOINED = 30 * 2**20  # bytes: XLA joins all-reduces up to this size


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
    source: Source
    step: Step = field(compare=False, repr=False)
    joined: bool = False  # compilers send it along with an earlier one

    @property
    def looks(self) -> tuple[Any, ...]:
        """What a reader tells it by from others: two that look alike are listed as one."""
        return self.kind, self.axes, self.shape, self.dtype, self.phase, self.op, self.line

    @property
    def elements(self) -> int:
        """The elements of the operand on one processor."""
        return math.prod(self.shape)


def collectives_of(block: Block, axis_sizes: Mapping[str, int]) -> list[Collective]:
    """Returns the collectives of a program, those among single processors left out.

    Gradients that wait until the update needs them do not need each other: XLA sums them together, up to a size.
    """
    records: list[Collective] = []
    together = Together()
    for step in block.all_steps():
        if step.phase == "backward":
            together.clear()
        for record in _records(step, axis_sizes):
            if record.kind == "all-reduce" and step.phase == "update" and record.phase == "backward":
                record = replace(record, joined=together.joins((record.axes, record.dtype), record.bytes))
            records.append(record)
    return records


class Together:
    """The sums that are on their way, and do not wait for each other: compilers join them, up to a size."""

    def __init__(self) -> None:
        self._bytes: dict[Any, Number] = {}  # by axes and dtype

    def joins(self, key: Any, size: Number) -> Number:
        """Adds a sum of so many bytes; returns whether it is sent along with an earlier one."""
        total = self._bytes.get(key, JOINED) + size
        fits = total <= JOINED
        self._bytes[key] = where(fits, total, size)
        return fits

    def clear(self) -> None:
        """Forgets them: what comes is of another update."""
        self._bytes.clear()


def is_collective(step: Step) -> bool:
    """Whether a step communicates (if there is anyone to communicate with)."""
    return bool(step.traits.collective)


def axes_of(step: Step) -> tuple[str, ...]:
    """Returns the mesh axes of a collective."""
    axes = step.params.get("axes") or step.params.get("axis_name")
    return tuple(axes) if isinstance(axes, tuple | list | frozenset) else (axes,)  # type: ignore[return-value]


def _records(step: Step, axis_sizes: Mapping[str, int]) -> Iterator[Collective]:
    if not is_collective(step):
        return
    axes = axes_of(step)
    processors = math.prod(axis_sizes[axis] for axis in axes)
    if processors == 1:
        return
    kind = step.traits.collective
    for operand in step.inputs:
        yield Collective(
            kind=kind,
            axes=axes,
            shape=operand.shape,
            dtype=str(operand.dtype),
            bytes=operand.bytes,
            wire_bytes=wire_bytes(kind, operand.bytes, processors),
            count=step.times,
            phase=_phase(step, kind),
            line=step.source.line,
            op=step.source.op or _op(step),
            scope=without_operations(step.scope),
            source=step.source,
            step=step,
        )


def _phase(step: Step, kind: str) -> str:
    """The sum of a gradient belongs to the backward pass, also if it waited until the update needed it."""
    if step.phase == "update" and kind in ("all-reduce", "reduce-scatter") and _is_gradient(step):
        return "backward"
    return step.phase


def _is_gradient(step: Step) -> bool:
    makers = [v.maker for v in step.inputs if v.maker is not None]
    while makers:
        maker = makers.pop()
        if maker.phase == "backward":
            return True
        if maker.traits.linear:  # a pending sum goes through it before it is summed
            makers += [v.maker for v in maker.inputs if v.maker is not None]
    return False


def _op(step: Step) -> str:
    """The operation whose result is communicated, where the line that needs it calls none of ours."""
    makers = [v.maker for v in step.inputs if v.maker is not None]
    return makers[0].source.op if makers else ""


def wire_bytes(kind: str, size: Number, processors: int) -> Number:
    """Returns the bytes that one processor sends in a ring, for an operand of so many bytes."""
    share = {
        "all-reduce": 2 * (processors - 1) / processors,
        "all-gather": processors - 1,
        "reduce-scatter": (processors - 1) / processors,
        "all-to-all": (processors - 1) / processors,
        "permute": 1,
    }
    return rounded(share[kind] * size)


def merged(records: Iterable[Collective]) -> list[tuple[Collective, int]]:
    """Joins records of the same collective of a line: they differ in how often they run."""
    counts: dict[tuple[Any, ...], list[Any]] = {}
    for c in records:
        counts.setdefault(c.looks, [c, 0])[1] += c.count
    return [(c, times) for c, times in counts.values()]
