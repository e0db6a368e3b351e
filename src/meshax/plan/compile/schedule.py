"""What runs beside a collective in a compiler's schedule, between its start and its end.

Products take time that can hide something. Arithmetic alone may be as short as a norm, or the sum that a ring makes of
what arrives; and what only moves data hides nothing.
"""

import itertools
import re
from collections.abc import Iterable

from .hlo_text import Computation, Instruction

NOTHING, ARITHMETIC, PRODUCTS = "nothing", "arithmetic", "products"
_ORDER = (NOTHING, ARITHMETIC, PRODUCTS)
_MOVES = frozenset(
    [
        *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "bitcast-convert", "copy", "slice"),
        *("dynamic-slice", "dynamic-update-slice", "concatenate", "pad", "broadcast", "transpose", "reshape"),
        *("reverse", "iota", "partition-id", "replica-id", "after-all", "opt-barrier", "all-reduce", "all-gather"),
        *("reduce-scatter", "all-to-all", "ragged-all-to-all", "collective-permute", "send", "recv"),
    ]
)
_KERNELS = re.compile(r'custom_call_target="[^"]*(?:gemm|matmul|conv|fmha|dot|triton|mosaic|tpu_custom_call)', re.I)
_CHAIN = re.compile(r'chain_id="(\w+)"')


class Schedule:
    """The computations of a compiled program, and what each of them computes."""

    def __init__(self, computations: dict[str, Computation]):
        self.computations = computations
        self._known: dict[str, str] = {}
        # a TPU's collective that runs beside others stands in each of their computations, under one number
        self._chains: dict[str, list[str]] = {}
        for name, computation in computations.items():
            for one in computation.instructions:
                if number := chain_of(one):
                    self._chains.setdefault(number, []).append(name)

    def beside(self, one: Instruction, inside: Computation) -> str:
        """Returns what is computed while a collective is on its way: products, other arithmetic, or nothing."""
        if number := chain_of(one):
            return _most(self._of(name) for name in self._chains[number])
        if not one.op.endswith("-start"):
            return NOTHING
        later = inside.instructions[inside.instructions.index(one) + 1 :]
        return _most(map(self._computes, itertools.takewhile(lambda other: one.name not in other.operands, later)))

    def _of(self, name: str) -> str:
        if name not in self._known:
            self._known[name] = NOTHING  # while it is looked at: nothing calls itself
            self._known[name] = _most(map(self._computes, self.computations[name].instructions))
        return self._known[name]

    def _computes(self, one: Instruction) -> str:
        op = one.op.removesuffix("-start").removesuffix("-done")
        if op in ("dot", "convolution") or (op == "custom-call" and _KERNELS.search(one.rest)):
            return PRODUCTS
        if op in _MOVES or op == "custom-call":
            return NOTHING
        if op in ("fusion", "call", "while", "conditional", "async", "map"):
            return _most(self._of(name) for name in one.called if name in self.computations)
        return ARITHMETIC if any(shape for _, shape in one.arrays) else NOTHING  # numbers alone take no time


def chain_of(one: Instruction) -> str:
    """Returns the number under which a TPU's collective stands in several computations, or nothing."""
    found = _CHAIN.search(one.rest)
    return found[1] if found else ""


def _most(kinds: Iterable[str]) -> str:
    return max(kinds, key=_ORDER.index, default=NOTHING)
