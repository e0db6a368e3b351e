"""Plans: a program compiled for a machine, which need not be there, by the compiler that will compile it there.

`plan` asks the compiler what our own estimates cannot know: how much memory the program takes on a processor, and which
collectives are left after its optimizations. Both stand beside ours. The time is ours: a compiler does not tell. The
TPU compiler (libtpu) needs no TPU to compile for one; for CPUs and GPUs, devices are needed, which a CPU can pretend.
"""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import jax

from ...errors import ArgumentError, MeshError
from ...program import Program
from ...tensors import Tensor, is_tensor
from ..cost.hardware import Hardware, find
from ..explain.report import Report, explain
from .hlo import CompiledCollective, Moved, compiled_by_kind, compiled_collectives, differences, ours_by_kind
from .schedule import ARITHMETIC, NOTHING, PRODUCTS
from .topologies import hardware_of

# Either "the total memory required ... (23.74G) exceeds available HBM (15.48G)" or "Used 23.74G of 15.48G hbm".
_REFUSED = re.compile(r"([\d.]+)G\)? (?:exceeds available HBM \(|of )([\d.]+)G")
STAGES = ("tracing", "lowering", "compiling", "reading")


@dataclass(frozen=True)
class CompilerMemory:
    """The bytes on one processor, as the compiler laid them out."""

    arguments: int
    results: int
    shared: int  # results that take the place of donated arguments
    temporaries: int
    code: int

    @property
    def total(self) -> int:
        """What has to fit."""
        return self.arguments + self.results - self.shared + self.temporaries + self.code


@dataclass(eq=False)
class Plan:
    """What the compiler says of a program, beside our own report."""

    report: Report
    hardware: Hardware
    memory: CompilerMemory | None  # None: it did not fit, so the compiler gave up
    refusal: str  # the compiler's words then
    collectives: list[CompiledCollective]
    tokens: int  # in one call; 0: there is no integer tensor with the dims batch and length
    took: dict[str, float] = field(default_factory=dict)  # seconds, by stage

    @property
    def fits(self) -> bool:
        """Whether the program fits a processor."""
        return self.memory is not None and self.memory.total <= self.hardware.memory

    @property
    def missing(self) -> int:
        """The bytes that a processor has too few; 0: it fits, or the compiler refuses without numbers."""
        if self.memory is not None:
            return max(self.memory.total - int(self.hardware.memory), 0)
        numbers = _REFUSED.search(self.refusal)
        return int((float(numbers[1]) - float(numbers[2])) * 2**30) if numbers else 0

    @property
    def ours(self) -> dict[str, Moved]:
        """What we emit, by kind of collective."""
        return ours_by_kind(self.report.collectives)

    @property
    def compiled(self) -> dict[str, Moved]:
        """What the compiler left, by kind of collective."""
        return compiled_by_kind(self.collectives)

    def scheduled(self, beside: str) -> Moved:
        """Returns the collectives beside which, in the compiler's schedule, products run, other arithmetic, nothing."""
        some = compiled_by_kind(c for c in self.collectives if c.beside == beside).values()
        return Moved(sum(m.operations for m in some), sum(m.tensors for m in some), sum(m.bytes for m in some))

    @property
    def differences(self) -> list[str]:
        """What the compiler changed, in words."""
        return differences(self.ours, self.compiled) if self.memory is not None else []

    @property
    def estimate(self) -> dict[str, int]:
        """Our own estimate of the memory, in the compiler's classes."""
        own = self.report.memory
        arguments = own["parameters"] + own["optimizer"] + own["inputs"]
        temporaries = own["gradients"] + own["activations"] + own["temporaries"]
        return {"arguments": arguments, "results": own["results"], "temporaries": temporaries, "total": own["peak"]}

    def as_dict(self) -> dict[str, Any]:
        """Returns all of it as plain data."""
        spent, seconds = self.report.time(self.hardware), self.report.seconds(self.hardware)
        mesh = self.report.setting.mesh
        return {
            "program": self.report.program,
            "topology": mesh.topology or mesh.platform,
            "mesh": mesh.axes,
            "layout": repr(self.report.setting.layout),
            "hardware": self.hardware.name,
            "fits": self.fits,
            "memory_limit": int(self.hardware.memory),
            "memory": {**asdict(self.memory), "total": self.memory.total} if self.memory else None,
            "missing": self.missing,
            "refusal": self.refusal,
            "estimated_memory": self.report.memory,
            "collectives": [c.as_dict() for c in self.collectives],
            "collectives_by_kind": {
                kind: {"ours": asdict(self.ours[kind]), "compiled": asdict(self.compiled[kind])} for kind in self.ours
            },
            "differences": self.differences,
            "seconds": seconds,
            "time": self.report.time_as_dict(spent),
            "hidden": asdict(self.scheduled(PRODUCTS)),
            "beside_arithmetic": asdict(self.scheduled(ARITHMETIC)),
            "exposed": asdict(self.scheduled(NOTHING)),
            "tokens": self.tokens,
            "tokens_per_second": self.tokens / seconds if seconds else 0.0,
            "utilization": self.report.utilization(self.hardware),
            "flops": self.report.flops,
            "wire_bytes": self.report.wire_bytes,
            "took": self.took,
        }

    def to_html(self, path: str | Path) -> Path:
        """Writes the page of the report."""
        return self.report.to_html(path, self.hardware)

    def __str__(self) -> str:
        from ..printing.terminal import fitted_lines, terminal_width
        from .text import as_text  # rich is slow to import

        return fitted_lines(as_text(self), terminal_width())


def plan(
    program: Program,
    *args: Any,
    hardware: str | Hardware | None = None,
    progress: Callable[[str], None] = lambda stage: None,
) -> Plan:
    """Compiles a program for the processors of its mesh, and reads what came out.

    Args:
        program: what `mx.spmd` made on a mesh of devices, or of a topology, a machine that is not there:
            `mx.Mesh("data:32 model:16", topology="tpu v2:16x16")`.
        *args: as for a call; tensors of `jax.ShapeDtypeStruct` do: nothing runs.
        hardware: what to price for; by default the mesh's.
        progress: told each of `STAGES` as it begins.
    """
    if not isinstance(program, Program):
        raise ArgumentError(
            f"a plan is of a program, not of {type(program).__name__}.", fix="make one: mx.spmd(fn, mesh, layout)."
        )
    if program.mesh.is_abstract:
        raise MeshError(
            "a plan is compiled, and this mesh has nothing to compile for.",
            values=repr(program.mesh),
            fix='leave out abstract=True, or name a machine: mx.Mesh("data:32 model:16", topology="tpu v2:16x16").',
        )
    machine = find(hardware) if hardware is not None else hardware_of(program.mesh)
    took: dict[str, float] = {}

    @contextmanager
    def stage(name: str) -> Iterator[None]:
        progress(name)
        start = time.perf_counter()
        yield
        took[name] = time.perf_counter() - start

    with stage("tracing"):
        report = explain(program, *args)
    with stage("lowering"):
        lowered = program.lower(*args)
    with stage("compiling"):
        compiled, refusal = _compile(lowered)
    with stage("reading"):
        memory = _memory(compiled.memory_analysis()) if compiled is not None else None
        left = compiled_collectives(compiled.as_text()) if compiled is not None else []
    return Plan(report, machine, memory, refusal, left, count_tokens(args), took)


def _compile(lowered: Any) -> tuple[Any, str]:
    """Returns the compiled program, or why it does not fit: a compiler that runs out of memory has given an answer."""
    try:
        return lowered.compile(), ""
    except jax.errors.JaxRuntimeError as error:
        text = str(error)
        if "RESOURCE_EXHAUSTED" not in text:
            raise
        return None, text.splitlines()[0].partition("RESOURCE_EXHAUSTED: ")[2] or text.splitlines()[0]


def _memory(stats: Any) -> CompilerMemory:
    return CompilerMemory(
        stats.argument_size_in_bytes,
        stats.output_size_in_bytes,
        stats.alias_size_in_bytes,
        stats.temp_size_in_bytes,
        stats.generated_code_size_in_bytes,
    )


def count_tokens(args: Any) -> int:
    """Returns the tokens of one call: the elements of the largest integer tensor's batch and length."""
    counts = [0]
    for leaf in jax.tree.leaves(args, is_leaf=is_tensor):
        if isinstance(leaf, Tensor) and jax.numpy.issubdtype(leaf.dtype, jax.numpy.integer):
            sizes = {d.name: d.size for d in leaf.dims}
            if "batch" in sizes and "length" in sizes:
                counts.append(sizes["batch"] * sizes["length"])
    return max(counts)
