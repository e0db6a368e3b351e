"""What a compiler made of a program: the collectives that are left in its HLO text, and what they move.

XLA changes what we emit. It merges several operands into one operation, makes an all-reduce and a slice of a
reduce-scatter, gathers in the narrower dtype when a cast follows, drops what it finds twice, and starts an operation
early to hide it behind others. So the text is read for itself, then set beside ours, kind by kind.
"""

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..reading.communication import Collective

_NAMES = {
    "all-reduce": "all-reduce",
    "all-gather": "all-gather",
    "reduce-scatter": "reduce-scatter",
    "all-to-all": "all-to-all",
    "ragged-all-to-all": "all-to-all",
    "collective-permute": "permute",
}
KINDS = tuple(dict.fromkeys(_NAMES.values()))
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^(?:ROOT )?%?([\w.\-]+) = (.+)$")
_ARRAY = re.compile(r"\b([a-z]+\d+\w*|pred)\[([\d,]*)\]")
_CALLED = re.compile(r"\b(?:to_apply|calls|body|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_CHAIN = re.compile(r'chain_id="(\w+)"')
_NO_WORK = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast")
_COMMENT = re.compile(r"/\*.*?\*/")

Array = tuple[str, tuple[int, ...]]  # dtype and shape


@dataclass(frozen=True)
class CompiledCollective:
    """One collective of a compiled program: what one processor puts in, and how often."""

    kind: str
    operands: tuple[Array, ...]
    group: int  # processors that take part together; 0 for a permute
    count: int
    is_hidden: bool = False  # it is started early, and something is computed before it is waited for; else exposed

    @property
    def bytes(self) -> int:
        """The bytes of the operands on one processor."""
        return sum(math.ceil(math.prod(shape) * _bits(dtype) / 8) for dtype, shape in self.operands)

    def as_dict(self) -> dict[str, Any]:
        """Returns it as plain data."""
        operands = [f"{dtype}[{','.join(map(str, shape))}]" for dtype, shape in self.operands]
        numbers = {"bytes": self.bytes, "group": self.group, "count": self.count}
        return {"kind": self.kind, "operands": operands, **numbers, "is_hidden": self.is_hidden}


def compiled_collectives(text: str) -> list[CompiledCollective]:
    """Returns the collectives in the text of a compiled program, times the trips of the loops around them."""
    computations = _computations(text)
    entry = next((c for c in computations.values() if c.is_entry), None)
    return list(_found(entry, computations, 1, set(), Counter(_CHAIN.findall(text)))) if entry is not None else []


@dataclass
class _Instruction:
    name: str
    result: str
    op: str
    arguments: str
    rest: str

    @property
    def operands(self) -> list[str]:
        return re.findall(r"%([\w.\-]+)", self.arguments)


@dataclass
class _Computation:
    is_entry: bool
    instructions: list[_Instruction] = field(default_factory=list)

    def arrays(self, name: str) -> list[Array]:
        """Returns the arrays that an instruction makes."""
        result = next((i.result for i in self.instructions if i.name == name), "")
        return [(dtype, tuple(int(n) for n in shape.split(",") if n)) for dtype, shape in _ARRAY.findall(result)]

    def computes_while(self, one: _Instruction) -> bool:
        """Whether anything is computed between the start of an operation and its end."""
        if not one.op.endswith("-start"):
            return False
        later = self.instructions[self.instructions.index(one) + 1 :]
        between = itertools.takewhile(lambda other: one.name not in other.operands, later)
        return any(other.op not in _NO_WORK for other in between)


def _computations(text: str) -> dict[str, _Computation]:
    computations: dict[str, _Computation] = {}
    current: _Computation | None = None
    for line in text.splitlines():
        stripped = line.strip()
        if not line.startswith(" ") and (head := _COMPUTATION.match(stripped)):
            current = computations[head[2]] = _Computation(bool(head[1]))
        elif current is not None and (match := _INSTRUCTION.match(stripped)):
            current.instructions.append(_instruction(match[1], match[2]))
    return computations


def _instruction(name: str, text: str) -> _Instruction:
    """Takes apart `f32[4]{0} all-reduce(%x, %y), channel_id=1, ...`; types and operands nest parentheses."""
    text = _COMMENT.sub("", text)
    end = _closing(text, 0) if text.startswith("(") else text.find(" ")
    result, rest = text[:end], text[end:].lstrip()
    op, _, _ = rest.partition("(")
    close = _closing(rest, len(op))
    return _Instruction(name, result, op, rest[len(op) + 1 : close - 1], rest[close:])


def _closing(text: str, start: int) -> int:
    """Returns the place after the parenthesis that closes the one at `start`."""
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if depth == 0:
            return place + 1
    return len(text)


def _found(
    inside: _Computation,
    computations: dict[str, _Computation],
    times: int,
    chains: set[str],
    texts: Mapping[str, int],
) -> Iterator[CompiledCollective]:
    for one in inside.instructions:
        kind = _NAMES.get(one.op.removesuffix("-start"))
        if kind is not None:
            chain = _CHAIN.search(one.rest)  # a TPU's collective that runs beside others stands in each of their texts
            if chain is None or chain[1] not in chains:
                chains |= {chain[1]} if chain else set()
                arrays = [array for name in one.operands for array in inside.arrays(name)]
                is_hidden = texts[chain[1]] > 2 if chain else inside.computes_while(one)  # not its start and end alone
                yield CompiledCollective(kind, tuple(arrays), _group_size(one.rest), times, is_hidden)
            continue
        repeats = _trips(one, computations) if one.op == "while" else 1
        for called in [*_CALLED.findall(one.rest), *_branches(one)]:
            if called in computations:
                yield from _found(computations[called], computations, times * repeats, chains, texts)


def _branches(one: _Instruction) -> list[str]:
    listed = _BRANCHES.search(one.rest)
    return re.findall(r"[\w.\-]+", listed[1]) if listed else []


def _trips(loop: _Instruction, computations: dict[str, _Computation]) -> int:
    """Returns how often a loop turns: as the compiler notes it, or what its counter is compared with; 1 if unknown."""
    if noted := _TRIPS.search(loop.rest):
        return int(noted[1])
    named = re.search(r"condition=%?([\w.\-]+)", loop.rest)
    condition = computations.get(named[1]) if named else None
    if condition is None or not condition.instructions:
        return 1
    last = condition.instructions[-1]
    if last.op == "fusion" and (called := _CALLED.search(last.rest)) and called[1] in computations:
        last = computations[called[1]].instructions[-1]
    if last.op != "compare" or "direction=LT" not in last.rest:
        return 1
    limits = [int(i.arguments) for i in condition.instructions if i.op == "constant" and i.arguments.isdecimal()]
    return limits[0] if len(limits) == 1 else 1


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
