"""Reading the collectives of a lowered program, before any compiler changed it: kind, operand, processors, times."""

import math
import re
from collections import Counter

_KINDS = {
    "stablehlo.all_reduce": "all-reduce",
    "stablehlo.all_gather": "all-gather",
    "stablehlo.reduce_scatter": "reduce-scatter",
    "stablehlo.all_to_all": "all-to-all",
    "stablehlo.collective_permute": "permute",
}


def collectives(program, *args):
    """Returns {(kind, operand shape, operand bytes, processors): times}; a permute's processors are None."""
    lowered = program.lower(*args)
    module = lowered.compiler_ir("stablehlo")
    functions = {op.attributes["sym_name"].value: op for op in module.body if op.operation.name == "func.func"}
    found = Counter()
    _count(functions["main"], 1, functions, program.mesh.axes, found)
    return found


def reported(program, *args):
    """Returns the same of a report."""
    sizes, counts = program.mesh.axes, Counter()
    for c in program.explain(*args).collectives:
        processors = None if c.kind == "permute" else math.prod(sizes[axis] for axis in c.axes)
        counts[c.kind, _plain(c.kind, c.shape), c.bytes, processors] += c.count
    return counts


def _count(op, times, functions, sizes, found):
    name = op.operation.name
    if name in _KINDS:
        processors = None if name.endswith("permute") else _processors(str(op.attributes["replica_groups"]), sizes)
        for operand in op.operands:
            shape, element = tuple(operand.type.shape), operand.type.element_type
            size = math.prod(shape) * math.ceil(element.width / 8)
            found[_KINDS[name], _plain(_KINDS[name], shape), size, processors] += times
    elif name == "func.call":
        _count(functions[op.attributes["callee"].value], times, functions, sizes, found)
    else:
        trips = _trips(op) if name == "stablehlo.while" else 1
        for region in op.operation.regions:
            for block in region:
                for inner in block:
                    _count(inner, times * trips, functions, sizes, found)


def _plain(kind, shape):
    """A gather that stacks blocks is lowered as one that joins blocks with a dimension of 1 more: leave those out."""
    return tuple(size for size in shape if size != 1) if kind == "all-gather" else shape


def _trips(loop):
    """Returns the constant that the counter of a scan is compared with; 1 for a loop whose turns nobody knows."""
    condition = [op for block in loop.operation.regions[0] for op in block]
    names = [op.operation.name for op in condition]
    if names != ["stablehlo.constant", "stablehlo.compare", "stablehlo.return"]:
        return 1
    return int(re.search(r"dense<(\d+)>", str(condition[0].attributes["value"]))[1])


def _processors(groups, sizes):
    if "axis_ref" in groups:  # since jax 0.12 axes of a mesh
        return math.prod(sizes[name] for name in re.findall(r'name = "(\w+)"', groups))
    first = re.search(r"dense<\[\[([\d, ]+)\]", groups)
    return len(first[1].split(",")) if first else 1
