"""Which values are the same on several processors, and so which products are computed more than once.

JAX's types do not tell: a value that may differ ("varying") may be equal all the same, as parameters are that were
cast to take part in a data-parallel step. So we follow from the arguments where values really differ: over the axes
that split them, and over those of the collectives and processor numbers they were made from.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .communication import axes_of, is_collective
from .walk import Block, Step, Value

_Axes = frozenset[str]
_SAME: _Axes = frozenset()


@dataclass(frozen=True)
class Duplicate:
    """A product that several processors compute alike."""

    line: str
    op: str
    axes: tuple[str, ...]
    flops: int  # of one processor, in one call
    share: float  # of them, what others do too: 3/4 if four processors do the same

    @property
    def wasted(self) -> int:
        """The FLOPs that a rule which splits the product over the axes would save."""
        return round(self.flops * self.share)


class Sameness:
    """Over which mesh axes each value of a program differs."""

    def __init__(self, block: Block, arguments: Sequence[_Axes]):
        """Follows the program from the axes that split each of its inputs."""
        self._differs: dict[Value, _Axes] = {}
        self._run(block, arguments)

    def differs(self, value: Value) -> _Axes:
        """Returns the axes along which processors hold different values."""
        return self._differs.get(value, _SAME)

    def step_differs(self, step: Step) -> _Axes:
        """Returns the axes along which processors give a step different operands.

        All blocks that go around come to all processors, in some order: if the matrix is the same, so are the products.
        """
        operands = [self.differs(v) for v in step.inputs]
        is_same = step.traits.is_product and any(_around(step).isdisjoint(axes) for axes in operands)
        return _SAME.union(*operands) - (_around(step) if is_same else _SAME)

    def copies(self, step: Step, axis_sizes: Mapping[str, int]) -> int:
        """Returns how many processors compute a step alike."""
        return math.prod(axis_sizes[axis] for axis in self.same_axes(step, axis_sizes))

    def same_axes(self, step: Step, axis_sizes: Mapping[str, int]) -> tuple[str, ...]:
        """Returns the axes along which several processors compute a step alike."""
        differs = self.step_differs(step)
        return tuple(axis for axis, size in axis_sizes.items() if size > 1 and axis not in differs)

    def _run(self, block: Block, inputs: Sequence[_Axes]) -> list[_Axes]:
        for value, axes in zip(block.inputs, inputs, strict=True):
            self._differs[value] = self.differs(value) | axes
        for step in block.steps:
            for value, axes in zip(step.outputs, self._outputs(step), strict=True):
                self._differs[value] = axes
        return [self.differs(v) for v in block.outputs]

    def _outputs(self, step: Step) -> list[_Axes]:
        if step.blocks:
            operands = [self.differs(v) for v in step.inputs]
            inner = {"scan": self._scan, "while": self._while, "cond": self._cond}[step.name]
            return inner(step, operands)
        together = self.step_differs(step)
        if step.name == "axis_index":
            together = frozenset(axes_of(step)) - _around(step)  # it only tells the order
        elif is_collective(step):
            axes = frozenset(axes_of(step))
            together = together - axes if step.traits.joins else together | axes
        return [together] * len(step.outputs)

    def _scan(self, step: Step, operands: list[_Axes]) -> list[_Axes]:
        consts, carry = step.params["num_consts"], step.params["num_carry"]
        return self._until_settled(step.blocks[0], operands, slice(consts, consts + carry), carry)

    def _while(self, step: Step, operands: list[_Axes]) -> list[_Axes]:
        first, second = step.params["cond_nconsts"], step.params["body_nconsts"]
        body = step.blocks[1]
        carry = operands[first + second :]
        return self._until_settled(body, operands[first : first + second] + carry, slice(second, None), len(carry))

    def _until_settled(self, body: Block, operands: list[_Axes], carried: slice, carry: int) -> list[_Axes]:
        while True:  # each turn adds an axis to some value, so it ends
            out = self._run(body, operands)
            wider = [a | b for a, b in zip(operands[carried], out[:carry], strict=True)]
            if wider == operands[carried]:
                return out
            operands = [*operands[: carried.start], *wider, *operands[carried.start + carry :]]

    def _cond(self, step: Step, operands: list[_Axes]) -> list[_Axes]:
        outs = [self._run(block, operands[1:]) for block in step.blocks]
        return [_SAME.union(operands[0], *axes) for axes in zip(*outs, strict=True)]


def _around(step: Step) -> _Axes:
    """Returns the axes of the ring in which a step is; backwards none: gradients of blocks are parts of sums."""
    return _SAME if step.phase == "backward" else step.ring


def duplicates_of(flops: Mapping[Step, int], sameness: Sameness, axis_sizes: Mapping[str, int]) -> list[Duplicate]:
    """Returns the products that several processors compute alike, those of one line together, largest first."""
    flops_by_line: dict[tuple[str, str, tuple[str, ...]], int] = {}
    for step, count in flops.items():
        same = sameness.same_axes(step, axis_sizes)
        if same and count:
            key = (step.source.line, step.source.op, same)
            flops_by_line[key] = flops_by_line.get(key, 0) + count * step.times
    duplicates = [
        Duplicate(line, op, axes, count, 1 - 1 / math.prod(axis_sizes[a] for a in axes))
        for (line, op, axes), count in flops_by_line.items()
    ]
    return sorted(duplicates, key=lambda d: -d.wasted)
