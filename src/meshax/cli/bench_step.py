"""`meshax bench step`."""

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import arg

from .model_options import ModelGroup, ModelOptions, given_fields
from .options import Reporting, UsageError, progress_console, usage, use_processors

if TYPE_CHECKING:
    from ..bench.step import Measurement


@dataclass(kw_only=True)
class BenchStep(Reporting):
    """Measures the training step of a preset: its time, memory, compiling, and what the time goes into.

    meshax bench step --preset lm-4.90b --batch 32 --length 256 --keep everything --beside jax torch
    """

    preset: Annotated[str, arg(metavar="NAME", help="The model (see meshax presets).")] = "tiny"
    model: ModelGroup = field(default_factory=ModelOptions)
    batch: Annotated[int, arg(metavar="N", help="Examples in a step; 0: the preset's.")] = 0
    length: Annotated[int, arg(metavar="N", help="Tokens in an example; 0: the preset's.")] = 0
    mesh: Annotated[str, arg(metavar="AXES", help="The processors; none: all there are, or one of a CPU.")] = ""
    layout: Annotated[str, arg(metavar="RULES", help="Rules, or a name: see meshax train.")] = "none"
    param_layout: Annotated[str, arg(metavar="RULES", help="Rules added where parameters are stored.")] = ""
    optimizer_layout: Annotated[str, arg(metavar="RULES", help="Rules added where its state is stored.")] = ""
    rings: Annotated[str, arg(metavar="AXES", help="Axes around which linear maps send blocks.")] = ""
    keep: Annotated[str, arg(metavar="WHAT", help="What the backward pass keeps; none: the preset's.")] = ""
    layers_as: Annotated[str, arg(metavar="HOW", help="loop, unrolled or auto; none: the preset's.")] = ""
    dtype: Annotated[str, arg(metavar="DTYPE", help="Of products; none: the preset's.")] = ""
    optimizer: Annotated[str, arg(metavar="NAME", help="adafactor, adamw, momentum or sgd.")] = "adafactor"
    packed: Annotated[bool, arg(help="Put two documents into each example, which attention keeps apart.")] = False
    rounds: Annotated[int, arg(metavar="N", help="Rounds of which the median counts.")] = 3
    steps: Annotated[int, arg(metavar="N", help="Steps of a round.")] = 5
    beside: Annotated[
        tuple[str, ...],
        arg(metavar="PROGRAM", help="Measure in turns with the same model by hand: jax, torch, or both."),
    ] = ()

    def run(self) -> None:
        """Measures and prints."""
        self._check()
        use_processors(self.mesh or "data:1")
        from ..bench.beside import in_turns, together
        from ..bench.step import FORMULA, Step, measure

        asked = {one.name: getattr(self, one.name) for one in fields(Step) if one.name != "fields"}
        step = Step(fields=given_fields(self.model), **asked)
        with usage():
            step.model(), step.sizes()
        console = progress_console()
        programs = ("meshax", *self.beside)
        measured: dict[str, list[Measurement]] = {program: [] for program in programs}
        if not self.beside:
            with console.status(f"measuring {self.preset}"):
                measured["meshax"].append(measure(step, self.rounds, self.steps))
        else:
            with console.status("measuring, each program in a process of its own") as status:
                for one in in_turns(programs, step, self.rounds, self.steps, profile=True):
                    measured[one.program].append(one)
                    status.update(f"{one.program}: {one.seconds * 1e3:.1f} ms")
        results = [together(several) for several in measured.values()]
        data = {"formula": FORMULA, "measurements": [one.as_dict() for one in results]}
        self.report(data, as_text(results, FORMULA), folded=False)

    def _check(self) -> None:
        for name in ("rounds", "steps"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name} is {getattr(self, name)}.", fix="give a number, 1 or more.")
        unknown = [name for name in self.beside if name not in ("jax", "torch")]
        if unknown:
            raise UsageError(f"there is no program {unknown[0]!r}.", fix="choose jax, torch, or both.")
        if self.beside and self.mesh:
            raise UsageError("programs by hand run on one processor.", fix="leave out --mesh, or --beside.")
        if self.beside and self.packed:
            raise UsageError("programs by hand pack nothing.", fix="leave out --packed, or --beside.")


def as_text(results: "list[Measurement]", formula: str) -> str:
    """Returns measurements for reading: a line for each, then the time by kind of kernel."""
    first = results[0]
    lines = [f"{first.parameters:,} parameters, {first.tokens:,} tokens a step, {first.device}", ""]
    columns = ["program", "step", "tokens/s", "utilization", "peak memory", "compiling", "tracing"]
    rows = [columns, *(_row(one) for one in results)]
    lines += table(rows)
    if first.kernels:
        spent = [one for one in results if one.kernels]
        lines += ["", *table([["ms of a step", *first.kernels], *(_kernels(one) for one in spent)])]
    return "\n".join([*lines, "", f"utilization: {formula}, over the step's time and the peak"])


def _row(one: "Measurement") -> list[str]:
    memory = f"{one.peak_bytes / 2**30:.1f} GiB" if one.peak_bytes else "unknown"
    return [
        one.program,
        f"{one.seconds * 1e3:.1f} ms",
        f"{one.tokens / one.seconds:,.0f}",
        "unknown" if one.utilization is None else f"{one.utilization:.1%}",
        memory,
        f"{one.compile_seconds:.1f} s",
        f"{one.trace_seconds:.1f} s",
    ]


def _kernels(one: "Measurement") -> list[str]:
    return [one.program, *(f"{seconds * 1e3:.1f}" for seconds in one.kernels.values())]


def table(rows: list[list[Any]]) -> list[str]:
    """Returns lines in columns; where the terminal is narrower, a line for each row."""
    from ..plan.printing.terminal import fitted_lines, terminal_width

    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    if (columns := terminal_width()) is not None and sum(widths) + 2 * len(widths[1:]) > columns:
        cells = ((row[0], zip(rows[0][1:], row[1:], strict=True)) for row in rows[1:])
        records = (f"{first}: {', '.join(map(' '.join, pairs))}" for first, pairs in cells)
        return fitted_lines("\n".join(records), columns).splitlines()
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
