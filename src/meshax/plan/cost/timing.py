"""How long a program takes on given hardware, by a roofline.

Each kernel takes the longer of its matrix product (FLOPs over the reachable peak) and its memory traffic (bytes over
the reachable bandwidth), and the time to start it. Each collective takes the time to start it, its hops' latency and
the bytes one processor sends over the link's bandwidth, at the pace of its kind; what compilers join to another only
adds its bytes. All of it is added up: we assume that nothing overlaps, which errs on the slow side where a compiler
hides communication behind computation.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..reading.broadcasting import Number, where
from ..reading.communication import Collective, is_collective
from ..reading.kernels import Kernel
from ..reading.walk import Step
from .hardware import Hardware

ASSUMES = "computation and communication do not overlap"


@dataclass(frozen=True)
class Time:
    """Seconds, by what they are spent on."""

    compute: Number = 0.0
    memory: Number = 0.0
    communication: Number = 0.0

    @property
    def total(self) -> Number:
        """All of it."""
        return self.compute + self.memory + self.communication

    def __add__(self, other: "Time") -> "Time":
        return Time(self.compute + other.compute, self.memory + other.memory, self.communication + other.communication)


def kernel_time(kernel: Kernel, hardware: Hardware) -> Time:
    """Returns the time of one execution of a kernel."""
    if is_collective(kernel.step):
        return Time()
    moving = kernel.bytes / (hardware.memory_bandwidth * hardware.memory_efficiency)
    if not np.any(kernel.flops):
        return Time(memory=moving + hardware.overhead)
    reachable = hardware.peak(kernel.step.inputs[0].dtype) * hardware.flops_efficiency
    computing = kernel.flops * _rounding(kernel.step, hardware.tile) / reachable
    is_bound = computing >= moving  # by computing
    return Time(where(is_bound, computing + hardware.overhead, 0.0), where(is_bound, 0.0, moving + hardware.overhead))


def _rounding(step: Step, tile: int) -> Number:
    """Returns by how much a matrix product grows when its sizes are rounded up to whole tiles."""
    if tile == 1 or step.name != "dot_general":
        return 1.0
    (left, right), (left_batch, right_batch) = step.params["dimension_numbers"]
    a, b = step.inputs[0].shape, step.inputs[1].shape
    sizes = [
        math.prod(a[i] for i in left),
        math.prod(n for i, n in enumerate(a) if i not in (*left, *left_batch)),
        math.prod(n for i, n in enumerate(b) if i not in (*right, *right_batch)),
    ]
    growth = math.prod(where(n > 1, -(-n // tile) * tile / n, 1.0) for n in sizes)
    return where(growth < _MOST_GROWTH, growth, _MOST_GROWTH)


_MOST_GROWTH = 8.0  # a product with very few rows is bound by memory anyway
_HOPS = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1, "all-to-all": 1}


def collective_time(record: Collective, hardware: Hardware, axis_sizes: Mapping[str, int]) -> float:
    """Returns the seconds of one execution of a collective, in a ring."""
    return ring_time(record.kind, record.axes, record.wire_bytes, hardware, axis_sizes, record.joined)


def ring_time(
    kind: str,
    axes: Sequence[str],
    wire_bytes: Number,
    hardware: Hardware,
    axis_sizes: Mapping[str, int],
    joined: Number = False,
) -> Number:
    """Returns the seconds in which a processor sends so many bytes in a ring; `joined` to others, they only add up."""
    link = hardware.link(axes, axis_sizes)
    hops = sum(axis_sizes[axis] - 1 for axis in axes) * _HOPS[kind] if kind in _HOPS else 1
    sending = wire_bytes * hardware.slowness.get(kind, 1.0) / link.bandwidth
    return where(joined, sending, link.start + hops * link.latency + sending)
