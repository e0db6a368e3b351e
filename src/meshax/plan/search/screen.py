"""The cost of many layouts at once, from one named trace.

Every quantity is an array with one number for each candidate layout, so that tens of thousands are priced in the time
of a few traces. It follows what the program would do (pending sums, gathers of renamed dims) closely enough to choose
the candidates worth tracing for real; `search` does that, and ranks by the real reports.
"""

from collections.abc import Sequence

import numpy as np

from ...compat import Array
from ..cost.hardware import Hardware
from ..reading.kernels import Kernel, Kernels
from ..reading.walk import Block, Step, Value
from .graph import Graph, summed_names

_KEEP_PENDING = frozenset(
    {"transpose", "reshape", "squeeze", "expand_dims", "broadcast_in_dim", "neg", "pvary", "name", "copy"}
)
_EXTREMA = ("reduce_max", "reduce_min", "reduce_prod", "reduce_or", "reduce_and", "argmax", "argmin")


class Screen:
    """Prices layouts of one program on one mesh. A layout is, for each name, a bit mask of mesh axes."""

    def __init__(
        self, graph: Graph, axis_sizes: dict[str, int], hardware: Hardware, masks: dict[str, Array], count: int = 1
    ):
        """Prices all candidates; `masks` holds for each name the axes that split it, one number for each candidate."""
        self.graph, self.axis_sizes, self.hardware, self.masks, self.count = graph, axis_sizes, hardware, masks, count
        self._tables(list(axis_sizes))
        self._shares: dict[frozenset[str], Array] = {}
        self.wire = np.zeros(self.count)
        self.communication = np.zeros(self.count)
        self._charging = True
        self._joined = np.zeros((len(self.processors), count), bool)  # whether sums over these axes are on their way
        stored = [frozenset(d.name for d in x.dims) for x in graph.arguments if getattr(x, "role", None) == "param"]
        self._parameters = {*stored, *(names - graph.looped_names() for names in stored)} - {frozenset()}
        pending: dict[Value, Array] = {}
        self._communicate(graph.block, pending)
        for value in dict.fromkeys(graph.block.outputs):
            self._settle(value, pending, 1)
        self.seconds = self.communication + sum(self._time(kernel) for kernel in graph.kernels.all())
        self.memory = self._memory()
        leaves = zip(graph.arguments, graph.block.inputs, strict=True)
        self.stored = np.zeros(self.count) + sum(self._bytes(v) for x, v in leaves if getattr(x, "role", None))

    def _tables(self, axes: list[str]) -> None:
        """Fills what a collective costs for each set of axes."""
        sets = [[a for i, a in enumerate(axes) if mask >> i & 1] for mask in range(2 ** len(axes))]
        links = [self.hardware.link(chosen, self.axis_sizes) for chosen in sets]
        self.processors = np.array([float(np.prod([self.axis_sizes[a] for a in chosen])) for chosen in sets])
        self.hops = np.array([float(sum(self.axis_sizes[a] - 1 for a in chosen)) for chosen in sets])
        self.latency = np.array([link.latency for link in links])
        self.start = np.array([link.start if chosen else 0.0 for link, chosen in zip(links, sets, strict=True)])
        self.bandwidth = np.array([link.bandwidth for link in links])

    def _share(self, names: frozenset[str]) -> Array:
        """Returns which part of a tensor with these names one processor holds."""
        if names not in self._shares:
            share = np.ones(self.count)
            for name in names:
                size, parts = self.graph.sizes.get(name, 1), self.processors[self.masks[name]]
                share = share * np.ceil(size / parts) / size
            self._shares[names] = share
        return self._shares[names]

    def _named(self, value: Value) -> frozenset[str]:
        return frozenset(n for n in self.graph.of(value) if n in self.masks)  # type: ignore[misc]

    def _bytes(self, value: Value) -> Array:
        return value.bytes * self._share(self._named(value))

    def _mask(self, names: Sequence[str]) -> Array:
        mask = np.zeros(self.count, int)
        for name in names:
            if name in self.masks:
                mask |= self.masks[name]
        return mask

    def _time(self, kernel: Kernel) -> Array:
        hardware, times = self.hardware, kernel.step.times
        moving = sum(self._bytes(v) for v in (*kernel.reads, *kernel.writes))
        if kernel.step.name == "gather":
            moving = 2 * sum(self._bytes(v) for v in kernel.writes)
        spent = moving / (hardware.memory_bandwidth * hardware.memory_efficiency)
        if kernel.flops:
            together = frozenset(n for n in self.graph.together(kernel.step) if n in self.masks)
            reachable = hardware.peak(kernel.step.inputs[0].dtype) * hardware.flops_efficiency
            spent = np.maximum(spent, kernel.flops * self._share(together) / reachable)
        return (spent + hardware.overhead) * times

    def _charge(self, kind: str, mask: Array, size: Array, times: int, joins: bool = False) -> None:
        """Adds collectives of so many bytes (a gather's are its result's).

        Those that join others over the same axes only add their bytes.
        """
        if not self._charging:
            return
        n = self.processors[mask]
        rounds = 2 if kind == "all-reduce" else 1
        wire = np.where(mask > 0, rounds * (n - 1) / n * size, 0.0)
        self.wire += wire * times
        waiting = self.start[mask] + rounds * self.hops[mask] * self.latency[mask]
        if joins:
            every = np.arange(self.count)
            waiting = np.where(self._joined[mask, every], 0.0, waiting)
            self._joined[mask, every] = True
        sending = wire * self.hardware.slowness.get(kind, 1.0) / self.bandwidth[mask]
        self.communication += (waiting + sending) * times

    def _communicate(self, block: Block, pending: dict[Value, Array]) -> None:
        for step in block.steps:
            if step.blocks:
                self._through_blocks(step, pending)
            elif step.name == "named":
                self._rename(step, pending)
            elif step.name in _KEEP_PENDING or self._is_scaling(step) or self._is_cast_of_gradient(step):
                given = [pending[v] for v in step.inputs if v in pending]
                pending.update((out, given[0]) for out in step.outputs if given)
            elif step.name in ("add", "add_any", "sub"):
                self._add(step, pending)
            else:
                self._compute(step, pending)

    def _is_scaling(self, step: Step) -> bool:
        return step.name in ("mul", "div") and any(not v.shape for v in step.inputs)

    def _is_cast_of_gradient(self, step: Step) -> bool:
        """A parameter's gradient is cast before it is summed, an activation's after."""
        return step.name == "convert_element_type" and self._named(step.inputs[0]) in self._parameters

    def _settle(self, value: Value, pending: dict[Value, Array], times: int, phase: str = "") -> None:
        mask = pending.pop(value, None)
        if mask is not None:
            self._charge("all-reduce", mask, self._bytes(value), times, joins=phase == "update")

    def _compute(self, step: Step, pending: dict[Value, Array]) -> None:
        mask = self._mask(list(summed_names(step, self.graph)))
        if step.name == "reduce_sum":  # of a pending sum: as pending
            mask = mask | pending.get(step.inputs[0], 0)
        else:
            for value in step.inputs:
                self._settle(value, pending, step.times, step.phase)
        if mask.any():
            pending[step.outputs[0]] = mask
        if step.name in _EXTREMA:
            lost = self._named(step.inputs[0]) - self._named(step.outputs[0])
            self._charge("all-reduce", self._mask(sorted(lost)), self._bytes(step.outputs[0]), step.times)

    def _add(self, step: Step, pending: dict[Value, Array]) -> None:
        nothing = np.zeros(self.count, int)
        masks = [pending.get(v, nothing) for v in step.inputs]
        same = np.logical_and.reduce([m == masks[0] for m in masks])
        for value, mask in zip(step.inputs, masks, strict=True):
            differing, joins = np.where(same, 0, mask), step.phase == "update"
            self._charge("all-reduce", differing, self._bytes(value), step.times, joins)
        if (kept := np.where(same, masks[0], 0)).any():
            pending[step.outputs[0]] = kept

    def _rename(self, step: Step, pending: dict[Value, Array]) -> None:
        value, out = step.inputs[0], step.outputs[0]
        mask = pending.get(value, np.zeros(self.count, int))
        for old, new in zip(self.graph.of(value), step.params["names"], strict=True):
            if old == new or old is None:
                continue
            before, after = self._mask([old]), self._mask([new])
            scattered = mask & after & ~before
            self._charge("reduce-scatter", scattered, self._bytes(value), step.times)
            mask = mask & ~scattered
            self._charge("all-gather", before & ~after, self._bytes(out), step.times)
        if mask.any():
            pending[out] = mask

    def _through_blocks(self, step: Step, pending: dict[Value, Array]) -> None:
        for value in step.inputs:
            self._settle(value, pending, step.times)
        if step.name != "scan":
            for block in step.blocks:
                self._communicate(block, {})
            return
        consts, carry = step.params["num_consts"], step.params["num_carry"]
        for value in step.inputs[consts + carry :]:  # a loop over a split dim gathers what it loops over
            name = next(iter(self.graph.of(value)), None)
            self._charge("all-gather", self._mask([name] if name else []), self._bytes(value), step.times)
        body = step.blocks[0]
        inside: dict[Value, Array] = {}
        charging, self._charging = self._charging, False
        self._communicate(body, inside)  # once without charging: which sums does it carry on?
        sums = {
            into: inside[out]
            for into, out, first in zip(body.inputs[consts:], body.outputs[:carry], step.inputs[consts:], strict=False)
            if out in inside and _is_zero(first)
        }
        self._charging, inside = charging, dict(sums)
        self._communicate(body, inside)
        times = step.times * step.params["length"]
        for into, out in zip(body.inputs[consts:], body.outputs[:carry], strict=False):
            if into not in sums:
                self._settle(out, inside, times)
        pending.update((v, inside[o]) for v, o in zip(step.outputs, body.outputs, strict=True) if o in inside)

    def _memory(self) -> Array:
        arguments = sum(self._bytes(v) for v in self.graph.block.inputs)
        free = [v.bytes for v, given in zip(self.graph.block.inputs, self.graph.donated, strict=True) if given]
        results, owned = np.zeros(self.count), set()
        for value in dict.fromkeys(map(self.graph.kernels.root, self.graph.block.outputs)):
            owned.add(value)
            if value.bytes in free:
                free.remove(value.bytes)
            elif value not in self.graph.block.inputs:
                results = results + self._bytes(value)
        return arguments + results + self._peak(self.graph.kernels, owned)

    def _peak(self, kernels: Kernels, owned: set[Value]) -> Array:
        last = {value: kernel.position for kernel in kernels.own for value in kernel.reads}
        last.update((kernels.root(v), len(kernels.block.steps)) for v in kernels.block.outputs)
        owned = owned | set(kernels.block.inputs)
        use, peak = np.zeros(self.count), np.zeros(self.count)
        alive: set[Value] = set()
        for kernel in kernels.own:
            for value in set(kernel.writes) - owned - alive:
                alive.add(value)
                use = use + self._bytes(value)
            inside = [self._peak(inner, set()) for inner in kernels.inner.get(kernel.step, ())]
            peak = np.maximum(peak, use + (np.maximum.reduce(inside) if inside else 0.0))
            for value in [v for v in alive if last.get(v, -1) <= kernel.position]:
                alive.remove(value)
                use = use - self._bytes(value)
        return peak


def _is_zero(value: Value) -> bool:
    """Whether a value is a constant spread out: the start of a sum."""
    while value.maker is not None and value.maker.name in (
        "broadcast_in_dim",
        "convert_element_type",
        "pvary",
        "named",
    ):
        value = value.maker.inputs[0]
    return value.is_constant
