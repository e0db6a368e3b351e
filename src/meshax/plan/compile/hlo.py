"""What a compiler made of a program: the collectives that are left in its HLO text, and what they move.

XLA changes what we emit. It merges several operands into one operation, makes an all-reduce and a slice of a
reduce-scatter, gathers in the narrower dtype when a cast follows, drops what it finds twice, and starts an operation
early to hide it behind others. So the text is read for itself, then set beside ours, kind by kind.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..reading.communication import Collective
from .hlo_text import Array, Computation, computations_of, trips
from .schedule import NOTHING, PRODUCTS, Schedule, chain_of

_NAMES = {
    "all-reduce": "all-reduce",
    "all-gather": "all-gather",
    "reduce-scatter": "reduce-scatter",
    "all-to-all": "all-to-all",
    "ragged-all-to-all": "all-to-all",
    "collective-permute": "permute",
}
KINDS = tuple(dict.fromkeys(_NAMES.values()))


@dataclass(frozen=True)
class CompiledCollective:
    """One collective of a compiled program: what one processor puts in, and how often."""

    kind: str
    operands: tuple[Array, ...]
    group: int  # processors that take part together; 0 for a permute
    count: int
    beside: str = NOTHING  # what is computed between its start and its end: products, arithmetic or nothing

    @property
    def bytes(self) -> int:
        """The bytes of the operands on one processor."""
        return sum(math.ceil(math.prod(shape) * _bits(dtype) / 8) for dtype, shape in self.operands)

    @property
    def is_hidden(self) -> bool:
        """Whether products run beside it."""
        return self.beside == PRODUCTS

    def as_dict(self) -> dict[str, Any]:
        """Returns it as plain data."""
        operands = [f"{dtype}[{','.join(map(str, shape))}]" for dtype, shape in self.operands]
        numbers = {"bytes": self.bytes, "group": self.group, "count": self.count}
        return {"kind": self.kind, "operands": operands, **numbers, "beside": self.beside}


def compiled_collectives(text: str) -> list[CompiledCollective]:
    """Returns the collectives in the text of a compiled program, times the trips of the loops around them."""
    schedule = Schedule(computations_of(text))
    entry = next((c for c in schedule.computations.values() if c.is_entry), None)
    return list(_found(entry, schedule, 1, set())) if entry is not None else []


def _found(inside: Computation, schedule: Schedule, times: int, chains: set[str]) -> Iterator[CompiledCollective]:
    for one in inside.instructions:
        kind = _NAMES.get(one.op.removesuffix("-start"))
        if kind is not None:
            chain = chain_of(one)
            if not chain or chain not in chains:
                chains.add(chain)
                arrays = [array for name in one.operands for array in inside.arrays(name)]
                beside = schedule.beside(one, inside)
                yield CompiledCollective(kind, tuple(arrays), _group_size(one.rest), times, beside)
            continue
        repeats = trips(one, schedule.computations) if one.op == "while" else 1
        for called in one.called:
            if called in schedule.computations:
                yield from _found(schedule.computations[called], schedule, times * repeats, chains)


def _group_size(text: str) -> int:
    if match := re.search(r"replica_groups=\[(\d+),(\d+)\]", text):
        return int(match[2])
    # mesh['data'=2,'model'=4] {'data'}, or mesh['data'=2,'model'=4], device_ids=([4,2]T(1,0)) {'data'}
    if match := re.search(r"replica_groups=mesh\[([^\]]*)\][^{}]*\{('[^}]*)\}", text):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", match[1]))
        return math.prod(int(sizes[axis]) for axis in re.findall(r"'(\w+)'", match[2]))
    first = re.search(r"replica_groups=\{\{([\d,]+)\}", text)
    return len(first[1].split(",")) if first else 0


def _bits(dtype: str) -> int:
    if dtype == "pred":
        return 8
    digits = re.search(r"\d+", dtype)
    return int(digits[0]) if digits else 0


@dataclass(frozen=True)
class Moved:
    """The collectives of one kind in one call: how many operations, of how many tensors and bytes on one processor."""

    operations: int = 0
    tensors: int = 0
    bytes: int = 0


def ours_by_kind(collectives: Iterable[Collective]) -> dict[str, Moved]:
    """Adds up what we emit, which is one operation for a tensor."""
    total = dict.fromkeys(KINDS, Moved())
    for c in collectives:
        was = total[c.kind]
        total[c.kind] = Moved(was.operations + c.count, was.tensors + c.count, was.bytes + c.bytes * c.count)
    return total


def compiled_by_kind(collectives: Iterable[CompiledCollective]) -> dict[str, Moved]:
    """Adds up what a compiler left."""
    total = dict.fromkeys(KINDS, Moved())
    for c in collectives:
        was = total[c.kind]
        tensors = was.tensors + len(c.operands) * c.count
        total[c.kind] = Moved(was.operations + c.count, tensors, was.bytes + c.bytes * c.count)
    return total


def differences(ours: dict[str, Moved], compiled: dict[str, Moved]) -> list[str]:
    """Says in words what the compiler changed."""
    said = []
    for kind in KINDS:
        a, b = ours[kind], compiled[kind]
        if b.operations < b.tensors:
            said.append(
                f"{kind}: {b.tensors:,} tensors travel in {b.operations:,} operation{'s' * (b.operations != 1)}: "
                "the compiler merged them."
            )
    scattered, reduced = ours["reduce-scatter"], compiled["all-reduce"]
    lost = scattered.tensors - compiled["reduce-scatter"].tensors
    if lost > 0 and reduced.tensors > ours["all-reduce"].tensors:
        said.append(f"reduce-scatter: {lost:,} became an all-reduce and a slice.")
    for kind in KINDS:
        a, b = ours[kind], compiled[kind]
        if kind == "permute" and b.tensors > a.tensors:
            said.append(f"permute: {b.tensors - a.tensors:,} are the compiler's own, parts of other collectives.")
        elif 0 < b.tensors < a.tensors and kind != "reduce-scatter":
            said.append(f"{kind}: {a.tensors - b.tensors:,} fewer: what was there twice, or not needed, is gone.")
        elif b.tensors and b.tensors == a.tensors and b.bytes < a.bytes:
            said.append(
                f"{kind}: {a.bytes - b.bytes:,} bytes fewer: some operands are smaller, or in a narrower dtype."
            )
    return said


def by_operand(collectives: Sequence[CompiledCollective]) -> dict[str, dict[int, int]]:
    """Returns for each kind how often an operand of so many elements travels; merged operands are taken apart."""
    by_kind: dict[str, dict[int, int]] = {}
    for c in collectives:
        for _, shape in c.operands:
            counts = by_kind.setdefault(c.kind, {})
            counts[math.prod(shape)] = counts.get(math.prod(shape), 0) + c.count
    return by_kind
