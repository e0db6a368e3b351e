"""Which axes of a mesh go from host to host, what that costs, and whether others had better go there."""

import itertools
from typing import TYPE_CHECKING

from ..cost.hardware import Hardware
from ..cost.timing import Network
from ..printing.units import show_seconds

if TYPE_CHECKING:
    from .report import Report

_WORTH = 0.8  # of the time of communication: an order that takes less is worth a word
_NOTICED = 0.01  # of the time of a call: less is not


def between_hosts(report: "Report", hardware: Hardware) -> list[str]:
    """Returns what is sent from host to host, a line, and a warning if other axes had better go there.

    Nothing, if all processors are on one host.
    """
    mesh = report.setting.mesh
    network = Network.of(hardware, mesh)
    if not network.crossing:
        return []
    seconds = sum(
        network.collective_time(c) * c.count for c in report.collectives if set(c.axes) & set(network.crossing)
    )
    along = " and ".join(f"{axis} ({network.hosts[axis]} hosts)" for axis in network.crossing)
    lines = [f"across hosts: {along}; {show_seconds(seconds)} of communication a call goes over these"]
    order, best = min(
        ((order, report.communication_time(Network.of(hardware, mesh, order))) for order in _orders(report)),
        key=lambda pair: pair[1],
    )
    now, total = report.communication_time(network), report.time(hardware).total
    if best < _WORTH * now and now - best > _NOTICED * total:
        there = Network.of(hardware, mesh, order).crossing
        talkative = [axis for axis in network.crossing if axis not in there] or network.crossing
        axes = " ".join(f"{axis}:{mesh.axes[axis]}" for axis in order)
        lines.append(
            f"warning: {_dims(report, talkative)} over {'+'.join(talkative)} talk from host to host, "
            f"{show_seconds(now)} of communication a call; if {'+'.join(there)} did instead, {show_seconds(best)}: "
            f'mesh "{axes}", whose last axes stay inside a host, or mx.Mesh(..., across="{"+".join(there)}")'
        )
    return lines


def reason_inside(report: "Report", hardware: Hardware) -> list[str]:
    """Returns which axes stay inside a host, and what it would cost if they went from host to host."""
    mesh = report.setting.mesh
    network = Network.of(hardware, mesh)
    now, reasons = report.communication_time(network), []
    inside = [axis for axis, size in mesh.axes.items() if size > 1 and axis not in network.crossing]
    for axis in inside if network.crossing else ():
        order = (axis, *(other for other in mesh.order if other != axis))
        there = report.communication_time(Network.of(hardware, mesh, order))
        if there * _WORTH > now:
            reasons.append(
                f"{axis} stays inside a host: from host to host, communication would take {show_seconds(there)} a call "
                f"instead of {show_seconds(now)}"
            )
    return reasons


def _orders(report: "Report") -> list[tuple[str, ...]]:
    """Returns the orders that the axes can have; those of one processor do not matter."""
    mesh = report.setting.mesh
    alone = [axis for axis in mesh.order if mesh.axes[axis] == 1]
    return [(*some, *alone) for some in itertools.permutations(axis for axis in mesh.order if mesh.axes[axis] > 1)]


def _dims(report: "Report", axes: list[str]) -> str:
    names = dict.fromkeys(dim for dim, split in report.setting.layout.all_rules() if set(split) & set(axes))
    return ", ".join(names) or "nothing"
