"""A plan as text for a terminal."""

from functools import partial
from typing import TYPE_CHECKING

from rich.table import Table

from ..explain.text import predicted, speed
from ..printing.terminal import Render, shown
from ..printing.units import show_bytes, show_seconds
from .schedule import ARITHMETIC, NOTHING, PRODUCTS

if TYPE_CHECKING:
    from .planning import Plan

_fitting = partial(shown, otherwise=120)


def as_text(plan: "Plan", render: Render = _fitting) -> str:
    """Returns whether it fits, memory and collectives as the compiler has them beside ours, and the predicted time."""
    parts = [plan.report.program, _verdict(plan), render(_memory(plan))]
    if plan.memory is not None:
        some = [*plan.report.collectives, *plan.collectives]
        parts.append(render(_collectives(plan)) if some else "no collectives")
    return "\n".join([*parts, *plan.differences, *_beside(plan), *_speed(plan)]) + "\n"


def _verdict(plan: "Plan") -> str:
    limit, name = plan.hardware.memory, plan.hardware.name
    if plan.memory is None:
        missing = f": {show_bytes(plan.missing)} are missing" if plan.missing else ""
        refusal = f"The compiler says: {plan.refusal}"
        return f"does NOT fit the {show_bytes(limit)} of a {name} processor{missing}. {refusal}"
    verb, missing = ("fits", "") if plan.fits else ("does NOT fit", f", {show_bytes(plan.missing)} are missing")
    share = f"{show_bytes(plan.memory.total)} of the {show_bytes(limit)} of a {name} processor"
    return f"{verb}: {share}, {plan.memory.total / limit:.0%}{missing}"


def _memory(plan: "Plan") -> Table:
    table = Table(title="memory on each processor", title_justify="left")
    for column in ("", "compiler", "our estimate", "of which"):
        table.add_column(column, justify="right" if column in ("compiler", "our estimate") else "left")
    own, theirs = plan.estimate, plan.memory
    classes = {
        "arguments": ("parameters", "optimizer", "inputs"),
        "temporaries": ("activations", "gradients", "temporaries"),
    }
    new_results = theirs.results - theirs.shared if theirs else 0
    compiled = {}
    if theirs:
        compiled = {"arguments": theirs.arguments, "temporaries": theirs.temporaries, "results": new_results}
    for name in ("arguments", "temporaries", "results"):
        parts = [f"{part} {show_bytes(plan.report.memory[part])}" for part in classes.get(name, ())]
        table.add_row(name, show_bytes(compiled[name]) if theirs else "-", show_bytes(own[name]), ", ".join(parts))
    table.add_row("program", show_bytes(theirs.code) if theirs else "-", "-", "")
    table.add_row("total", show_bytes(theirs.total) if theirs else "-", show_bytes(own["total"]), "")
    return table


def _collectives(plan: "Plan") -> Table:
    table = Table(title="collectives of one call, on each processor", title_justify="left")
    for column in ("", "ours: tensors", "bytes", "compiled: operations", "tensors", "bytes"):
        table.add_column(column, justify="right" if column else "left")
    ours, compiled = plan.ours, plan.compiled
    for kind in ours:
        a, b = ours[kind], compiled[kind]
        if a.tensors or b.tensors:
            table.add_row(
                kind, f"{a.tensors:,}", show_bytes(a.bytes), f"{b.operations:,}", f"{b.tensors:,}", show_bytes(b.bytes)
            )
    return table


def _beside(plan: "Plan") -> list[str]:
    hidden, partly, exposed = map(plan.scheduled, (PRODUCTS, ARITHMETIC, NOTHING))
    if not (hidden.operations or partly.operations or plan.report.overlap):
        return []
    others = f"{partly.operations:,}, {show_bytes(partly.bytes)}, beside other arithmetic alone, "
    return [
        f"in the compiler's schedule {hidden.operations:,} operations, {show_bytes(hidden.bytes)}, are hidden behind "
        f"products, {others if partly.operations else ''}and {exposed.operations:,}, {show_bytes(exposed.bytes)}, "
        "exposed."
    ]


def _speed(plan: "Plan") -> list[str]:
    lines, seconds = [predicted(plan.report, plan.hardware)], plan.report.seconds(plan.hardware)
    if plan.tokens and seconds:
        lines.append(speed(plan.tokens, seconds))
    took = ", ".join(f"{name} {show_seconds(value)}" for name, value in plan.took.items() if value >= 0.05)
    return [*lines, f"took: {took}"] if took else lines
