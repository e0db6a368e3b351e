"""Why a layout is good: what each rule of it saves and costs, beside the same layout without that rule."""

from collections.abc import Callable, Mapping, Sequence

from ..layout import Layout
from .hardware import Hardware
from .report import Report
from .screen import Screen
from .table import show_bytes, show_seconds


def reasons_for(
    reports: Mapping[Layout, Report], machine: Hardware, price: Callable[[Sequence[Layout]], Screen]
) -> dict[Layout, str]:
    """Returns for each layout what each rule of it saves and costs.

    Args:
        reports: of the layouts, with rules for roles or without.
        machine: what times are for.
        price: prices layouts without rules for roles, all at once.
    """
    plain = list(dict.fromkeys(_without_roles(layout) for layout in reports))
    rows = [row for layout in plain for row in (layout, *(_without(layout, name) for name, _ in layout.rules))]
    screen = price(rows or [Layout()])
    texts, at = {}, 0
    for layout in plain:
        parts = []
        for offset, (name, axes) in enumerate(layout.rules, start=1):
            saved = [float(f[at + offset] - f[at]) for f in (screen.seconds, screen.memory)]
            parts.append(f"{name}:{'+'.join(axes)} {_saves_and_costs(*saved)}")
        texts[layout] = "; ".join(parts) or "nothing is split: nothing is sent"
        at += 1 + len(layout.rules)
    return {layout: _why(layout, texts, reports, machine) for layout in reports}


def _without_roles(layout: Layout) -> Layout:
    return Layout(dict(layout.rules))


def _without(layout: Layout, name: str) -> Layout:
    return Layout({dim: axes for dim, axes in layout.rules if dim != name})


def _why(layout: Layout, texts: Mapping[Layout, str], reports: Mapping[Layout, Report], machine: Hardware) -> str:
    base = _without_roles(layout)
    if base == layout or base not in reports:
        return texts[base]
    before, after = reports[base], reports[layout]
    saved = before.seconds(machine) - after.seconds(machine), before.memory["peak"] - after.memory["peak"]
    role, rules = ("params", layout.params) if layout.params else ("optimizer", layout.optimizer)
    rule = " ".join(f"{name}:{'+'.join(axes)}" for name, axes in rules)
    return f"{texts[base]}; {role} {rule} {_saves_and_costs(*saved)}"


def _saves_and_costs(seconds: float, memory: float) -> str:
    """Says what a rule changes: `saves 1.2 GB and costs 3 ms`."""
    amounts = [(memory, show_bytes(abs(memory)), 1.0), (seconds, show_seconds(abs(seconds)), 1e-9)]
    saves = [text for amount, text, least in amounts if amount >= least]
    costs = [text for amount, text, least in amounts if amount <= -least]
    parts = [f"{verb} {' and '.join(some)}" for verb, some in (("saves", saves), ("costs", costs)) if some]
    return " and ".join(parts) or "changes nothing"
