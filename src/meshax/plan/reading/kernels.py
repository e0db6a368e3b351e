"""Which operations of a program become one kernel, and what each kernel reads, writes and computes.

A compiler does not run a program operation by operation: elementwise ones are computed inside whatever uses them, and
only some results are ever written to memory. We assume what XLA does in the main: matrix products, collectives, loops,
sorts and the like read and write memory; a reduction writes its result; an elementwise value is written if one of those
needs it, or if fewer bytes are moved so (a sum of several tensors that is used often, as the stream of a Transformer),
and is otherwise computed again wherever it is used.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from .broadcasting import Number
from .primitives import ATTENTION, FLASH, WORK
from .walk import Block, Step, Value

_INSTRUCTIONS = ("rsqrt", "sqrt")  # dear, but processors have them


@dataclass(eq=False)
class Kernel:
    """One kernel: the step that writes, and all that is computed on the way."""

    step: Step
    position: int  # in its block
    reads: list[Value]
    writes: list[Value]
    inside: list[Step]  # its step, and those computed on the way
    stacked: list[Value] = field(default_factory=list)  # of what it writes: what goes into a loop's stack

    @cached_property
    def work(self) -> Mapping[str, Number]:
        """The elements that are transposed, reduced or dear to compute in one execution.

        A GPU does this as fast as it reads and writes. XLA's CPU compiler walks through them in loops of their own.
        """
        work: dict[str, Number] = dict.fromkeys(WORK, 0)
        for step in self.inside:
            if step.name == "dot_general":
                work["transposed"] += sum(v.size for v in _transposed_operands(step))
            elif step.name == "transpose" and _moves(step.inputs[0], step.params["permutation"]):
                turned = _operands_turned_over(step.inputs[0].maker) or step.outputs
                work["transposed"] += sum(v.size for v in turned)
            elif step.traits.fusion == "reduction":
                work["reduced"] += step.inputs[0].size
            elif step.traits.fusion == "dear" and step.name not in _INSTRUCTIONS:
                work["dear"] += step.outputs[0].size
        return work

    @property
    def stacking(self) -> Number:
        """The bytes that XLA moves on GPUs to put results into stacks, on top of writing them once.

        A stack is filled with zeros before its loop. What is computed element by element is written into it at once;
        what takes a kernel of its own, as a product does, is written for whoever uses it, and then copied.
        """
        return (3 if _is_whole(self.step) else 1) * sum(v.bytes for v in self.stacked)

    @cached_property
    def flops(self) -> Number:
        """The FLOPs of its matrix product in one execution; elementwise work counts as memory traffic only."""
        return flops_of(self.step)

    @property
    def is_elementwise(self) -> bool:
        """Whether each element of its result is computed from few of its operands'."""
        return not _is_whole(self.step) and self.step.traits.fusion != "reduction"

    @property
    def is_fusible(self) -> bool:
        """Whether it may compute its operands on the way."""
        return not _is_whole(self.step)

    @property
    def is_in_place(self) -> bool:
        """Whether its result may take the place of an operand that is not needed any more."""
        return not _is_whole(self.step) or self.step.traits.is_all_reduced_sum or self.step.traits.is_scatter

    @property
    def workspace(self) -> Number:
        """The bytes it needs while it runs."""
        return self.step.inputs[0].bytes if self.is_transposing else 0

    @cached_property
    def is_transposing(self) -> bool:
        """Whether it copies an operand: a matrix product that sums over leading dimensions transposes first.

        Many products at once need not, if their batch dimensions lead and those they sum over lie together.
        """
        if self.step.name != "dot_general":
            return False
        (left, _), (left_batch, _) = self.step.params["dimension_numbers"]
        operand = self.step.inputs[0]
        trailing = set(range(len(operand.shape) - len(left), len(operand.shape)))
        batched = bool(left_batch) and set(left_batch) == set(range(len(left_batch)))
        together = max(left, default=0) - min(left, default=0) == len(left) - 1
        return set(left) != trailing and not (batched and together)

    @cached_property
    def bytes(self) -> Number:
        """The bytes it reads and writes in one execution."""
        if self.step.name in ("gather", "dynamic_slice"):  # reads what it takes, not the table
            return 2 * sum(v.bytes for v in self.writes) + sum(v.bytes for v in self.reads[1:])
        if self.step.traits.is_scatter:  # in place
            return 3 * self.reads[-1].bytes if self.reads else 0
        if self.step.params.get("input_output_aliases") and self.step.params.get("cost_estimate"):  # likewise
            return self.step.params["cost_estimate"].bytes_accessed
        return sum(v.bytes for v in self.reads) + sum(v.bytes for v in self.writes)


@dataclass(eq=False)
class Kernels:
    """The kernels of a block, in order, and those of the loops and branches in it."""

    block: Block
    own: "list[Kernel]" = field(default_factory=list)
    inner: "dict[Step, list[Kernels]]" = field(default_factory=dict)
    roots: dict[Value, Value] = field(default_factory=dict)  # a view's memory

    def all(self) -> "Iterator[Kernel]":
        """Iterates over all kernels; a loop is not one, its body's are."""
        for kernel in self.own:
            inside = self.inner.get(kernel.step)
            if inside is None:
                yield kernel
            else:
                for one in inside:
                    yield from one.all()

    def root(self, value: Value) -> Value:
        """Returns the value whose memory a view shows."""
        while value in self.roots:
            value = self.roots[value]
        return value


def kernels_of(block: Block) -> Kernels:
    """Cuts a block into kernels."""
    kernels = Kernels(block)
    for step in block.steps:
        if step.traits.fusion == "view" and step.inputs:
            kernels.roots.update((out, step.inputs[0]) for out in step.outputs)
    stored = _stored(block, kernels)
    for position, step in enumerate(block.steps):
        if step.blocks:
            kernels.inner[step] = [kernels_of(inner) for inner in step.blocks]
        if step.name == "scan":
            _find_stacked(kernels.inner[step][0], step.params["num_carry"])
        writes = [v for v in step.outputs if v in stored and v not in kernels.roots]
        if writes:
            reads, inside = _reads(step, stored, kernels)
            kernels.own.append(Kernel(step, position, reads, writes, inside))
    return kernels


def _find_stacked(turn: Kernels, num_carry: int) -> None:
    """Tells the kernels of a scan's turn what of their results is stacked."""
    stacked = {turn.root(value) for value in turn.block.outputs[num_carry:]}
    for kernel in turn.own:
        kernel.stacked = [value for value in kernel.writes if value in stacked]


def _stored(block: Block, kernels: Kernels) -> set[Value]:
    """Returns the values that are written to memory."""
    stored = set(block.inputs)
    for value in block.outputs:
        stored.add(kernels.root(value))
    for step in block.steps:
        if _is_whole(step):
            stored.update(step.outputs)
            for v in step.inputs:
                root = kernels.root(v)
                if not root.is_constant and not _is_made_on_the_fly(root):
                    stored.add(root)
        elif step.traits.fusion == "reduction":
            stored.update(step.outputs)
    for step in block.steps:
        if not stored.issuperset(step.outputs) and _pays_to_write(step, stored, kernels):
            stored.update(step.outputs)
    return stored


def _pays_to_write(step: Step, stored: set[Value], kernels: Kernels) -> bool:
    """Whether a result is written because it is used often.

    So it is if fewer bytes are moved than by reading its operands at each use; what is dear to compute, if as many are.
    """
    uses = max((len(v.consumers) for v in step.outputs), default=0)
    if uses < 2 or step.traits.fusion in ("view", "free"):
        return False
    again = sum(v.bytes for v in _reads(step, stored, kernels)[0])
    once = sum(v.bytes for v in step.outputs)
    if step.traits.fusion == "dear":
        return bool(np.mean(again - once) >= 0)  # of many layouts: on average
    return bool(np.mean(uses * again - (again + once + uses * once)) > 0)


def _is_whole(step: Step) -> bool:
    return step.traits.fusion == "whole" or bool(step.blocks)


def _is_made_on_the_fly(value: Value) -> bool:
    return value.maker is not None and value.maker.traits.fusion == "free" and not value.maker.inputs


def _reads(step: Step, stored: set[Value], kernels: Kernels) -> tuple[list[Value], list[Step]]:
    """Returns the stored values that a kernel reads, and the steps that it computes on the way, its own first."""
    reads: dict[Value, None] = {}
    inside = {step: None}
    todo, seen = list(reversed(step.inputs)), set()
    while todo:
        value = kernels.root(todo.pop())
        if value in seen:
            continue
        seen.add(value)
        if value in stored:
            reads[value] = None
        elif value.maker is not None:
            inside[value.maker] = None
            todo.extend(reversed(value.maker.inputs))
    return list(reads), list(inside)


def _transposed_operands(product: Step) -> Iterator[Value]:
    """Iterates over the operands that XLA's CPU compiler transposes, by a copy or as it multiplies.

    It multiplies batches of rows by batches of columns, whose dims lie in this order. A second operand may also lie the
    other way around, if it is summed over one dim and has one other beside the batch's.
    """
    (left, right), (left_batch, right_batch) = product.params["dimension_numbers"]
    a, b = product.inputs[:2]
    if _moves(a, (*left_batch, *_others(a, left, left_batch), *left)):
        yield a
    free = _others(b, right, right_batch)
    is_plain = len(right) == len(free) == 1 and not _moves(b, (*right_batch, *free, *right))
    if not is_plain and _moves(b, (*right_batch, *right, *free)):
        yield b


def _operands_turned_over(product: Step | None) -> list[Value]:
    """Returns the operands that are transposed in the place of a product's result, if XLA's CPU compiler does that.

    It turns a product of two matrices over, as the gradient of a weight is written, and Eigen packs both.
    """
    if product is None or product.name != "dot_general":
        return []
    (left, right), (left_batch, right_batch) = product.params["dimension_numbers"]
    a, b = product.inputs[:2]
    is_plain = not left_batch and len(_others(a, left)) == len(_others(b, right, right_batch)) == 1
    return [a, b] if is_plain else []


def _others(value: Value, *places: Sequence[int]) -> list[int]:
    return [i for i in range(len(value.shape)) if not any(i in some for some in places)]


def _moves(value: Value, places: Sequence[int]) -> bool:
    """Whether elements are elsewhere when the dims are in another order; those of one element do not matter."""
    kept = [i for i in places if np.any(value.shape[i] != 1)]
    return kept != sorted(kept)


def flops_of(step: Step) -> Number:
    """Returns the FLOPs of matrix products, convolutions or attention in one execution, 0 for anything else."""
    if step.name == "dot_general":
        (contracted, _), _ = step.params["dimension_numbers"]
        return 2 * step.outputs[0].size * math.prod(step.inputs[0].shape[i] for i in contracted)
    if step.name == "ragged_dot_general":
        return 2 * step.outputs[0].size * step.inputs[0].shape[-1]
    if step.name == "conv_general_dilated":
        numbers = step.params["dimension_numbers"]
        kernel = step.inputs[1]
        spread = math.prod(
            step.params["lhs_dilation"]
        )  # between the operand's elements are zeros, which nobody multiplies
        return 2 * step.outputs[0].size * kernel.size // kernel.shape[numbers.rhs_spec[0]] // spread
    called = step.params.get("name") if step.name == "mpmd_map" else step.name  # by this Pallas calls those for GPUs
    if called in ATTENTION:  # queries [batch, positions, heads, d], keys [batch, memory, heads, d]
        queries, keys = step.inputs[:2]
        return 2 * ATTENTION[called] * queries.size * keys.shape[1]
    if step.name == "pallas_call" and step.params.get("cost_estimate") is not None:
        return step.params["cost_estimate"].flops
    if step.name == "pallas_call" and (products := [n for name, n in FLASH.items() if name in step.scope]):
        queries, keys = step.inputs[:2]  # [batch, heads, positions, d]
        return 2 * products[0] * queries.size * keys.shape[2]
    return 0
