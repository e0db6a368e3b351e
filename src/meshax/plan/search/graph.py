"""One trace for all layouts: a program with the name of every dimension of every array in it.

The program is traced once, unsplit, with the names of tensors' dims written into the trace; JAX carries them through
its own derivatives. From there they are followed through every operation. A layout then says, without another trace,
how large each array is on one processor and what must be communicated: a sum over a split dim is a pending sum, a
rename from a split to an unsplit name is a gather, and so on, as in the program itself.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from ...layout import Layout
from ...mesh import Mesh
from ...program import Program
from ...tensors import is_tensor, recording_names
from ..reading.kernels import Kernels, kernels_of
from ..reading.walk import Block, Step, Value, explained_tracing, read

Names = tuple[str | None, ...]
_TRADING = ("named", "gather", "scatter-add")
_RESIZING = {"slice": 1, "pad": 1, "concatenate": None}  # dims keep their names; how many operands have them
_RESIZING |= dict.fromkeys(("reduce_window_max", "reduce_window_sum", "reduce_window_min", "reduce_window"), 1)


class Graph:
    """A traced program, unsplit, with names."""

    def __init__(self, fn: Any, args: Sequence[Any], donate: Sequence[int] = ()):
        """Traces the function, without any device.

        The mesh is of no hardware, so that attention is products and a softmax: names go through these, and a layout
        that splits positions is seen to communicate. A kernel would hide them.
        """
        program = Program(fn, Mesh("unsplit:1", abstract=True), Layout(), donate)
        with recording_names(), explained_tracing():
            trace = program.trace(*args)
        self.block: Block = read(trace.jaxpr)
        self.kernels: Kernels = kernels_of(self.block)
        self.arguments = jax.tree.leaves(trace.arguments, is_leaf=is_tensor)
        self.donated = trace.donated
        self.sizes: dict[str, int] = {}
        for shape, _ in trace.shapes:
            for dim in shape:
                self.sizes[dim.name] = max(dim.size, self.sizes.get(dim.name, 0))
        self.names: dict[Value, Names] = {}
        inputs = [tuple(d.name for d in x.dims) if is_tensor(x) else (None,) * len(x.shape) for x in self.arguments]
        self._follow(self.block, inputs)
        self._adopt(self.block)

    def of(self, value: Value) -> Names:
        """Returns the names of a value's dimensions; None where it has none."""
        return self.names.get(value) or (None,) * len(value.shape)

    def together(self, step: Step) -> frozenset[str]:
        """Returns the names that meet in a step."""
        return frozenset(n for v in (*step.inputs, *step.outputs) for n in self.of(v) if n is not None)

    def conflicts(self) -> dict[str, set[str]]:
        """Returns for each name those that it meets in some operation: they cannot share a mesh axis."""
        met: dict[str, set[str]] = {name: set() for name in self.sizes}
        for step in self.block.all_steps():
            if step.blocks:
                continue
            # a rename shows one tensor under two names, and a lookup trades one for others: each meets by itself
            sides = [*step.inputs, *step.outputs] if step.name in _TRADING else []
            groups = [frozenset(filter(None, self.of(v))) for v in sides] or [self.together(step)]
            for group in groups:
                for name in group:
                    met.setdefault(name, set()).update(group - {name})
        return met

    def looped_names(self) -> set[str]:
        """Returns the names of the dims that loops go along."""
        loops = [step for step in self.block.all_steps() if step.name == "scan"]
        return {n for step in loops for v in step.inputs for n in self.of(v)[:1] if n and _is_sliced(step, v)}

    def _follow(self, block: Block, inputs: Sequence[Names]) -> list[Names]:
        for value, names in zip(block.inputs, inputs, strict=True):
            self.names[value] = names if len(names) == len(value.shape) else (None,) * len(value.shape)
        for step in block.steps:
            outputs = self._through_blocks(step) if step.blocks else _names_of_outputs(step, self)
            self.names.update(zip(step.outputs, outputs, strict=True))
        return [self.of(v) for v in block.outputs]

    def _adopt(self, block: Block) -> None:
        """Names from behind what has none from before: constants spread out to meet a tensor."""
        for step in reversed(block.steps):
            for inner in step.blocks:
                if step.name == "scan":
                    outer = [self.of(v) for v in step.outputs]
                    carry = step.params["num_carry"]
                    for value, names in zip(
                        inner.outputs, [*outer[:carry], *(n[1:] for n in outer[carry:])], strict=True
                    ):
                        self._fill(value, names)
                self._adopt(inner)
            if step.name == "scan":
                first = step.params["num_consts"] + step.params["num_carry"]
                inside = [self.of(v) for v in step.blocks[0].inputs]
                for value, names in zip(
                    step.inputs, [*inside[:first], *((None, *n) for n in inside[first:])], strict=True
                ):
                    self._fill(value, names)
            elif not step.blocks and step.outputs:
                for value in step.inputs:
                    self._fill(value, _names_of_operand(step, value, self.of(step.outputs[0])))

    def _fill(self, value: Value, names: Names) -> None:
        if not value.is_constant and len(names) == len(value.shape):
            own = self.of(value)
            self.names[value] = tuple(n or new for n, new in zip(own, names, strict=True))

    def _through_blocks(self, step: Step) -> list[Names]:
        operands = [self.of(v) for v in step.inputs]
        if step.name == "scan":
            first = step.params["num_consts"] + step.params["num_carry"]
            out = self._follow(step.blocks[0], [*operands[:first], *(n[1:] for n in operands[first:])])
            carry = step.params["num_carry"]
            looped = next((n[0] for n in operands[first:] if n and n[0]), None)
            return [*out[:carry], *((looped, *names) for names in out[carry:])]
        if step.name == "while":
            conds, consts = step.params["cond_nconsts"], step.params["body_nconsts"]
            self._follow(step.blocks[0], [*operands[:conds], *operands[conds + consts :]])
            return self._follow(step.blocks[1], operands[conds:])
        return [self._follow(block, operands[1:]) for block in step.blocks][0]


def _is_sliced(loop: Step, value: Value) -> bool:
    return value in loop.inputs[loop.params["num_consts"] + loop.params["num_carry"] :]


def _names_of_outputs(step: Step, graph: Graph) -> list[Names]:
    operands = [graph.of(v) for v in step.inputs]
    out = step.outputs[0] if step.outputs else None
    if out is None:
        return []
    if step.name == "named":
        return [step.params["names"]]
    if step.name == "transpose":
        return [tuple(operands[0][i] for i in step.params["permutation"])]
    if step.traits.fusion == "reduction" and "axes" in step.params:
        kept = [n for i, n in enumerate(operands[0]) if i not in step.params["axes"]]
        return [tuple(kept)] * len(step.outputs)
    if step.name == "broadcast_in_dim":
        names: list[str | None] = [None] * len(out.shape)
        for i, place in enumerate(step.params["broadcast_dimensions"]):
            if step.inputs[0].shape[i] == out.shape[place]:
                names[place] = operands[0][i]
        return [tuple(names)]
    if step.name == "dot_general":
        (left, right), (left_batch, right_batch) = step.params["dimension_numbers"]
        batch = [operands[0][i] or operands[1][j] for i, j in zip(left_batch, right_batch, strict=True)]
        free = [n for i, n in enumerate(operands[0]) if i not in (*left, *left_batch)]
        free += [n for i, n in enumerate(operands[1]) if i not in (*right, *right_batch)]
        return [(*batch, *free)]
    if step.name == "conv_general_dilated":
        return [_convolved(step, *operands)]
    if step.name in ("reshape", "squeeze", "expand_dims"):
        return [_reshaped(step.inputs[0].shape, operands[0], out.shape)]
    if step.name in _RESIZING:
        return [tuple(next(filter(None, names), None) for names in zip(*operands[: _RESIZING[step.name]], strict=True))]
    return [_like_operands(v, step, operands) for v in step.outputs]


def _names_of_operand(step: Step, value: Value, names: Names) -> Names:
    """Returns the names an operand must have for the result to have these."""
    shape = step.outputs[0].shape
    if step.name == "transpose":
        own: list[str | None] = [None] * len(names)
        for i, place in enumerate(step.params["permutation"]):
            own[place] = names[i]
        return tuple(own)
    if step.name == "broadcast_in_dim":
        places = step.params["broadcast_dimensions"]
        return tuple(names[p] if value.shape[i] == shape[p] else None for i, p in enumerate(places))
    if step.name in ("reshape", "squeeze", "expand_dims"):
        return _reshaped(shape, names, value.shape)
    if step.traits.is_product or len(value.shape) != len(shape):
        return ()
    if step.name in _RESIZING:
        return names
    return tuple(n if size == own else None for n, size, own in zip(names, shape, value.shape, strict=True))


def _convolved(step: Step, left: Names, right: Names) -> Names:
    """A convolution keeps batch and places, and has the kernel's features; its derivative by the kernel, taps."""
    numbers, names = step.params["dimension_numbers"], dict.fromkeys(range(len(left)), None)
    for i, j, k in zip(numbers.out_spec[2:], numbers.lhs_spec[2:], numbers.rhs_spec[2:], strict=True):
        names[i] = left[j] if left[j] != right[k] else None  # type: ignore[assignment]
    names[numbers.out_spec[0]] = left[numbers.lhs_spec[0]]  # type: ignore[assignment]
    names[numbers.out_spec[1]] = right[numbers.rhs_spec[0]]  # type: ignore[assignment]
    return tuple(names.values())


def _reshaped(old: Sequence[int], names: Names, new: Sequence[int]) -> Names:
    """Follows names through a reshape: dimensions before and behind which equally many elements lie are the same."""
    places = {(math.prod(old[:i]), size): names[i] for i, size in enumerate(old) if size > 1}
    return tuple(places.get((math.prod(new[:i]), size)) if size > 1 else None for i, size in enumerate(new))


def _like_operands(value: Value, step: Step, operands: list[Names]) -> Names:
    """Names of an elementwise result, or one that is nearly so: those of operands of its rank, where sizes agree."""
    alike = [(v, n) for v, n in zip(step.inputs, operands, strict=True) if len(v.shape) == len(value.shape)]
    return tuple(
        next((names[i] for v, names in alike if names[i] and v.shape[i] == size), None)
        for i, size in enumerate(value.shape)
    )


def summed_names(step: Step, graph: Graph) -> Iterator[str]:
    """Iterates over the names over which a step sums: if they are split, its result is a pending sum."""
    names = graph.of(step.inputs[0]) if step.inputs else ()
    positions: Sequence[int] = ()
    if step.name == "dot_general":
        positions = step.params["dimension_numbers"][0][0]
    elif step.name == "reduce_sum":
        positions = step.params["axes"]
    elif step.name == "gather":
        positions = step.params["dimension_numbers"].start_index_map
    elif step.name == "conv_general_dilated":
        numbers, taps = step.params["dimension_numbers"], graph.of(step.inputs[1])
        both = zip(numbers.lhs_spec[2:], numbers.rhs_spec[2:], strict=True)
        is_grouped = step.params["feature_group_count"] > 1
        positions = [*([] if is_grouped else [numbers.lhs_spec[1]]), *(i for i, j in both if names[i] == taps[j])]
    yield from (names[i] for i in positions if names[i] is not None)  # type: ignore[misc]
