"""Choosing a layout: all legal ones, priced, the best traced for real.

Which dims may share a mesh axis follows from which never meet in an operation. Each axis is given every such set of
dims; all combinations are priced from one trace (`prices`), those that fit the memory are ranked, and the best are
traced under the layout itself, with and without splitting what is stored (ZeRO). What is returned are the real reports.
"""

import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...checking.slices import collecting_later
from ...errors import ArgumentError, LayoutError
from ...layout import Layout, RulesLike
from ...mesh import Mesh
from ...program import spmd
from ..cost.hardware import Hardware, find, parse_bytes
from ..cost.processors import described
from ..cost.timing import Network, kernel_time
from ..explain.hosts import reason_inside
from ..explain.report import Report
from ..printing.units import show_bytes
from .equivalence import distinct, idle_axes
from .fixed_rules import Assignment, masks_of, read_pins
from .graph import Graph
from .named_layouts import NAMES, find_layout
from .prices import Prices
from .reasons import reason_for
from .roles import role_variants, stored_tensors

_MOST = 60_000  # combinations priced in one go
_TRACED = 8  # candidates traced for real
_VARIED = 3  # of them tried with what is stored split in every way
_REFUSED = 20  # candidates that may turn out not to be legal
_TOP = 10
_SLACK = 1.2  # the prices' memory is rougher than the report's
_TRUST = 0.7  # and so are their seconds


@dataclass(frozen=True)
class Candidate:
    """A layout, what it costs, and why."""

    layout: Layout
    mesh: Mesh
    seconds: float
    memory: int
    wire_bytes: int
    report: Report = field(repr=False, compare=False)
    reasons: Callable[[], str] = field(repr=False, compare=False)

    @functools.cached_property
    def why(self) -> str:
        """What each rule saves and costs; the layouts without it are traced when somebody asks."""
        with collecting_later():
            return self.reasons()


def auto_layout(
    fn: Callable[..., Any],
    mesh: Mesh | int,
    *args: Any,
    hardware: str | Hardware | None = None,
    memory: float | str | None = None,
    pins: RulesLike | Layout | None = None,
) -> list[Candidate]:
    """Finds layouts for a function of tensors, the best first.

    Args:
        fn: what `mx.spmd` would take.
        mesh: the processors; or their number, to have the shape of the mesh chosen too.
        *args: the function's arguments; tensors of `jax.ShapeDtypeStruct` do: nothing runs.
        hardware: what to price for: a name such as "h200", a description; by default this machine.
        memory: the bytes a processor may use, or "80GB"; by default the hardware's, if one is named.
        pins: rules that must hold, as in a layout; `{"length": ""}` keeps a dim unsplit.

    Returns:
        At most ten candidates with `.layout .mesh .seconds .memory .wire_bytes .why`.
    """
    where: dict[str, Any] = {"meshes": [mesh]} if isinstance(mesh, Mesh) else {"processors": mesh}
    return search(fn, args, **where, hardware=hardware, memory=memory, pins=pins)


def search(
    fn: Callable[..., Any],
    args: Sequence[Any],
    meshes: Sequence[Mesh] | None = None,
    *,
    processors: int = 1,
    hardware: str | Hardware | None = None,
    memory: float | str | None = None,
    pins: RulesLike | Layout | None = None,
    exclude: Sequence[str] = (),
    donate: Sequence[int] = (),
    progress: Callable[[str], None] = lambda text: None,
) -> list[Candidate]:
    """Finds layouts as `auto_layout` does, over several meshes, or all shapes of a number of processors."""
    machine = find(hardware)
    memory = parse_bytes(memory) if isinstance(memory, str) else memory
    limit = memory if memory is not None else machine.memory if hardware is not None else math.inf
    if not limit > 0:
        raise ArgumentError(f"{memory!r} bytes is not a memory limit.", fix="give a positive number of bytes.")
    graph = Graph(fn, args, donate)
    fixed = read_pins(pins, exclude, graph)
    shapes = [described(mesh, machine) for mesh in (_meshes(processors) if meshes is None else meshes)]
    every = [
        _Search(fn, args, donate, graph, mesh, machine, limit, masks_of(fixed, mesh), all_shapes=meshes is None)
        for mesh in shapes
    ]
    traced: list[Candidate] = []
    best: list[Candidate] = []
    with collecting_later():
        for one in sorted(every, key=lambda one: one.promise):
            progress(f"searching: {one.mesh}, {len(traced)} layouts traced")
            traced += one.run(best[-1].seconds if len(best) == _TOP else math.inf)
            best = distinct(sorted((c for c in traced if c.memory <= limit), key=_rank))[:_TOP]
        if not traced:
            every[0].explain_pins()  # raises: where something is refused, the pins alone are tried too
        if not best:
            _raise_nothing_fits(traced, limit)
    searches = {one.mesh: one for one in every}
    first = best[0]
    return [
        replace(c, reasons=functools.partial(searches[c.mesh].why, c.layout, is_best=c is first and len(best) > 1))
        for c in best
    ]


def _rank(c: Candidate) -> tuple[float, ...]:
    """Faster is better; of layouts that take equally long, the one that needs less memory, then the shorter.

    Equal is what differs in the fourth digit.
    """
    length = sum(len(axes) for _, axes in c.layout.all_rules())
    return float(f"{c.seconds:.3g}"), float(f"{c.memory:.3g}"), length, c.seconds


def _raise_nothing_fits(traced: list[Candidate], limit: float) -> None:
    closest = min(traced, key=lambda c: c.memory)
    raise LayoutError(
        f"no layout fits {show_bytes(limit)} on each processor.",
        values=f"the closest tried is {closest.layout} on {closest.mesh}: {show_bytes(closest.memory)}, "
        f"{show_bytes(closest.memory - limit)} too much",
        rule="parameters, gradients, optimizer state, activations and temporaries of a step must fit at once.",
        fix="use more processors, a smaller batch, mx.remat around the layers, or mx.param on what is stored.",
    )


def _meshes(processors: int) -> Iterator[Mesh]:
    """Iterates over the shapes that a number of processors can have, in one axis or two."""
    if isinstance(processors, bool) or not isinstance(processors, int | np.integer) or processors < 1:
        raise ArgumentError(
            f"{processors!r} is neither a mesh nor a number of processors.", fix='pass mx.Mesh("data:2 model:4"), or 8.'
        )
    for rows in range(1, processors + 1):
        if processors % rows == 0:
            yield Mesh(f"data:{rows} model:{processors // rows}", abstract=True)


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
        all_shapes: bool,
    ):
        self.fn, self.args, self.donate, self.graph = fn, args, donate, graph
        self.mesh, self.machine, self.limit, self.fixed = mesh, machine, limit, fixed
        self.axes, self.all_shapes, self.network = list(mesh.axes), all_shapes, Network.of(machine, mesh)
        self.conflicts = graph.conflicts()
        self.names = sorted(graph.sizes)
        self.stored = stored_tensors(graph.arguments)
        self.reports: dict[Layout, Report] = {}
        self.has_refused = False
        self.every = self._combinations()
        self.prices = self._price(self.every)
        could_fit = self.prices.seconds[self._smallest_memory() <= limit * _SLACK]
        self.promise = float(min(could_fit, default=math.inf))  # seconds, of the best that may fit

    def run(self, bar: float = math.inf) -> list[Candidate]:
        """Traces the best, as far as they may take less than `bar` seconds."""
        reports = self.reports
        for layout in self._named() if self.promise * _TRUST <= bar else ():
            self._trace(layout, reports)
        for order, wanted in self._orders():
            for i in order[: wanted + _REFUSED]:
                if wanted <= 0 or self.prices.seconds[i] * _TRUST > bar:
                    break
                wanted -= self._trace(self._layout(self.every[i]), reports)
        if self.has_refused:  # however many more would be refused, the one that splits least is tried
            self._trace(self._layout(self.fixed), reports)
        self._vary(reports)
        return [
            Candidate(layout, self.mesh, r.seconds(self.machine), r.memory["peak"], r.wire_bytes, r, str)
            for layout, r in reports.items()
            if not self._is_pointless(layout, reports)
        ]

    def explain_pins(self) -> Report:
        """Traces under the pins alone; raises what the program raises there."""
        return self._explain(self._layout(self.fixed))

    def why(self, layout: Layout, is_best: bool) -> str:
        """Returns the reasons for a layout; for the best, also why it leaves processors without work of their own."""

        def report_of(other: Layout) -> Report | None:
            return self.reports[other] if self._trace(other, self.reports) else None

        report = self.reports[layout]
        reason = "; ".join([reason_for(layout, self.machine, report_of), *reason_inside(report, self.machine)])
        idle = idle_axes(report)
        if not (is_best and idle):
            return reason
        some = " or ".join(idle)
        if len(idle) < sum(size > 1 for size in self.mesh.axes.values()):
            return f"{reason}; no layout that splits over {some} as well is faster"
        return f"{reason}; the program is too small for these processors: no layout that splits over {some} is faster"

    def _is_pointless(self, layout: Layout, reports: dict[Layout, Report]) -> bool:
        """Whether splitting further what is stored costs time, and saves no memory."""
        base = reports.get(Layout(dict(layout.rules)))
        if base is None or base is reports[layout]:
            return False
        saved = base.memory["peak"] - reports[layout].memory["peak"]
        return saved <= 0 and base.seconds(self.machine) <= reports[layout].seconds(self.machine)

    def _named(self) -> Iterator[Layout]:
        """Iterates over the layouts with names that this program can have."""
        for name in NAMES:
            try:
                layout = find_layout(name, self.mesh, known=self.graph.sizes, sizes=self.graph.sizes)
            except LayoutError:
                continue
            masks = masks_of(layout.for_role("param"), self.mesh)
            if all(masks.get(name, 0) == mask for name, mask in self.fixed.items()):
                yield layout

    def _vary(self, reports: dict[Layout, Report]) -> None:
        """Splits what is stored further: over all axes where that may win, in every way for the best of these."""
        bases = [layout for layout in reports if not layout.params and not layout.optimizer]
        variants = {base: list(role_variants(base, self.mesh, self.stored, self.fixed)) for base in bases}
        for base in sorted(variants, key=lambda base: self._at_least(reports[base])):
            fitting = [r.seconds(self.machine) for r in reports.values() if r.memory["peak"] <= self.limit]
            if variants[base] and self._at_least(reports[base]) <= min(fitting, default=math.inf):
                self._trace(variants[base][0], reports)
        best = {
            base: min(self._rank(reports[x]) for x in (base, *layouts[:1]) if x in reports)
            for base, layouts in variants.items()
        }
        for base in sorted(best, key=lambda base: best[base])[:_VARIED]:
            for layout in variants[base]:
                self._trace(layout, reports)

    def _at_least(self, report: Report) -> float:
        """Returns the seconds below which no splitting of what is stored can get: it saves communication and updates.

        Forward and backward pass compute the same in any case.
        """
        kept = (k for k in report.kernels.all() if k.step.phase != "update")
        return sum(kernel_time(k, self.machine).total * k.step.times for k in kept)

    def _rank(self, report: Report) -> tuple[bool, float]:
        """Orders reports: those that fit first, by their time; then those that do not, by their memory."""
        peak = report.memory["peak"]
        return (False, report.seconds(self.machine)) if peak <= self.limit else (True, peak)

    def _trace(self, layout: Layout, reports: dict[Layout, Report]) -> bool:
        """Traces under a layout; returns whether there is a report of it then."""
        if layout not in reports:
            try:
                reports[layout] = self._explain(layout)
            except Exception:  # ours or JAX's: unsplit, the program was traced (`graph`), so it is the layout's
                self.has_refused = True
                return False
        return True

    def _explain(self, layout: Layout) -> Report:
        return spmd(self.fn, self.mesh, layout, self.donate).explain(*self.args)

    def _combinations(self) -> list[Assignment]:
        """Returns all ways to give each axis a set of dims that never meet."""
        choices = [self._sets(axis) for axis in range(len(self.axes))]
        if math.prod(map(len, choices)) > _MOST:
            keep = int(_MOST ** (1 / len(choices)))
            choices = [self._shortlist(axis, sets, keep) for axis, sets in enumerate(choices)]
        assignments = []
        mirrored = self._interchangeable_axes()
        for combination in itertools.product(*choices):
            if any(_order(combination[i]) > _order(combination[j]) for i, j in mirrored):
                continue
            assignment = dict(self.fixed)
            for axis, names in enumerate(combination):
                for name in names:
                    assignment[name] = assignment.get(name, 0) | 1 << axis
            assignments.append(assignment)
        return assignments

    def _interchangeable_axes(self) -> list[tuple[int, int]]:
        """Returns pairs of axes whose exchange changes nothing: of two mirrored layouts, one is enough.

        The other may be one of another mesh, if all shapes are searched.
        """
        pinned = functools.reduce(operator.or_, self.fixed.values(), 0)
        kinds = [
            (
                None if self.all_shapes else self.mesh.axes[axis],
                i if self.network.hosts[axis] > 1 else -1,
                i if pinned >> i & 1 else -1,
            )
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
        order = np.argsort(self._price(alone).seconds, kind="stable")
        return [sets[i] for i in order[:keep]]

    def _price(self, assignments: Sequence[Assignment]) -> Prices:
        masks = {name: np.array([a.get(name, 0) for a in assignments], int) for name in self.names}
        # on TPUs the trace of a layout has slabs, which the unsplit one has not: tiles wait for it
        platform = "" if self.mesh.platform == "tpu" else self.mesh.platform
        return Prices(self.graph, self.network, masks, len(assignments), platform)

    def _smallest_memory(self) -> Any:
        """Returns the memory of each combination if what is stored, and its gradients, were split over all axes."""
        return self.prices.memory - 2 * self.prices.stored * (1 - 1 / self.mesh.size)

    def _orders(self) -> Iterator[tuple[list[int], int]]:
        """Iterates over rankings of the combinations, each with how many of its first are worth tracing.

        Those are the fastest that fit (and, as the prices are roughest about loops over a split dim, the fastest of
        them without any), the fastest that would fit with what is stored split over all processors, and the smallest.
        """
        limit, prices, least = self.limit * _SLACK, self.prices, self._smallest_memory()
        fastest = np.argsort(prices.seconds, kind="stable")
        fitting = [int(i) for i in fastest if prices.memory[i] <= limit]
        looped = self.graph.looped_names()
        yield fitting, _TRACED
        yield [i for i in fitting if not any(self.every[i].get(name) for name in looped)], _TRACED // 2
        yield [int(i) for i in fastest if least[i] <= limit < prices.memory[i]], _VARIED
        yield [int(i) for i in np.argsort(prices.memory, kind="stable")], 2 if fitting else 5

    def _layout(self, assignment: Assignment) -> Layout:
        rules = {
            name: tuple(axis for i, axis in enumerate(self.axes) if mask >> i & 1)
            for name, mask in sorted(assignment.items())
            if mask
        }
        return Layout(rules)


def _order(names: frozenset[str]) -> tuple[bool, list[str]]:
    """Orders the dims of interchangeable axes: by name, and axes without any last."""
    return not names, sorted(names)
