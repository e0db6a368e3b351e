"""The text of a compiled program, taken apart: computations, their instructions, and what calls what."""

import re
from dataclasses import dataclass, field

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^(?:ROOT )?%?([\w.\-]+) = (.+)$")
_ARRAY = re.compile(r"\b([a-z]+\d+\w*|pred)\[([\d,]*)\]")
_CALLED = re.compile(r"\b(?:to_apply|calls|body|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_COMMENT = re.compile(r"/\*.*?\*/")

Array = tuple[str, tuple[int, ...]]  # dtype and shape


@dataclass
class Instruction:
    """One line: `%name = result op(arguments), rest`."""

    name: str
    result: str
    op: str
    arguments: str
    rest: str

    @property
    def operands(self) -> list[str]:
        """The names of the instructions that it takes the results of."""
        return re.findall(r"%([\w.\-]+)", self.arguments)

    @property
    def arrays(self) -> list[Array]:
        """The arrays that it makes."""
        return [(dtype, tuple(int(n) for n in shape.split(",") if n)) for dtype, shape in _ARRAY.findall(self.result)]

    @property
    def called(self) -> list[str]:
        """The computations that it calls."""
        branches = _BRANCHES.search(self.rest)
        return [*_CALLED.findall(self.rest), *(re.findall(r"[\w.\-]+", branches[1]) if branches else [])]


@dataclass
class Computation:
    """Instructions, in the order in which they run."""

    is_entry: bool
    instructions: list[Instruction] = field(default_factory=list)

    def arrays(self, name: str) -> list[Array]:
        """Returns the arrays that an instruction makes."""
        return next((i.arrays for i in self.instructions if i.name == name), [])


def computations_of(text: str) -> dict[str, Computation]:
    """Returns all computations of a text by their names."""
    computations: dict[str, Computation] = {}
    current: Computation | None = None
    for line in text.splitlines():
        stripped = line.strip()
        if not line.startswith(" ") and (head := _COMPUTATION.match(stripped)):
            current = computations[head[2]] = Computation(bool(head[1]))
        elif current is not None and (match := _INSTRUCTION.match(stripped)):
            current.instructions.append(_instruction(match[1], match[2]))
    return computations


def _instruction(name: str, text: str) -> Instruction:
    """Takes apart `f32[4]{0} all-reduce(%x, %y), channel_id=1, ...`; types and operands nest parentheses."""
    text = _COMMENT.sub("", text)
    end = _closing(text, 0) if text.startswith("(") else text.find(" ")
    result, rest = text[:end], text[end:].lstrip()
    op, _, _ = rest.partition("(")
    close = _closing(rest, len(op))
    return Instruction(name, result, op, rest[len(op) + 1 : close - 1], rest[close:])


def _closing(text: str, start: int) -> int:
    """Returns the place after the parenthesis that closes the one at `start`."""
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if depth == 0:
            return place + 1
    return len(text)


def trips(loop: Instruction, computations: dict[str, Computation]) -> int:
    """Returns how often a loop turns: as the compiler notes it, or what its counter is compared with; 1 if unknown."""
    if noted := _TRIPS.search(loop.rest):
        return int(noted[1])
    named = re.search(r"condition=%?([\w.\-]+)", loop.rest)
    condition = computations.get(named[1]) if named else None
    if condition is None or not condition.instructions:
        return 1
    last = condition.instructions[-1]
    if last.op == "fusion" and last.called and last.called[0] in computations:
        last = computations[last.called[0]].instructions[-1]
    if last.op != "compare" or "direction=LT" not in last.rest:
        return 1
    limits = [int(i.arguments) for i in condition.instructions if i.op == "constant" and i.arguments.isdecimal()]
    return limits[0] if len(limits) == 1 else 1
