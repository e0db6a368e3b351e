"""Choosing a layout: all legal ones, priced, the best traced for real.

Which dims may share a mesh axis follows from which never meet in an operation. Each axis is given every such set of
dims; all combinations are priced from one trace (`screen`), those that fit the memory are ranked, and the best are
traced under the layout itself, with and without splitting what is stored (ZeRO). What is returned are the real reports.
"""

import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import ArgumentError, LayoutError, did_you_mean
from ..layout import Layout, RulesLike
from ..mesh import Mesh
from ..program import spmd
from .graph import Graph
from .hardware import Hardware, find
from .report import Report
from .roles import role_variants, stored_tensors
from .screen import Screen
from .table import show_bytes, show_seconds

_MOST = 60_000  # combinations priced in one go
_TRACED = 12  # candidates traced for real
_VARIED = 3  # of them tried with what is stored split further
_REFUSED = 20  # candidates that may turn out not to be legal
_TOP = 10
_SLACK = 1.2  # the screen's memory is rougher than the report's

Assignment = dict[str, int]  # for each name a bit mask of mesh axes


@dataclass(frozen=True)
class Candidate:
    """A layout, what it costs, and why."""

    layout: Layout
    mesh: Mesh
    seconds: float
    memory: int
    wire_bytes: int
    why: str
    report: Report = field(repr=False, compare=False)


def auto_layout(
    fn: Callable[..., Any],
    mesh: Mesh | int,
    *args: Any,
    hardware: str | Hardware | None = None,
    memory: float | None = None,
    pins: RulesLike | None = None,
) -> list[Candidate]:
    """Finds layouts for a function of tensors, the best first.

    Args:
        fn: what `mx.spmd` would take.
        mesh: the processors; or their number, to have the shape of the mesh chosen too.
        *args: the function's arguments; tensors of `jax.ShapeDtypeStruct` do: nothing runs.
        hardware: what to price for: a name such as "h200", a description; by default this machine.
        memory: the bytes a processor may use; by default the hardware's, if one is named.
        pins: rules that must hold, as in a layout; `{"length": ""}` keeps a dim unsplit.

    Returns:
        At most ten candidates with `.layout .mesh .seconds .memory .wire_bytes .why`.
    """
    meshes = [mesh] if isinstance(mesh, Mesh) else list(_meshes(mesh))
    return search(fn, args, meshes, hardware=hardware, memory=memory, pins=pins)


def search(
    fn: Callable[..., Any],
    args: Sequence[Any],
    meshes: Sequence[Mesh] | None = None,
    *,
    processors: int | None = None,
    hardware: str | Hardware | None = None,
    memory: float | None = None,
    pins: RulesLike | None = None,
    exclude: Sequence[str] = (),
    donate: Sequence[int] = (),
) -> list[Candidate]:
    """Finds layouts as `auto_layout` does, over several meshes, or all of a number of processors."""
    machine = find(hardware)
    limit = memory if memory is not None else machine.memory if hardware is not None else math.inf
    if not limit > 0:
        raise ArgumentError(f"{memory!r} bytes is not a memory limit.", fix="give a positive number of bytes.")
    graph = Graph(fn, args, donate)
    fixed = _pinned(pins, exclude, graph)
    found: list[Candidate] = []
    for mesh in meshes or list(_meshes(processors or 1)):
        found += _Search(fn, args, donate, graph, mesh, machine, limit, _masks_of(fixed, mesh)).run()
    fitting = [c for c in found if c.memory <= limit]
    if not fitting:
        _raise_nothing_fits(found, limit)
    return sorted(fitting, key=_rank)[:_TOP]


def _rank(c: Candidate) -> tuple[float, int, int]:
    """Faster is better; of layouts that take equally long, the one that needs less memory, then the shorter."""
    return float(f"{c.seconds:.3g}"), c.memory, len(list(c.layout.all_rules()))


def _raise_nothing_fits(found: list[Candidate], limit: float) -> None:
    closest = min(found, key=lambda c: c.memory)
    raise LayoutError(
        f"no layout fits {show_bytes(limit)} on each processor.",
        values=f"the closest is {closest.layout} on {closest.mesh}: {show_bytes(closest.memory)}, "
        f"{show_bytes(closest.memory - limit)} too much",
        rule="parameters, gradients, optimizer state, activations and temporaries of a step must fit at once.",
        fix="use more processors, a smaller batch, mx.remat around the layers, or mx.param on what is stored.",
    )


def _meshes(processors: int) -> Iterator[Mesh]:
    """Iterates over the shapes that a number of processors can have, in one axis or two."""
    if isinstance(processors, bool) or not isinstance(processors, int) or processors < 1:
        raise ArgumentError(
            f"{processors!r} is neither a mesh nor a number of processors.", fix='pass mx.Mesh("data:2 model:4"), or 8.'
        )
    for rows in range(1, processors + 1):
        if processors % rows == 0:
            yield Mesh(f"data:{rows} model:{processors // rows}", abstract=True)


def _pinned(pins: RulesLike | None, exclude: Sequence[str], graph: Graph) -> dict[str, tuple[str, ...]]:
    """Returns the dims whose axes are given; none for those that stay unsplit."""
    given = {} if pins is None else pins
    if isinstance(given, Mapping):
        unsplit = [name for name, axes in given.items() if not axes]
        rules = Layout({name: axes for name, axes in given.items() if axes}).rules
    else:
        unsplit, rules = [], Layout(given).rules
    fixed = {**dict(rules), **dict.fromkeys([*unsplit, *exclude], ())}
    wrong = [name for name in fixed if name not in graph.sizes]
    if wrong:
        raise LayoutError(
            f"the program has no dim {wrong[0]!r} to pin or exclude.", fix=did_you_mean(wrong[0], graph.sizes)
        )
    return fixed


def _masks_of(fixed: Mapping[str, Sequence[str]], mesh: Mesh) -> Assignment:
    axes = list(mesh.axes)
    wrong = [(name, axis) for name, given in fixed.items() for axis in given if axis not in axes]
    if wrong:
        name, axis = wrong[0]
        raise LayoutError(
            f'the pin "{name}:{axis}" names no axis of the mesh.', values=repr(mesh), fix=did_you_mean(axis, axes)
        )
    return {name: sum(1 << axes.index(axis) for axis in given) for name, given in fixed.items()}


class _Search:
    """The search on one mesh."""

    def __init__(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any],
        donate: Sequence[int],
        graph: Graph,
        mesh: Mesh,
        machine: Hardware,
        limit: float,
        fixed: Assignment,
    ):
        self.fn, self.args, self.donate, self.graph = fn, args, donate, graph
        self.mesh, self.machine, self.limit, self.fixed = mesh, machine, limit, fixed
        self.axes = list(mesh.axes)
        self.conflicts = graph.conflicts()
        self.names = sorted(graph.sizes)
        self.stored = stored_tensors(graph.arguments)

    def run(self) -> list[Candidate]:
        """Prices all combinations, and traces the best."""
        every = self._combinations()
        reports: dict[Layout, Report] = {}
        for order, wanted in self._orders(self._screen(every)):
            for i in order[: wanted + _REFUSED]:
                wanted -= self._trace(self._layout(every[i]), reports)
                if wanted <= 0:
                    break
        quickest = sorted(reports, key=lambda layout: reports[layout].seconds(self.machine))[:_VARIED]
        smallest = sorted(reports, key=lambda layout: reports[layout].memory["peak"])[:1]
        for layout in dict.fromkeys([*quickest, *smallest]):
            for variant in role_variants(layout, self.mesh, self.stored, self.fixed):
                self._trace(variant, reports)
        reasons = self._reasons(reports)
        return [
            Candidate(layout, self.mesh, r.seconds(self.machine), r.memory["peak"], r.wire_bytes, reasons[layout], r)
            for layout, r in reports.items()
        ]

    def _trace(self, layout: Layout, reports: dict[Layout, Report]) -> bool:
        """Traces under a layout; returns whether there is a report of it then."""
        if layout not in reports:
            try:
                program = spmd(self.fn, self.mesh, layout, self.donate)
                reports[layout] = program.explain(*self.args)  # type: ignore[attr-defined]
            except LayoutError:
                return False  # dims meet in a way that the named trace did not show: not a candidate
        return True

    def _combinations(self) -> list[Assignment]:
        """Returns all ways to give each axis a set of dims that never meet."""
        choices = [self._sets(axis) for axis in range(len(self.axes))]
        if math.prod(map(len, choices)) > _MOST:
            keep = int(_MOST ** (1 / len(choices)))
            choices = [self._shortlist(axis, sets, keep) for axis, sets in enumerate(choices)]
        made = []
        mirrored = self._interchangeable_axes()
        for combination in itertools.product(*choices):
            if any(_order(combination[i]) > _order(combination[j]) for i, j in mirrored):
                continue
            assignment = dict(self.fixed)
            for axis, names in enumerate(combination):
                for name in names:
                    assignment[name] = assignment.get(name, 0) | 1 << axis
            made.append(assignment)
        return made

    def _interchangeable_axes(self) -> list[tuple[int, int]]:
        """Returns pairs of axes whose exchange changes nothing: of two mirrored layouts, one is enough."""
        pinned = functools.reduce(operator.or_, self.fixed.values(), 0)
        kinds = [
            (self.mesh.axes[axis], self.machine.link([axis], self.mesh.axes), i if pinned >> i & 1 else -1)
            for i, axis in enumerate(self.axes)
        ]
        return [(i, j) for i, j in itertools.combinations(range(len(kinds)), 2) if kinds[i] == kinds[j]]

    def _sets(self, axis: int) -> list[frozenset[str]]:
        """Returns the sets of dims that may be split over an axis together."""
        if self.mesh.axes[self.axes[axis]] == 1:
            return [frozenset()]
        pinned = [name for name, mask in self.fixed.items() if mask >> axis & 1]
        barred = set(self.fixed).union(*(self.conflicts.get(name, set()) for name in pinned))
        free = [n for n in self.names if n not in barred and self.graph.sizes[n] > 1]
        sets: list[frozenset[str]] = [frozenset()]
        for name in free:
            sets += [s | {name} for s in sets if not s & self.conflicts[name]][: _MOST - len(sets)]
        return sets

    def _shortlist(self, axis: int, sets: list[frozenset[str]], keep: int) -> list[frozenset[str]]:
        """Returns the sets that are best alone: too many to try all combinations of them."""
        alone = [{**self.fixed, **{n: self.fixed.get(n, 0) | 1 << axis for n in names}} for names in sets]
        order = np.argsort(self._screen(alone).seconds, kind="stable")
        return [sets[i] for i in order[:keep]]

    def _screen(self, assignments: Sequence[Assignment]) -> Screen:
        masks = {name: np.array([a.get(name, 0) for a in assignments], int) for name in self.names}
        return Screen(self.graph, self.mesh.axes, self.machine, masks)

    def _orders(self, screen: Screen) -> Iterator[tuple[list[int], int]]:
        """Iterates over rankings of the combinations, each with how many of its first are worth tracing.

        Those are the fastest that fit, the fastest that would fit with what is stored split over all processors, and
        the smallest.
        """
        limit = self.limit * _SLACK
        at_least = screen.memory - screen.stored * (1 - 1 / self.mesh.size)
        fastest = np.argsort(screen.seconds, kind="stable")
        fitting = [int(i) for i in fastest if screen.memory[i] <= limit]
        yield fitting, _TRACED
        yield [int(i) for i in fastest if at_least[i] <= limit < screen.memory[i]], _VARIED
        yield [int(i) for i in np.argsort(screen.memory, kind="stable")], 2 if fitting else 5

    def _layout(self, assignment: Assignment, **roles: Any) -> Layout:
        rules = {
            name: tuple(axis for i, axis in enumerate(self.axes) if mask >> i & 1)
            for name, mask in sorted(assignment.items())
            if mask
        }
        return Layout(rules, **roles)

    def _reasons(self, reports: dict[Layout, Report]) -> dict[Layout, str]:
        """Returns for each layout what each rule of it saves and costs."""
        plain = list(dict.fromkeys(Layout(dict(layout.rules)) for layout in reports))
        rows: list[Assignment] = []
        for layout in plain:
            masks = _masks_of(dict(layout.rules), self.mesh)
            rows += [masks, *({n: m for n, m in masks.items() if n != left_out} for left_out, _ in layout.rules)]
        screen = self._screen(rows or [{}])
        texts, at = {}, 0
        for layout in plain:
            parts = []
            for offset, (name, axes) in enumerate(layout.rules, start=1):
                saved = [float(f[at + offset] - f[at]) for f in (screen.seconds, screen.memory)]
                parts.append(f"{name}:{'+'.join(axes)} {_saves_and_costs(*saved)}")
            texts[layout] = "; ".join(parts) or "nothing is split: nothing is sent"
            at += 1 + len(layout.rules)
        return {layout: self._why(layout, texts, reports) for layout in reports}

    def _why(self, layout: Layout, texts: dict[Layout, str], reports: dict[Layout, Report]) -> str:
        base = Layout(dict(layout.rules))
        if base == layout or base not in reports:
            return texts[base]
        before, after = reports[base], reports[layout]
        saved = before.seconds(self.machine) - after.seconds(self.machine), before.memory["peak"] - after.memory["peak"]
        role, rules = ("params", layout.params) if layout.params else ("optimizer", layout.optimizer)
        rule = " ".join(f"{name}:{'+'.join(axes)}" for name, axes in rules)
        return f"{texts[base]}; {role} {rule} {_saves_and_costs(*saved)}"


def _order(names: frozenset[str]) -> tuple[bool, list[str]]:
    """Orders the dims of interchangeable axes: by name, and axes without any last."""
    return not names, sorted(names)


def _saves_and_costs(seconds: float, memory: float) -> str:
    """Says what a rule changes: `saves 1.2 GB and costs 3 ms`."""
    amounts = [(memory, show_bytes(abs(memory)), 1.0), (seconds, show_seconds(abs(seconds)), 1e-9)]
    saves = [text for amount, text, least in amounts if amount >= least]
    costs = [text for amount, text, least in amounts if amount <= -least]
    parts = [f"{verb} {' and '.join(some)}" for verb, some in (("saves", saves), ("costs", costs)) if some]
    return " and ".join(parts) or "changes nothing"
