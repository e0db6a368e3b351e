"""Reading the collectives of compiled HLO text: how many elements each kind moves, times the trips of its loops."""

import math
import re
from collections import Counter

_KINDS = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) .*\{$")
_COLLECTIVE = re.compile(rf"= (.+?) ({_KINDS})(?:-start)?\((.*?)\)")
_SHAPE = re.compile(r"([a-z]+\d*)\[([\d,]*)\]")
_CALLED = re.compile(r"(?:body|condition|to_apply|calls|true_computation|false_computation)=%?([\w.\-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


def operands(compiled):
    """Returns {kind: {operand shape: times}}; merged operands are taken apart, scan bodies multiplied."""
    computations, entry = _computations(compiled.as_text())
    found = {}
    _count(computations, entry, 1, found)
    return found


def _computations(text):
    computations, current, entry = {}, None, None
    for line in text.splitlines():
        if match := _COMPUTATION.match(line.strip()):
            current = match[1]
            computations[current] = []
            if line.startswith("ENTRY"):
                entry = current
        elif current:
            computations[current].append(line)
    return computations, entry


def _count(computations, name, times, found):
    for line in computations[name]:
        if match := _COLLECTIVE.search(line):
            result, kind, _ = match.groups()
            for _, shape in _SHAPE.findall(result):
                sizes = tuple(int(n) for n in shape.split(",") if n)
                found.setdefault(kind, Counter())[_operand(kind, sizes, line)] += times
        if " while(" in line:
            trips = int(_TRIPS.search(line)[1])
            _count(computations, re.search(r"body=%?([\w.\-]+)", line)[1], times * trips, found)
        elif not _COLLECTIVE.search(line):
            for called in _CALLED.findall(line):
                _count(computations, called, times, found)


def _operand(kind, result, line):
    """Returns the number of elements of the operand."""
    count = math.prod(result)
    if kind == "all-gather":
        return count // _group_size(line)
    return count * _group_size(line) if kind == "reduce-scatter" else count


def _group_size(line):
    if match := re.search(r"replica_groups=\[(\d+),(\d+)\]", line):
        return int(match[2])
    if match := re.search(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}", line):  # mesh['data'=2,'model'=4] {'data'}
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", match[1]))
        return math.prod(int(sizes[axis]) for axis in re.findall(r"'(\w+)'", match[2]))
    first = re.search(r"replica_groups=\{\{([\d,]+)\}", line)[1]
    return len(first.split(","))
