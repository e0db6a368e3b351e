"""`meshax bench step`."""

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Annotated

from tyro.conf import arg

from .beside import BesideOption, LimitOption, check_beside, listed, measured_beside, table
from .model_options import ModelGroup, ModelOptions, given_fields
from .options import Reporting, UsageError, same, usage, use_processors

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
    rings: Annotated[
        str,
        arg(
            metavar="AXES",
            help="Axes around which linear maps send blocks, and stored parameters gradients: model, or rows+cols.",
        ),
    ] = ""
    keep: Annotated[
        str, arg(metavar="WHAT", help="What the backward pass keeps; auto: the most that fits; none: as meshax train.")
    ] = ""
    layers_as: Annotated[str, arg(metavar="HOW", help="loop, unrolled or auto; none: the preset's.")] = ""
    dtype: Annotated[str, arg(metavar="DTYPE", help="Of products; none: the preset's.")] = ""
    optimizer: Annotated[str, arg(metavar="NAME", help="adafactor, adamw, momentum or sgd.")] = "adafactor"
    packed: Annotated[bool, arg(help="Put two documents into each example, which attention keeps apart.")] = False
    overlap: Annotated[bool, arg(help="Ask the compiler to run collectives beside computation.")] = False
    compiler_options: Annotated[
        tuple[str, ...], arg(metavar="FLAG=VALUE", help="XLA's flags for the step, beside those of meshax train.")
    ] = ()
    rounds: Annotated[int, arg(metavar="N", help="Rounds of which the median counts.")] = 3
    steps: Annotated[int, arg(metavar="N", help="Steps of a round.")] = 5
    beside: BesideOption = ()
    limit: LimitOption = 0.0

    def run(self) -> None:
        """Measures and prints."""
        import jax

        self._check()
        use_processors(self.mesh or "data:1")
        jax.config.update("jax_enable_compilation_cache", False)  # how long it compiles is measured
        from ..bench.beside import check, in_turns, together
        from ..bench.step import FORMULA, Step, measure
        from ..mesh import Mesh
        from ..train.step import check_compiler_options, compiler_options

        given = given_fields(self.model)
        asked = {one.name: getattr(self, one.name) for one in fields(Step) if one.name != "fields"}
        asked |= {name: same(name, asked[name], given[name]) for name in asked.keys() & given.keys()}
        asked["mesh"] = self.mesh or ("data:1" if self._beside else "")  # programs by hand have one processor
        step = Step(fields=given, **asked)
        with usage():
            mesh = Mesh(self.mesh or "data:1", abstract=True)
            step.sizes(), step.make_optimizer(), step.placed(mesh)
            check_compiler_options(compiler_options(mesh, self.compiler_options))
            if self._beside:
                check(step, self._beside)
        measured, failure = measured_beside(
            self._beside,
            f"measuring {self.preset}",
            lambda say: measure(step, self.rounds, self.steps, say=say),
            lambda programs, say: in_turns(programs, step, self.rounds, self.steps, True, say, self.limit),
        )
        results = [together(several) for several in measured.values()]
        data = {"formula": FORMULA, "measurements": [one.as_dict() for one in results]}
        if results:
            self.report(data, as_text(results, FORMULA), folded=False)
        if failure:
            raise failure

    @property
    def _beside(self) -> tuple[str, ...]:
        return listed(self.beside)

    def _check(self) -> None:
        for name in ("rounds", "steps"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name} is {getattr(self, name)}.", fix="give a number, 1 or more.")
        check_beside(self._beside, self.mesh, self.limit)


def as_text(results: "list[Measurement]", formula: str) -> str:
    """Returns measurements for reading: a line for each, then the time by kind of kernel."""
    first = results[0]
    lines = [f"{first.parameters:,} parameters, {first.tokens:,} tokens a step, {first.device}", ""]
    columns = ["program", "step", "tokens/s", "utilization", "peak memory", "compiling", "tracing", "keeps"]
    rows = [columns, *(_row(one) for one in results)]
    lines += table(rows)
    if first.kernels:
        spent = [one for one in results if one.kernels]
        lines += ["", *table([["ms of a profiled step", *first.kernels], *(_kernels(one) for one in spent)])]
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
        one.keeps,
    ]


def _kernels(one: "Measurement") -> list[str]:
    return [one.program, *(f"{seconds * 1e3:.1f}" for seconds in one.kernels.values())]
