"""Where the time of a program goes, by kind of kernel: from a profile, and the compiled program's own text.

A profile says when which instruction of the compiled program ran on which processor; the text says what the instruction
is: a product, a collective, a copy, and which of our operations it comes from.
"""

import re
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

KINDS = ("products", "attention", "optimizer", "elementwise", "copies", "collectives", "idle")
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = (?:\([^=]*?\)|\S+) ([\w\-]+)\(")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_CALLS = re.compile(r"calls=%?([\w.\-]+)")
_COLLECTIVE = re.compile(r"all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute|nccl", re.IGNORECASE)
_PRODUCT = re.compile(r"gemm|matmul|cublas|cutlass|nvjet|xmma|conv(?!ert)", re.IGNORECASE)
_ATTENTION = re.compile(r"fmha|flash|attention|sdpa|mha|cudnn::fusion", re.IGNORECASE)
_COPY = re.compile(
    r"^(copy|transpose|memcpy|dynamic-slice|dynamic-update-slice|concatenate|slice|bitcast)", re.IGNORECASE
)
_NESTS = ("while", "conditional", "call", "async-start", "async-done")  # their instructions are there too


@dataclass(frozen=True)
class Ran:
    """A kernel that ran: for which instruction, when, in nanoseconds, and on which processor."""

    name: str  # of the instruction, or of a graph of many that was launched as a whole
    kernel: str
    begin: float
    end: float
    processor: Any


@dataclass(frozen=True)
class Took:
    """What all runs of one kernel took together, in seconds, on all processors."""

    kernel: str
    instruction: str  # empty: unknown
    op: str  # which of our operations it comes from
    runs: int
    seconds: float


@dataclass(frozen=True)
class _Instruction:
    opcode: str
    op_name: str
    target: str
    has_product: bool


def kinds_of(text: str) -> dict[str, str]:
    """Returns the kind of each instruction of a compiled program by its name; those that only hold others have none."""
    return {
        name: _kind(name, instruction)
        for name, instruction in _instructions(text).items()
        if instruction.opcode not in _NESTS
    }


def _instructions(text: str) -> dict[str, _Instruction]:
    products: set[str] = set()
    lines: list[tuple[str, str, str]] = []
    inside = ""
    for line in text.splitlines():
        if not line.startswith(" ") and (head := _COMPUTATION.match(line.strip())):
            inside = head[1]
        elif match := _INSTRUCTION.match(line):
            lines.append((match[1], match[2], line))
            if match[2] in ("dot", "convolution"):
                products.add(inside)
    found = {}
    for name, opcode, line in lines:
        op_name, target, calls = (pattern.search(line) for pattern in (_OP_NAME, _TARGET, _CALLS))
        has_product = opcode in ("dot", "convolution") or (calls is not None and calls[1] in products)
        found[name] = _Instruction(opcode, op_name[1] if op_name else "", target[1] if target else "", has_product)
    return found


def _kind(name: str, it: _Instruction) -> str:
    if _COLLECTIVE.search(it.opcode):
        return "collectives"
    if _ATTENTION.search(it.target) or "/step_attention" in it.op_name:
        return "attention"
    if it.has_product or _PRODUCT.search(it.target) or name.startswith("gemm_fusion"):
        return "products"
    if re.search(r"/(optimizer|clip)\b", it.op_name) or "optimizer at " in it.op_name:
        return "optimizer"
    return "copies" if _COPY.match(it.opcode) or _COPY.match(name) else "elementwise"


def time_by_kind(ran: Iterable[Ran], kinds: Mapping[str, str]) -> dict[str, float]:
    """Returns the seconds of each kind of kernel, on the average processor, and how long it was idle.

    Together they are the time from the first kernel to the last, under the profiler, which may slow things down.
    Nothing, if the profile names none of the kernels.

    Args:
        ran: what ran.
        kinds: the kind of each instruction.
    """
    # A kernel of ours is called as its instruction is, one of a library by what it does.
    by_kernel = {re.sub(r"\W", "_", name): kind for name, kind in kinds.items()}
    by_processor: dict[Any, list[tuple[Ran, str]]] = defaultdict(list)
    for one in ran:
        if kind := kinds.get(one.name) or by_kernel.get(one.kernel) or _kind_of_kernel(one.kernel):
            by_processor[one.processor].append((one, kind))
    if not by_processor:
        return {}
    total = dict.fromkeys(KINDS, 0.0)
    for events in by_processor.values():
        until = 0.0
        for one, kind in sorted(events, key=lambda event: event[0].begin):
            alone = max(0.0, one.end - max(one.begin, until))  # what runs beside another counts once
            total[kind] += alone / 1e9 / len(by_processor)
            until = max(until, one.end)
    known = [one for events in by_processor.values() for one, _ in events]
    total["idle"] = (max(one.end for one in known) - min(one.begin for one in known)) / 1e9 - sum(total.values())
    return total


def longest(ran: Iterable[Ran], text: str, most: int = 60) -> list[Took]:
    """Returns the kernels that took longest, those first.

    Args:
        ran: what ran.
        text: the compiled program's.
        most: how many.
    """
    instructions = {name: it for name, it in _instructions(text).items() if it.opcode not in _NESTS}
    by_kernel = {re.sub(r"\W", "_", name): name for name in instructions}
    spent: dict[tuple[str, str], list[float]] = defaultdict(list)
    for one in ran:
        name = one.name if one.name in instructions else by_kernel.get(one.kernel, "")
        if name or _kind_of_kernel(one.kernel):
            spent[one.kernel, name].append((one.end - one.begin) / 1e9)
    took = [
        Took(kernel, name, instructions[name].op_name if name else "", len(times), sum(times))
        for (kernel, name), times in spent.items()
    ]
    return sorted(took, key=lambda one: -one.seconds)[:most]


def _kind_of_kernel(name: str) -> str | None:
    """Returns the kind of a library's kernel by its name; None: an instruction that only holds others."""
    patterns = {"collectives": _COLLECTIVE, "attention": _ATTENTION, "products": _PRODUCT, "copies": _COPY}
    kinds = (kind for kind, pattern in patterns.items() if pattern.search(name))
    return next(kinds, None)


def profiled(run: Callable[[], Any]) -> list[Ran]:
    """Calls a function under JAX's profiler, and returns what ran on the processors."""
    with tempfile.TemporaryDirectory(prefix="meshax-profile-") as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(run())
        with warnings.catch_warnings():  # of JAX's reader: made an error, they end the process
            warnings.simplefilter("ignore")
            return [one for path in Path(folder).rglob("*.xplane.pb") for one in _read(path)]


def _read(path: Path) -> Iterator[Ran]:
    planes = list(jax.profiler.ProfileData.from_file(str(path)).planes)
    devices = [plane for plane in planes if plane.name.startswith("/device:")]
    for plane in devices or planes:
        for line in plane.lines:
            if devices and not line.name.startswith("Stream"):
                continue
            for event in line.events:
                stats = dict(event.stats or ())
                if "hlo_op" in stats or devices:
                    processor = plane.name if devices else stats.get("device_ordinal", 0)
                    name = str(stats.get("hlo_op", event.name))
                    yield Ran(name, event.name, event.start_ns, event.start_ns + event.duration_ns, processor)
