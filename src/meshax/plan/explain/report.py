"""What a program does on one processor in one call: the report that `Program.explain` gives.

Everything is read off the trace; no device is touched.
"""

import inspect
import json
import linecache
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
from jax.tree_util import keystr

from ...dim import Dims, show
from ...layout import Placement, Setting, block_size
from ...program import Program, Trace
from ...tensors import Tensor, is_tensor
from ..cost.hardware import KNOWN, Hardware, find
from ..cost.hiding import hidden_times
from ..cost.memory import memory_of
from ..cost.timing import EXPOSED, HIDDEN, Network, Time, kernel_time
from ..reading.communication import Collective, collectives_of
from ..reading.kernels import Kernels, flops_of, kernels_of
from ..reading.replication import Duplicate, Sameness, duplicates_of
from ..reading.walk import Block, explained_tracing, read
from .hosts import between_hosts

_LARGE = 0.01  # of the peak memory: a replicated tensor above this is worth a line


@dataclass(frozen=True)
class Stored:
    """A tensor that goes into a program or comes out, or a shape met inside, and how it is split."""

    name: str
    kind: str  # "argument", "result" or "inside"
    role: str | None
    dtype: str
    dims: Dims
    placement: Placement
    bytes: int  # on one processor


@dataclass(frozen=True)
class Replicated:
    """A large tensor that processors along some axes hold alike."""

    name: str
    dims: str
    bytes: int
    axes: tuple[str, ...]


@dataclass(eq=False, repr=False)
class Report:
    """What a program does on one processor in one call. `str()` it, or look at `to_html`."""

    program: str
    setting: Setting
    block: Block
    tensors: list[Stored]
    donated: Sequence[bool]
    _asked: Hardware | None = None  # what seconds were last asked for
    replays: bool = False  # whether the program is launched as a whole, again and again
    overlap: bool = (
        False  # whether collectives run beside computation, where they can: what is then hidden costs nothing
    )

    @property
    def axis_sizes(self) -> dict[str, int]:
        """The mesh."""
        return self.setting.mesh.axes

    @cached_property
    def collectives(self) -> list[Collective]:
        """Every collective, in the order they run."""
        return collectives_of(self.block, self.axis_sizes)

    @property
    def wire_bytes(self) -> int:
        """The bytes that one processor sends."""
        return sum(c.wire_bytes * c.count for c in self.collectives)

    @cached_property
    def kernels(self) -> Kernels:
        """What reads and writes memory."""
        return kernels_of(self.block)

    @cached_property
    def flops(self) -> int:
        """The FLOPs of the matrix products of one processor."""
        return sum(flops_of(step) * step.times for step in self.block.all_steps())

    @cached_property
    def sameness(self) -> Sameness:
        """Which values processors hold alike."""
        arguments = [frozenset(axis for axes in t.placement for axis in axes) for t in self._arguments]
        return Sameness(self.block, arguments)

    @cached_property
    def duplicates(self) -> list[Duplicate]:
        """The products that several processors compute alike, by line, the most wasteful first."""
        flops = {step: flops_of(step) for step in self.block.all_steps() if flops_of(step)}
        return duplicates_of(flops, self.sameness, self.axis_sizes)

    @property
    def duplicated_flops(self) -> int:
        """Of the FLOPs of one processor, those that a rule which separates the processors would save."""
        return sum(d.wasted for d in self.duplicates)

    @cached_property
    def memory(self) -> dict[str, int]:
        """The bytes on one processor at the peak, by class; an estimate."""
        platform = self.setting.mesh.platform
        return memory_of(self.kernels, [t.role for t in self._arguments], self.donated, platform).as_dict()

    @cached_property
    def padding(self) -> dict[str, dict[str, float]]:
        """For each dim whose blocks hold padding: its size, the size stored, and what of that is wasted."""
        wasteful: dict[str, dict[str, float]] = {}
        for (shape, _), placement in self.setting.placements.items():
            for dim, axes in zip(shape, placement, strict=True):
                count = self.setting.mesh.count(axes)
                stored = block_size(dim.size, count) * count
                waste = 1 - dim.size / stored
                if waste > wasteful.get(dim.name, {}).get("waste", 0):
                    wasteful[dim.name] = {"size": dim.size, "stored": stored, "waste": waste}
        return wasteful

    @cached_property
    def unused_rules(self) -> list[str]:
        """The rules that no tensor of the program has a dim for, and rings in which nothing goes around."""
        layout, seen = self.setting.layout, self.setting.placements
        every = {dim.name for shape, _ in seen for dim in shape}
        unused = [f"{dim}:{'+'.join(axes)}" for dim, axes in layout.rules if dim not in every]
        for role, name, rules in (("param", "params", layout.params), ("optimizer", "optimizer", layout.optimizer)):
            stored = {dim.name for shape, one in seen if one == role for dim in shape}
            unused += [f"{name} {dim}:{'+'.join(axes)}" for dim, axes in rules if dim not in stored]
        used = {axis for step in self.block.all_steps() for axis in step.ring} if layout.rings else set()
        return unused + [f"rings {axis}" for axis in layout.rings if axis not in used]

    @cached_property
    def replicated(self) -> list[Replicated]:
        """The large tensors that processors hold alike, largest first."""
        least = self.memory["peak"] * _LARGE
        large = [
            Replicated(t.name, show(t.dims, t.placement), t.bytes, self._unsplit(t.placement))
            for t in self._arguments
            if t.bytes > least and self._unsplit(t.placement)
        ]
        for kernel in self.kernels.all():
            for value in kernel.writes:
                if kernel.is_elementwise and 2 * sum(v.bytes for v in kernel.reads) < value.bytes:
                    continue  # spread out from something small, such as a mask: not worth splitting
                same = tuple(a for a, n in self.axis_sizes.items() if n > 1 and a not in self.sameness.differs(value))
                if value.bytes > least and same:
                    name = f"{kernel.step.source.op or 'a value'} at {kernel.step.source.line}"
                    large.append(Replicated(name, str(list(value.shape)), value.bytes, same))
        unique = {(r.name, r.dims): r for r in large}
        return sorted(unique.values(), key=lambda r: -r.bytes)

    def time(self, hardware: str | Hardware | None = None) -> Time:
        """Returns the predicted time of one call on some hardware, by what it is spent on."""
        machine = find(hardware).replaying() if self.replays else find(hardware)
        network = Network.of(machine, self.setting.mesh)
        total = Time(communication=self.communication_time(network), hidden=sum(self.hidden_times(network)))
        for kernel in self.kernels.all():
            spent, times = kernel_time(kernel, machine), kernel.step.times
            total += Time(spent.compute * times, spent.memory * times)
        return total

    def time_as_dict(self, spent: Time) -> dict[str, Any]:
        """Returns a predicted time as plain data, with what it assumes."""
        parts = {**asdict(spent), "exposed": spent.exposed, "total": spent.total}
        return {**parts, "assumes": HIDDEN if self.overlap else EXPOSED}

    def communication_time(self, network: Network) -> float:
        """Returns the predicted seconds of the collectives of one call."""
        return sum(network.collective_time(c) * c.count for c in self.collectives)

    def hidden_times(self, network: Network) -> list[float]:
        """Returns for each collective the predicted seconds of one call that are hidden; none without overlap."""
        if not self.overlap:
            return [0.0] * len(self.collectives)
        return hidden_times(self.kernels, self.collectives, network)

    def seconds(self, hardware: str | Hardware | None = None) -> float:
        """Returns the predicted seconds of one call on some hardware (a name such as "h200", or a description).

        A page that is written later opens on that hardware.
        """
        self._asked = find(hardware)
        return self.time(self._asked).total

    def utilization(self, hardware: str | Hardware | None = None) -> float:
        """Returns what part of the peak the matrix products reach that the model needs.

        Those that several processors do count once, those done again in the backward pass (`mx.remat`) not at all.
        """
        machine = find(hardware)
        needed = [(s, flops_of(s)) for s in self.block.all_steps() if flops_of(s) and s.phase != "recompute"]
        ideal = sum(
            n * s.times / self.sameness.copies(s, self.axis_sizes) / machine.peak(s.inputs[0].dtype) for s, n in needed
        )
        return ideal / self.seconds(machine) if ideal else 0.0

    def as_dict(self, hardware: str | Hardware | None = None) -> dict[str, Any]:
        """Returns all of it as plain data, with times on all known hardware, and on the one that is given."""
        chosen = None if hardware is None else find(hardware)
        machines = list((KNOWN if chosen is None else KNOWN | {chosen.name: chosen}).values())
        times = {h.name: self.time(h) for h in machines}
        return {
            "program": self.program.partition("(")[2].partition(",")[0] or self.program,
            "mesh": self.axis_sizes,
            "layout": repr(self.setting.layout),
            "overlap": self.overlap,
            "collectives": self._collectives(machines),
            "wire_bytes": self.wire_bytes,
            "flops": self.flops,
            "duplicated_flops": self.duplicated_flops,
            "duplicates": [asdict(d) for d in self.duplicates],
            "work": self._work(machines),
            "memory": self.memory,
            "padding": self.padding,
            "unused_rules": self.unused_rules,
            "between_hosts": between_hosts(self, find(chosen)),
            "replicated": [asdict(r) for r in self.replicated],
            "tensors": [self._tensor(t) for t in self.tensors],
            "time": {name: self.time_as_dict(t) for name, t in times.items()},
            "sources": self._sources(),
        } | ({} if chosen is None else {"hardware": chosen.name})

    def to_json(self) -> str:
        """Returns all of it as JSON."""
        return json.dumps(self.as_dict())

    def to_html(self, path: str | Path, hardware: str | Hardware | None = None) -> Path:
        """Writes a page to look at; it needs no network to be opened.

        Args:
            path: the file.
            hardware: what the page shows times for at first; by default what `seconds` was last asked for.
        """
        from .html import render  # the page is large, and most reports are read in a terminal

        target = Path(path)
        target.write_text(render(self.as_dict(self._asked if hardware is None else hardware)), encoding="utf-8")
        return target

    def __repr__(self) -> str:
        """One line; `str()` has the table."""
        return f"Report({self.program}: {len(self.collectives)} collectives, {self.wire_bytes:,} bytes sent)"

    def __str__(self) -> str:
        from ..printing.terminal import fitted_lines, terminal_width
        from .text import as_text  # rich is slow to import

        return fitted_lines(as_text(self), terminal_width())

    def _repr_html_(self) -> str:
        """What a notebook shows: the page's essentials."""
        from .html import essentials

        return essentials(self)

    @property
    def _arguments(self) -> list[Stored]:
        return [t for t in self.tensors if t.kind == "argument"]

    def _unsplit(self, placement: Placement) -> tuple[str, ...]:
        used = {axis for axes in placement for axis in axes}
        return tuple(axis for axis, size in self.axis_sizes.items() if size > 1 and axis not in used)

    def _collectives(self, machines: list[Hardware]) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = [
            {k: v for k, v in vars(c).items() if k not in ("source", "step")} | {"seconds": {}, "hidden_seconds": {}}
            for c in self.collectives
        ]
        for h in machines:
            network = Network.of(h, self.setting.mesh)
            for row, c, hidden in zip(rows, self.collectives, self.hidden_times(network), strict=True):
                row["seconds"][h.name] = network.collective_time(c) * c.count
                row["hidden_seconds"][h.name] = hidden
        return rows

    def _work(self, machines: list[Hardware]) -> list[dict[str, Any]]:
        rows: dict[tuple[str, str, str], dict[str, Any]] = {}
        for kernel in self.kernels.all():
            source, times = kernel.step.source, kernel.step.times
            row = rows.setdefault(
                (source.line, source.op, kernel.step.phase),
                {"line": source.line, "op": source.op, "phase": kernel.step.phase, "flops": 0, "bytes": 0, "count": 0}
                | {"seconds": {h.name: {"compute": 0.0, "memory": 0.0} for h in machines}},
            )
            row["flops"] += kernel.flops * times
            row["bytes"] += kernel.bytes * times
            row["count"] += times
            for h in machines:
                spent = kernel_time(kernel, h)
                row["seconds"][h.name]["compute"] += spent.compute * times
                row["seconds"][h.name]["memory"] += spent.memory * times
        return list(rows.values())

    def _tensor(self, t: Stored) -> dict[str, Any]:
        dims = [
            {"name": d.name, "size": d.size, "axes": axes, "block": block_size(d.size, self.setting.mesh.count(axes))}
            for d, axes in zip(t.dims, t.placement, strict=True)
        ]
        return {"name": t.name, "kind": t.kind, "role": t.role, "dtype": t.dtype, "dims": dims, "bytes": t.bytes}

    def _sources(self) -> dict[str, Any]:
        files = {k.step.source.name: k.step.source.file for k in self.kernels.all() if k.step.source.file}
        texts = {name: [line.rstrip("\n") for line in linecache.getlines(file)] for name, file in files.items()}
        return {name: {"first": 1, "lines": lines} for name, lines in texts.items() if lines}


def explain(program: Program, *args: Any, **named: Any) -> Report:
    """Says what a program does, without running it.

    That is every collective with its bytes and the line it comes from, FLOPs, memory, padding, time on given hardware.

    Args:
        program: what `mx.spmd` made.
        *args: as for a call; tensors of `jax.ShapeDtypeStruct` do: nothing runs.
        **named: as for a call.
    """
    with explained_tracing():
        trace = program.trace(*args, **named)
    tensors = [*_stored(trace.arguments, "argument", program, trace), *_stored(trace.results, "result", program, trace)]
    met = {t.dims for t in tensors}
    for (shape, role), placement in list(trace.shapes.items()):
        if shape and shape not in met and role is None:
            met.add(shape)
            tensors.append(Stored(show(shape), "inside", role, "", shape, placement, 0))
    return Report(repr(program), trace.setting, read(trace.jaxpr, program.fn), tensors, trace.donated)


def _stored(tree: Any, kind: str, program: Program, trace: Trace) -> list[Stored]:
    tensors = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_tensor):
        is_argument = kind == "argument"
        name = _argument_name(program, path, trace.num_positional) if is_argument else f"result{keystr(path)}"
        dims, role = (leaf.dims, leaf.role) if isinstance(leaf, Tensor) else ((), None)
        placement = trace.setting.placement(dims, role)
        array = leaf._array if isinstance(leaf, Tensor) else leaf
        shape = placement.local_shape if dims else array.shape
        size = math.prod(shape) * getattr(array.dtype, "itemsize", 0)
        tensors.append(Stored(name, kind, role, str(array.dtype), dims, placement, size))
    return tensors


def _argument_name(program: Program, path: Any, num_positional: int) -> str:
    """Returns `w['in']` for a leaf of the argument that the function calls `w`; those by name come last, in a dict."""
    try:
        names = list(inspect.signature(program.fn).parameters)
    except (TypeError, ValueError):
        names = []
    number, rest = path[0].idx, path[1:]
    if number == num_positional:
        return f"{rest[0].key}{keystr(rest[1:])}"
    first = names[number] if number < len(names) else f"args[{number}]"
    return first + keystr(rest)
