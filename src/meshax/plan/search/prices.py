"""The cost of many layouts at once, from one named trace.

A layout is, for each name, a bit mask of the mesh axes that split it. Every array of the trace gets the sizes it has on
one processor, each an array with one number for each candidate layout; kernels, seconds and memory are then those of a
report, by the same functions. What a layout communicates is not in an unsplit trace: `needed_collectives` says it.
`layout_search` traces the best candidates for real, and ranks by their reports.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ...compat import Array
from ...layout import block_size
from ..cost.memory import memory_of
from ..cost.timing import Network, kernel_time
from ..reading.communication import Together, wire_bytes
from ..reading.kernels import kernels_of
from ..reading.primitives import KINDS
from ..reading.walk import Block, Step, Value
from .graph import Graph
from .needed_collectives import NeededCollectives


class Prices:
    """The seconds, bytes sent and memory of layouts of one program on one mesh."""

    def __init__(
        self,
        graph: Graph,
        network: Network,
        masks: Mapping[str, Array],
        count: int = 1,
        platform: str = "",
    ):
        """Prices all candidates; `masks` holds for each name the axes that split it, one number for each candidate."""
        self.network, self.axis_sizes, hardware = network, dict(network.sizes), network.hardware
        self._subsets = _subsets(list(self.axis_sizes))
        self._together = Together()
        self.wire_by_kind = {kind: np.zeros(count, np.int64) for kind in KINDS}
        self.communication = np.zeros(count)
        processors = np.array([np.prod([self.axis_sizes[a] for a in axes], dtype=int) for axes in self._subsets])
        split = _SplitTrace(graph, {name: processors[mask] for name, mask in masks.items()})
        NeededCollectives(graph, masks, processors, count, split.local, self._send).walk()
        kernels = kernels_of(split.block)
        computing = (kernel_time(kernel, hardware).total * kernel.step.times for kernel in kernels.all())
        self.seconds = self.communication + sum(computing)
        roles = [getattr(x, "role", None) for x in graph.arguments]
        self.memory = np.zeros(count) + memory_of(kernels, roles, graph.donated, platform).peak
        stored = (v.bytes for v, role in zip(split.block.inputs, roles, strict=True) if role)
        self.stored = np.zeros(count) + sum(stored)

    @property
    def wire(self) -> Array:
        """The bytes that one processor sends."""
        return sum(self.wire_by_kind.values())

    def _send(self, kind: str, mask: Array, operand: Array, dtype: Any, step: Step | None, joins: bool) -> None:
        """Adds a collective over the axes of `mask`, whose operand takes so many bytes on a processor."""
        times = step.times if step is not None else 1
        if step is not None and step.phase == "backward":
            self._together.clear()
        for number in np.unique(mask):
            axes = self._subsets[number]
            processors = int(np.prod([self.axis_sizes[axis] for axis in axes], dtype=int))
            if processors == 1:
                continue
            chosen = mask == number
            size = np.where(chosen, operand, 0)
            joined = self._together.joins((axes, str(dtype)), size) if joins else False
            sent = wire_bytes(kind, size, processors)
            seconds = self.network.ring_time(kind, axes, sent, joined)
            self.wire_by_kind[kind] += sent * times
            self.communication += np.where(chosen, seconds, 0.0) * times


def _subsets(axes: list[str]) -> list[tuple[str, ...]]:
    """Returns the axes that each bit mask stands for."""
    return [tuple(a for i, a in enumerate(axes) if mask >> i & 1) for mask in range(2 ** len(axes))]


class _LocalValue(Value):
    """What one processor holds of a value, for each layout."""

    __slots__ = ("_bytes",)

    def __init__(self, value: Value, shape: tuple[Any, ...], sizes: dict[Any, Array]):
        """`sizes` remembers the bytes of all shapes, which many values have in common."""
        super().__init__(value, value.is_constant)
        self.shape = shape
        key = (value.dtype, *(n if isinstance(n, int) else id(n) for n in shape))
        if key not in sizes:
            sizes[key] = super().bytes
        self._bytes = sizes[key]

    @property
    def bytes(self) -> Array:
        """The bytes it takes."""
        return self._bytes


class _SplitTrace:
    """A named trace, with the sizes that arrays have on one processor."""

    def __init__(self, graph: Graph, parts: Mapping[str, Array]):
        self._graph, self._parts = graph, parts
        self._blocks: dict[tuple[str, int], Array] = {}
        self._sizes: dict[Any, Array] = {}
        self._values: dict[Value, Value] = {}
        self.block = self._copy(graph.block)

    def local(self, value: Value) -> Value:
        """Returns what one processor holds of a value."""
        if value not in self._values:
            names = self._graph.of(value)
            shape = tuple(self._block_size(name, n) for name, n in zip(names, value.shape, strict=True))
            self._values[value] = _LocalValue(value, shape, self._sizes)
        return self._values[value]

    def _block_size(self, name: str | None, size: int) -> Any:
        if name is None or name not in self._parts or size == 1:
            return size
        if (name, size) not in self._blocks:
            self._blocks[name, size] = block_size(size, self._parts[name])
        return self._blocks[name, size]

    def _copy(self, block: Block) -> Block:
        inputs = [self.local(v) for v in block.inputs]
        steps = [self._copy_step(step) for step in block.steps if not self._is_mark(step)]
        return Block(inputs, steps, [self.local(v) for v in block.outputs])

    def _is_mark(self, step: Step) -> bool:
        """Whether a step only says the names that its operand has anyway; then its result is its operand."""
        if step.name != "named" or self._graph.of(step.inputs[0]) != step.params["names"]:
            return False
        self._values[step.outputs[0]] = self.local(step.inputs[0])
        return True

    def _copy_step(self, step: Step) -> Step:
        if step.name == "scan":
            copy = self._copy_scan(step)
        else:
            blocks = [self._copy(block) for block in step.blocks]
            inputs, outputs = ([self.local(v) for v in values] for values in (step.inputs, step.outputs))
            copy = replace(step, inputs=inputs, outputs=outputs, blocks=blocks)
        for value in copy.inputs:
            value.consumers.append(copy)
        for value in copy.outputs:
            value.maker = copy
        return copy

    def _copy_scan(self, step: Step) -> Step:
        """Copies a loop without what it has twice: a value with its mark and without goes in, or is stacked."""
        consts, carry = step.params["num_consts"], step.params["num_carry"]
        (block,) = step.blocks
        inputs = _first_of_equal(list(map(self.local, step.inputs)), range(consts, consts + carry))
        for i, first in enumerate(inputs):
            if i != first:
                self._values[block.inputs[i]] = self.local(block.inputs[first])
        body = self._copy(block)
        outputs = _first_of_equal(body.outputs, range(carry))
        for i, first in enumerate(outputs):
            if i != first:
                self._values[step.outputs[i]] = self.local(step.outputs[first])
        into, out = ([i for i, first in enumerate(firsts) if i == first] for firsts in (inputs, outputs))
        return replace(
            step,
            params={**step.params, "num_consts": sum(i < consts for i in into)},
            inputs=[self.local(step.inputs[i]) for i in into],
            outputs=[self.local(step.outputs[i]) for i in out],
            blocks=[Block([body.inputs[i] for i in into], body.steps, [body.outputs[i] for i in out])],
        )


def _first_of_equal(values: list[Value], carried: range) -> list[int]:
    """Returns for each value the place of the first that is the same, before what a loop carries or behind it."""
    seen: dict[tuple[Value, bool], int] = {}
    return [i if i in carried else seen.setdefault((value, i < carried.start), i) for i, value in enumerate(values)]
