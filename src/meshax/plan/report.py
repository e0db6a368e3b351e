"""What a program communicates, as a table a person can read."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from ..program import Program
from .walk import Collective, collectives_of


@dataclass(frozen=True)
class Report:
    """What a program does on one processor in one call."""

    program: str
    collectives: list[Collective]

    @property
    def wire_bytes(self) -> int:
        """The bytes that one processor sends in one call."""
        return sum(c.wire_bytes * c.count for c in self.collectives)

    def __str__(self) -> str:
        table = Table(title=self.program, title_justify="left")
        for column in ("collective", "axes", "operand", "times", "bytes sent", "phase", "op", "line"):
            table.add_column(column, justify="right" if column in ("times", "bytes sent") else "left")
        for c, times in merged(self.collectives):
            operand = f"{c.dtype}[{','.join(map(str, c.shape))}]"
            sent = f"{c.wire_bytes * times:,}"
            table.add_row(c.kind, "+".join(c.axes), operand, str(times), sent, c.phase, c.op, c.line)
        console = Console(width=140, color_system=None)
        with console.capture() as captured:
            console.print(table if self.collectives else f"{self.program}\nno communication")
        return captured.get().rstrip() + f"\n{self.wire_bytes:,} bytes sent by each processor\n"


def merged(records: Iterable[Collective]) -> list[tuple[Collective, int]]:
    """Joins records that differ only in how often they run."""
    counts: dict[tuple[Any, ...], list[Any]] = {}
    for c in records:
        key = (c.kind, c.axes, c.shape, c.dtype, c.phase, c.op, c.line)
        counts.setdefault(key, [c, 0])[1] += c.count
    return [(c, times) for c, times in counts.values()]


def explain(program: Program, *args: Any) -> Report:
    """Lists every collective of a program with its bytes and the line it comes from.

    Args:
        program: what `mx.spmd` made.
        *args: as for a call; tensors of `jax.ShapeDtypeStruct` do: nothing runs.
    """
    return Report(repr(program), collectives_of(program.jaxpr(*args), program.mesh.axes))
