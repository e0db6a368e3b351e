"""What a search for layouts found, as text for a terminal and as data."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..cost.hardware import Hardware
from ..printing.units import show_bytes, show_seconds

if TYPE_CHECKING:
    from .layout_search import Candidate


def as_text(candidates: "Sequence[Candidate]", hardware: Hardware, width: int | None = None) -> str:
    """Returns a table of the candidates of at most some width, then the reason for each."""
    from rich.table import Table

    from ..printing.terminal import fitted

    table = Table(title=f"layouts, the fastest first, as predicted for {hardware.name}", title_justify="left")
    for column in ("", "mesh", "layout", "a call", "memory", "bytes sent"):
        table.add_column(column, justify="left" if column in ("mesh", "layout") else "right", overflow="fold")
    for number, c in enumerate(candidates, 1):
        mesh = " ".join(f"{axis}:{size}" for axis, size in c.mesh.axes.items())
        rules = repr(c.layout).removeprefix("Layout(").removesuffix(")")
        table.add_row(str(number), mesh, rules, show_seconds(c.seconds), show_bytes(c.memory), show_bytes(c.wire_bytes))
    reasons = [f"{number}. {c.why}" for number, c in enumerate(candidates, 1)]
    return "\n".join([fitted(table, width), *reasons]) + "\n"


def as_dict(candidates: "Sequence[Candidate]", hardware: Hardware) -> dict[str, Any]:
    """Returns the candidates as plain data, each with a layout that can be typed in again."""
    return {"hardware": hardware.name, "candidates": [_one(c) for c in candidates]}


def _one(c: "Candidate") -> dict[str, Any]:
    roles = {"layout": c.layout.rules, "param_layout": c.layout.params, "optimizer_layout": c.layout.optimizer}
    typed = {name: " ".join(f"{dim}:{'+'.join(axes)}" for dim, axes in rules) for name, rules in roles.items()}
    costs = {"seconds": c.seconds, "memory": c.memory, "wire_bytes": c.wire_bytes, "why": c.why}
    return {"mesh": c.mesh.axes, **typed, **costs}
