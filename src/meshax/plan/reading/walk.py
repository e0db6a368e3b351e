"""A traced program as plain lists, for whoever wants to read it.

JAX's jaxpr nests a call for every jitted helper, derivative rule and recomputed block. Here calls are inlined, and only
loops and branches stay nested: a `Block` is a list of `Step`s, each with the `Value`s it takes and makes, how often it
runs, and where it comes from. All values are one processor's.
"""

import contextlib
import functools
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax
import jax.extend

from ...checking.border import MARKS
from ...checking.jaxprs import inner_programs, live_jaxpr, scan_counts
from ...errors import MeshaxError
from ...ops.gradients import GRADIENT
from ...rings import RING
from ...sources import LABELS, Source, is_of_library, operations_in, place_of, source_of
from .broadcasting import Number
from .primitives import CONTROL, Traits, traits_of

_RECOMPUTED, _BACKWARD, _FORWARD = ("rematted_computation", "transpose(", "jvp(")


class Value:
    """One array, on one processor."""

    __slots__ = ("consumers", "dtype", "is_constant", "maker", "shape")

    def __init__(self, aval: Any, is_constant: bool = False):
        self.shape: tuple[Any, ...] = tuple(getattr(aval, "shape", ()))  # of a search: arrays, see broadcasting.py
        self.dtype: Any = getattr(aval, "dtype", None)
        self.is_constant = is_constant
        self.maker: Step | None = None
        self.consumers: list[Step] = []

    @property
    def size(self) -> Number:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> Number:
        """The bytes it takes."""
        return self.size * getattr(self.dtype, "itemsize", 0)


@dataclass(eq=False)
class Step:
    """One operation of the program, with its place."""

    name: str
    params: dict[str, Any]
    inputs: list[Value]
    outputs: list[Value]
    scope: str
    tracebacks: tuple[Any, ...]  # its own, then those of the calls around it
    times: int  # executions in one call of the program
    around: "Step | None"  # the loop or branch it stands in
    program: Source  # where the function of the program is defined
    blocks: "list[Block]" = field(default_factory=list)
    phase: str = "forward"
    file_names: Mapping[str, str] = field(default_factory=dict)  # of the files of which several have one name

    @property
    def traits(self) -> Traits:
        """What is known of its primitive."""
        return traits_of(self.name)

    @property
    def ring(self) -> frozenset[str]:
        """The axes around which blocks are sent, if it is a part of that."""
        parts = re.split(r"[/()]", self.scope) if RING in self.scope else []
        return frozenset(a for part in parts if RING in part for a in part.partition(RING)[2].split("+"))

    @cached_property
    def source(self) -> Source:
        """The user's line that caused it, and the operation of ours which that line calls."""
        source = self._own_source or _neighbours_source(self) or (self.around.source if self.around else self.program)
        name = self.file_names.get(source.file)
        return source if name is None else replace(source, told_apart=name)

    @cached_property
    def _own_source(self) -> Source | None:
        inside = self.scope[len(self.around.scope) if self.around else 0 :]
        sources = (source_of(traceback, self.scope) for traceback in self.tracebacks)
        # inside a checkpoint of ours JAX forgets who called it, but not the scope
        return next(filter(None, sources), None) or next(operations_in(inside), None)


@dataclass(eq=False)
class Block:
    """The body of a program, loop or branch."""

    inputs: list[Value]
    steps: list[Step]
    outputs: list[Value]

    def all_steps(self) -> Iterator[Step]:
        """Iterates over the steps in the order they run, those of loops and branches included."""
        for step in self.steps:
            yield step
            for block in step.blocks:
                yield from block.all_steps()


def read(closed: Any, fn: Any = None) -> Block:
    """Reads the jaxpr of a program: the block that each processor runs, dead code left out.

    The inputs are those of the program, one for each leaf of its arguments. A step that no line of the function asks
    for (an argument is returned under another name, and gathered) has the line where the function is defined.
    """
    outer = live_jaxpr(closed)
    if not outer.eqns:  # the function returns nothing: all of it is dead code
        return Block([Value(None) for _ in outer.invars], [], [])
    reader = _Reader(_definition(fn))
    block = _whole_program(outer, reader)
    _mark_phases(block)
    scopes = {step.scope for step in block.all_steps()}
    reader.file_names.update(told_apart(source.file for scope in scopes for source in operations_in(scope)))
    return block


def _whole_program(outer: Any, reader: "_Reader") -> Block:
    """Reads the program in what surrounds it: names of the arguments, and on JAX 0.12 a call that is not inlined."""
    (call,) = (eqn for eqn in outer.eqns if eqn.primitive.name in ("shard_map", "jit", "pjit"))
    inner = call.params["jaxpr"]
    if call.primitive.name == "shard_map":
        block = reader.block(inner, 1, str(call.source_info.name_stack), None)
    else:
        block = _whole_program(inner.jaxpr, reader)
    values = dict(zip(call.invars, block.inputs, strict=True))
    for eqn in reversed(outer.eqns):  # a trace with names names the arguments first
        if eqn.primitive.name == "named" and eqn.outvars[0] in values:
            values[eqn.invars[0]] = values[eqn.outvars[0]]
    block.inputs = [values.get(v) or Value(None) for v in outer.invars]
    return block


class _Reader:
    """Reads nested jaxprs; remembers which value a variable of a jaxpr stands for."""

    def __init__(self, program: Source):
        self.program = program
        self.file_names: dict[str, str] = {}  # filled when all is read

    def block(self, jaxpr: Any, times: int, scope: str, around: Step | None) -> Block:
        inputs = [Value(v.aval) for v in jaxpr.invars]
        steps: list[Step] = []
        return Block(inputs, steps, self._inline(jaxpr, inputs, times, scope, around, (), steps))

    def _inline(
        self,
        jaxpr: Any,
        inputs: Sequence[Value],
        times: int,
        scope: str,
        around: Step | None,
        outer: tuple[Any, ...],
        into: list,
    ) -> list[Value]:
        values: dict[Any, Value] = dict(zip(jaxpr.invars, inputs, strict=True))
        values.update((v, Value(v.aval, is_constant=True)) for v in jaxpr.constvars)
        is_shared = bool(outer) and is_of_library(jaxpr)  # by all who call it: its lines are those of the first

        def value_of(v: Any) -> Value:
            return Value(v.aval, is_constant=True) if hasattr(v, "val") else values[v]

        for eqn in jaxpr.eqns:
            operands = [value_of(v) for v in eqn.invars]
            inside = "/".join(part for part in (scope, str(eqn.source_info.name_stack)) if part)
            tracebacks = outer if is_shared else (eqn.source_info.traceback, *outer)
            inner = inner_programs(eqn)
            if eqn.primitive.name in MARKS:
                results = operands
            elif len(inner) == 1 and eqn.primitive.name not in CONTROL and _is_call(eqn, inner[0]):
                results = self._inline(inner[0], operands, times, inside, around, tracebacks, into)
            else:
                results = [Value(v.aval) for v in eqn.outvars]
                name, params = eqn.primitive.name, _params(eqn)
                step = Step(name, params, operands, results, inside, tracebacks, times, around, self.program)
                step.file_names = self.file_names
                into.append(step)
                for value in operands:
                    value.consumers.append(step)
                for value in results:
                    value.maker = step
                repeats = eqn.params["length"] if eqn.primitive.name == "scan" else 1
                if eqn.primitive.name in CONTROL:
                    step.blocks = [self.block(one, times * repeats, inside, step) for one in inner]
            values.update(zip(eqn.outvars, results, strict=True))
        return [value_of(v) for v in jaxpr.outvars]


def _definition(fn: Any) -> Source:
    while isinstance(fn, functools.partial):
        fn = fn.func
    code = getattr(fn, "__code__", None)
    if code is None or place_of(code.co_filename) == "ours":
        return Source()
    return Source(code.co_filename, code.co_firstlineno, "return")


def without_operations(scope: str) -> str:
    """Returns a scope as the user has named it."""
    parts = re.split(r"([/()])", scope)
    named = (part for part in parts if part not in LABELS and RING not in part)
    return re.sub(r"/+(?=[/)])|/$|^/", "", "".join(named))


def told_apart(files: Iterable[str]) -> dict[str, str]:
    """Returns what those files are called of which several have one name: as much of each path as it takes."""
    alike: dict[str, set[str]] = {}
    for file in files:
        alike.setdefault(os.path.basename(file), set()).add(file)
    names: dict[str, str] = {}
    for same in (sorted(group) for group in alike.values() if len(group) > 1):
        parts = [file.split(os.sep) for file in same]
        count = next(n for n in range(2, 1 + max(map(len, parts))) if len({tuple(p[-n:]) for p in parts}) == len(same))
        names.update((file, "/".join(p[-count:])) for file, p in zip(same, parts, strict=True))
    return names


def _params(eqn: Any) -> dict[str, Any]:
    """Returns the parameters of an equation; for a scan also `num_consts` and `num_carry`, which JAX 0.12 hides."""
    if eqn.primitive.name != "scan":
        return eqn.params
    consts, carry = scan_counts(eqn)
    return {**eqn.params, "num_consts": consts, "num_carry": carry}


def _is_call(eqn: Any, inner: Any) -> bool:
    return len(inner.invars) == len(eqn.invars) and len(inner.outvars) == len(eqn.outvars)


def _neighbours_source(step: Step, reach: int = 12) -> Source | None:
    """Returns the source of what made a step's operands, or else of what first uses its result."""
    for neighbours in (_makers, _users):
        near = [step]
        for _ in range(reach):
            near = list(dict.fromkeys(n for s in near for n in neighbours(s)))
            for neighbour in near:
                if neighbour._own_source:
                    return neighbour._own_source
    return None


def _makers(step: Step) -> Iterator[Step]:
    """Iterates over what made the operands; what a loop or branch of ours made was made inside of it."""
    for value in step.inputs:
        maker = value.maker
        while maker is not None and maker.blocks and not maker._own_source:
            value = maker.blocks[-1].outputs[maker.outputs.index(value)]
            maker = value.maker
        if maker is not None:
            yield maker


def _users(step: Step) -> Iterator[Step]:
    return (user for value in step.outputs for user in value.consumers)


def _mark_phases(block: Block) -> None:
    after_backward = False
    for step in block.all_steps():
        if _RECOMPUTED in step.scope:
            step.phase = "recompute"
        elif _BACKWARD in step.scope or step.scope.endswith(GRADIENT):
            step.phase = "backward"
        elif after_backward and _FORWARD not in step.scope:
            step.phase = "update"
        after_backward |= step.phase == "backward"


@contextlib.contextmanager
def explained_tracing() -> Iterator[None]:
    """Lets errors of the user's function pass as they are, but says what failed if it cannot be traced at all."""
    try:
        yield
    except jax.errors.JAXTypeError as error:
        raise MeshaxError(
            "the function cannot be traced.",
            values=str(error).strip().splitlines()[0][:200],
            rule="a program is traced once, with shapes instead of numbers: Python's if, while, int() and float() need "
            "numbers.",
            fix="use mx.where, mx.cond or mx.while_loop, or pass the number as static data.",
        ) from error
