"""Splitting what is stored further than what is computed (ZeRO): which rules for parameters and optimizer state pay.

A rule of a role changes how a tensor lies between two uses, and so how many bytes are stored. These are counted for
every choice of one or two dims and of axes; the choice that stores least is worth tracing, for each set of axes.
"""

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence

from ...layout import Axes, Layout, block_size
from ...mesh import Mesh
from ...tensors import Tensor

_Rules = Mapping[str, Axes]


def stored_tensors(arguments: Sequence[object]) -> list[Tensor]:
    """Returns the arguments that have a role: parameters, and the optimizer's state."""
    return [x for x in arguments if getattr(x, "role", None) is not None]  # type: ignore[misc]


def role_variants(layout: Layout, mesh: Mesh, stored: Sequence[Tensor], barred: Collection[str]) -> Iterator[Layout]:
    """Iterates over a layout with what is stored split further, over each set of axes, the largest set first.

    Args:
        layout: without rules for roles.
        mesh: the processors.
        stored: parameters and optimizer state, as they are given to the program.
        barred: dims that must not be split any further.
    """
    axes = [axis for axis, size in mesh.axes.items() if size > 1]
    names = sorted({d.name for x in stored for d in x.dims} - set(barred))
    sets = [chosen for n in range(len(axes), 0, -1) for chosen in itertools.combinations(axes, n)]
    single: list[_Rules] = [{name: chosen} for name in names for chosen in sets]
    double: list[_Rules] = [{**a, **b} for a, b in itertools.combinations(single, 2) if a.keys() != b.keys()]
    rules = dict(layout.rules)
    best: dict[frozenset[str], tuple[tuple[int, int, int], _Rules]] = {}
    as_it_is = _bytes(stored, rules, {}, mesh) or 0
    for number, added in enumerate([*single, *double]):
        size = _bytes(stored, rules, added, mesh)
        if size is not None and size < as_it_is:
            key = frozenset(itertools.chain(*added.values()))
            rank = (size, len(added), number)
            best[key] = min(best.get(key, (rank, added)), (rank, added), key=lambda pair: pair[0])
    has_state = any(x.role == "optimizer" for x in stored)
    for _, (_, added) in sorted(best.items(), key=lambda item: -len(item[0])):
        yield Layout(rules, params=added, optimizer=added)
        if has_state:
            yield Layout(rules, optimizer=added)


def _bytes(stored: Sequence[Tensor], rules: _Rules, added: _Rules, mesh: Mesh) -> int | None:
    """Returns what one processor stores, or None if two dims of a tensor would be split over one axis."""
    total = 0
    for x in stored:
        placement = [rules.get(d.name, ()) + added.get(d.name, ()) for d in x.dims]
        used = list(itertools.chain(*placement))
        if len(set(used)) != len(used):
            return None
        sizes = [block_size(d.size, mesh.count(axes)) for d, axes in zip(x.dims, placement, strict=True)]
        total += math.prod(sizes) * x.dtype.itemsize
    return total
