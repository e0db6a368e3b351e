"""A report as text for a terminal."""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.table import Table

from ..cost.timing import Network
from ..printing.terminal import Render, shown
from ..printing.units import show_bytes, show_count, show_seconds
from ..reading.communication import merged
from .hosts import between_hosts

if TYPE_CHECKING:
    from ..cost.hardware import Hardware
    from ..cost.timing import Time
    from .report import Report

COLUMNS = ("collective", "axes", "operand", "times", "bytes sent", "phase", "op", "line")
NUMBERS = ("times", "bytes sent", "hidden")
_fitting = partial(shown, otherwise=140)


def as_text(report: "Report", render: Render = _fitting, hardware: "Hardware | None" = None) -> str:
    """Returns the collectives as a table, then what else is worth knowing.

    Args:
        report: what to show.
        render: how a table is drawn.
        hardware: with overlap, what part of the time of each collective is hidden there; None leaves that out.
    """
    table = Table(title=report.program, title_justify="left")
    shares = _hidden_shares(report, hardware) if report.overlap and hardware is not None else None
    for column in COLUMNS if shares is None else (*COLUMNS[:5], "hidden", *COLUMNS[5:]):
        table.add_column(column, justify="right" if column in NUMBERS else "left")
    for number, row in enumerate(rows(report)):
        table.add_row(*(row if shares is None else (*row[:5], f"{shares[number]:.0%}", *row[5:])))
    head = render(table if report.collectives else f"{report.program}\nno communication")
    return "\n".join([head, *summary(report)]) + "\n"


def rows(report: "Report") -> Iterator[tuple[str, ...]]:
    """Yields the collectives, those that are alike as one, as words for `COLUMNS`."""
    for c, times in merged(report.collectives):
        operand = f"{c.dtype}[{','.join(map(str, c.shape))}]"
        yield c.kind, "+".join(c.axes), operand, str(times), f"{c.wire_bytes * times:,}", c.phase, c.op, c.line


def _hidden_shares(report: "Report", hardware: "Hardware") -> list[float]:
    """Returns for each row what part of its time is hidden."""
    network = Network.of(hardware, report.setting.mesh)
    sums: dict[Any, list[float]] = {}
    for c, hidden in zip(report.collectives, report.hidden_times(network), strict=True):
        row = sums.setdefault(c.looks, [0.0, 0.0])
        row[0] += hidden
        row[1] += network.collective_time(c) * c.count
    return [hidden / total if total else 0.0 for hidden, total in sums.values()]


def summary(report: "Report") -> list[str]:
    """Returns what else is worth knowing, a line each."""
    memory = report.memory
    classes = ", ".join(f"{name} {show_bytes(n)}" for name, n in memory.items() if n and name != "peak")
    lines = [
        f"{report.wire_bytes:,} bytes sent by each processor",
        f"{show_count(report.flops)}FLOPs of matrix products on each processor",
        f"{show_bytes(memory['peak'])} of memory at the peak on each processor: {classes}",
    ]
    for d in report.duplicates[:5]:
        who = " and ".join(map(repr, d.axes))
        lines.append(
            f"done twice: {d.op or 'a product'} at {d.line}, {show_count(d.wasted)}FLOPs: no rule splits it over {who}"
        )
    for name, waste in report.padding.items():
        lines.append(f"padding: {name}:{waste['size']} is stored as {waste['stored']}, {waste['waste']:.0%} is waste")
    for r in report.replicated[:5]:
        lines.append(f"replicated: {r.name} {r.dims}, {show_bytes(r.bytes)} on all processors along {'+'.join(r.axes)}")
    if report.unused_rules:
        lines.append(f"rules not used by this program: {', '.join(report.unused_rules)}")
    return lines


def predicted(report: "Report", hardware: "Hardware") -> str:
    """Returns the predicted time of a call, and what it is spent on."""
    spent = report.time(hardware)
    parts = (("computing", spent.compute), ("memory", spent.memory), ("communication", spent.communication))
    shown = ", ".join(f"{name} {show_seconds(seconds)}" for name, seconds in parts)
    share = f"{report.utilization(hardware):.0%} of its peak FLOP/s"
    line = f"{show_seconds(spent.total)} a call predicted on {hardware.name}, {share}: {shown}, {_apart(report, spent)}"
    return "\n".join([line, *between_hosts(report, hardware)])


def _apart(report: "Report", spent: "Time") -> str:
    """Says what of the communication is exposed, and what is hidden behind computation."""
    if not report.overlap:
        return "all of it exposed"
    return f"{show_seconds(spent.exposed)} of it exposed and {show_seconds(spent.hidden)} hidden behind computation"


def speed(tokens: int, seconds: float) -> str:
    """Returns how many tokens a second that is."""
    return f"{tokens / seconds:,.0f} tokens/s: {tokens:,} in a call"
