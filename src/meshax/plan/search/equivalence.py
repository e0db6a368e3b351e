"""Which layouts are the same: those that split the same tensors alike, whatever their rules and axes are called.

A rule on an axis of one processor splits nothing, nor does one for a dim that no tensor has; and without any split, the
shape of the mesh does not matter.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..explain.report import Report

if TYPE_CHECKING:
    from .layout_search import Candidate


def splits_of(report: Report) -> dict[str, frozenset[Any]]:
    """Returns for each mesh axis what it splits: the shapes, their roles, and which of their dims."""
    splits: dict[str, set[Any]] = {}
    for (shape, role), placement in report.setting.placements.items():
        for position, axes in enumerate(placement):
            for axis in axes:
                if report.axis_sizes[axis] > 1:
                    splits.setdefault(axis, set()).add((shape, role, position))
    return {axis: frozenset(places) for axis, places in splits.items()}


def idle_axes(report: Report) -> list[str]:
    """Returns the axes over which nothing is split, though they have several processors."""
    used = splits_of(report)
    return [axis for axis, size in report.axis_sizes.items() if size > 1 and axis not in used]


def distinct(candidates: "Iterable[Candidate]") -> "list[Candidate]":
    """Returns the first of those that are the same."""
    firsts: dict[Any, Candidate] = {}
    for c in candidates:
        sizes: dict[frozenset[Any], int] = {}
        for axis, places in splits_of(c.report).items():  # axes that split the same are one larger axis
            sizes[places] = sizes.get(places, 1) * c.mesh.axes[axis]
        costs = (f"{c.seconds:.6g}", c.memory, c.wire_bytes)  # axes of one size may have links of other speeds
        firsts.setdefault((frozenset(sizes.items()), costs), c)
    return list(firsts.values())
