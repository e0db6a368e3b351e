"""Why a layout is good: what each rule of it saves and costs, beside the same layout without that rule.

Both layouts are traced: what is said is what `explain` gives with the rule and without it.
"""

from collections.abc import Callable
from typing import Any

from ...layout import Axes, Layout
from ..cost.hardware import Hardware
from ..explain.report import Report
from ..printing.units import show_bytes, show_seconds


def reason_for(layout: Layout, machine: Hardware, report_of: Callable[[Layout], Report | None]) -> str:
    """Returns what each rule of a layout saves and costs.

    Args:
        layout: with rules for roles or without.
        machine: what times are for.
        report_of: traces under a layout; None if it is not legal.
    """
    roles: dict[str, Any] = {"params": dict(layout.params), "optimizer": dict(layout.optimizer), "rings": layout.rings}
    without = [
        (_show(name, axes), Layout({n: a for n, a in layout.rules if n != name}, **roles))
        for name, axes in layout.rules
    ]
    if layout.params or layout.optimizer:
        role, rules = ("params", layout.params) if layout.params else ("optimizer", layout.optimizer)
        shown = " ".join(_show(name, axes) for name, axes in rules)
        without.append((f"{role} {shown}", Layout(dict(layout.rules))))
    here = report_of(layout)
    parts = [f"{rule} {_saves_and_costs(here, report_of(other), machine)}" for rule, other in without]
    return "; ".join(parts) or "nothing is split: nothing is sent"


def _show(name: str, axes: Axes) -> str:
    return f"{name}:{'+'.join(axes)}"


def _saves_and_costs(here: Report | None, other: Report | None, machine: Hardware) -> str:
    """Says what a rule changes: `saves 1.2 GB and costs 3 ms`."""
    if here is None or other is None:
        return "cannot be left out alone"
    seconds, memory = other.seconds(machine) - here.seconds(machine), other.memory["peak"] - here.memory["peak"]
    amounts = [(memory, show_bytes(abs(memory)), 1.0), (seconds, show_seconds(abs(seconds)), 1e-9)]
    saves = [text for amount, text, least in amounts if amount >= least]
    costs = [text for amount, text, least in amounts if amount <= -least]
    parts = [f"{verb} {' and '.join(some)}" for verb, some in (("saves", saves), ("costs", costs)) if some]
    return " and ".join(parts) or "changes nothing"
