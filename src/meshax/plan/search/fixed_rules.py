"""What a search for layouts is told: rules that must hold, and dims that stay unsplit."""

import itertools
from collections.abc import Mapping, Sequence

from ...errors import LayoutError, did_you_mean
from ...layout import Layout, RulesLike
from ...mesh import Mesh
from .graph import Graph

Assignment = dict[str, int]  # for each name a bit mask of mesh axes


def read_pins(pins: RulesLike | Layout | None, exclude: Sequence[str], graph: Graph) -> dict[str, tuple[str, ...]]:
    """Returns the dims whose axes are given; none for those that stay unsplit, as our own do (`_microbatches`)."""
    wanted = {} if pins is None else dict(pins.rules) if isinstance(pins, Layout) else pins
    if isinstance(wanted, Mapping):
        unsplit = [name for name, axes in wanted.items() if not axes]
        rules = Layout({name: axes for name, axes in wanted.items() if axes}).rules
    else:
        unsplit, rules = [], Layout(wanted).rules
    both = [name for name, _ in rules if name in exclude]
    if both:
        raise LayoutError(f"the dim {both[0]!r} is pinned and excluded.", fix="choose one of the two.")
    fixed = {**dict(rules), **dict.fromkeys([*unsplit, *exclude], ())}
    wrong = [name for name in fixed if name not in graph.sizes]
    if wrong:
        raise LayoutError(
            f"the program has no dim {wrong[0]!r} to pin or exclude.", fix=did_you_mean(wrong[0], graph.sizes)
        )
    conflicts = graph.conflicts()
    for (a, axes), (b, others) in itertools.combinations(fixed.items(), 2):
        if b in conflicts.get(a, ()) and (shared := [axis for axis in axes if axis in others]):
            raise LayoutError(
                f"the pins split {a!r} and {b!r} over {shared[0]!r}, and they meet in an operation.",
                rule="an axis splits at most one of the dims that meet in a tensor.",
                fix="pin one of them to another axis.",
            )
    return {**{name: () for name in graph.sizes if name.startswith("_")}, **fixed}


def masks_of(fixed: Mapping[str, Sequence[str]], mesh: Mesh) -> Assignment:
    """Returns rules as bit masks of the mesh's axes."""
    axes = list(mesh.axes)
    wrong = [(name, axis) for name, chosen in fixed.items() for axis in chosen if axis not in axes]
    if wrong:
        name, axis = wrong[0]
        raise LayoutError(
            f'the pin "{name}:{axis}" names no axis of the mesh.', values=repr(mesh), fix=did_you_mean(axis, axes)
        )
    return {name: sum(1 << axes.index(axis) for axis in chosen) for name, chosen in fixed.items()}
