"""`meshax export`."""

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import arg

from .options import Reporting, UsageError, step_of
from .written import OnTrained

_FORMATS = ("huggingface", "stablehlo")


@dataclass(kw_only=True)
class ExportWeights(Reporting):
    """Writes a run for others: its weights as a Hugging Face folder, or programs that run without meshax.

    meshax export --run runs/llama --to models/mine

    meshax export --run runs/llama --to models/programs --format stablehlo --places 2048
    """

    run_: Annotated[str, arg(name="run", metavar="DIR", help="The directory that meshax train or import wrote.")]
    to: Annotated[str, arg(metavar="DIR", help="The folder to make.")]
    step: Annotated[str, arg(metavar="STEP", help="A step, latest or best.")] = "latest"
    format: Annotated[
        str,
        arg(metavar="NAME", help="huggingface: weights. stablehlo: programs that write text, for JAX alone."),
    ] = "huggingface"
    dtype: Annotated[
        str,
        arg(
            metavar="NAME",
            help="Of the weights: float32, bfloat16 or float16.",
            help_behavior_hint="(default: what they were imported in, else float32; of programs, what they compute in)",
        ),
    ] = ""
    slots: Annotated[int, arg(metavar="N", help="Of programs: how many texts they write at once.")] = 1
    places: Annotated[int, arg(metavar="N", help="Of programs: how many tokens a text has at most.")] = 1024
    prompts: Annotated[
        str,
        arg(metavar="N,N...", help="Of programs: the lengths of prompts, or of sources, with one program for each."),
    ] = "64"
    platforms: Annotated[
        str,
        arg(metavar="NAME,...", help="Of programs: cpu, cuda, rocm, tpu.", help_behavior_hint="(default: this one)"),
    ] = ""
    mesh: Annotated[
        str,
        arg(metavar="AXES", help="Of programs: their processors.", help_behavior_hint="(default: the run's)"),
    ] = ""
    layout: Annotated[
        str,
        arg(metavar="RULES", help="Of programs: their layout.", help_behavior_hint="(default: the run's)"),
    ] = ""

    def run(self) -> None:
        """Exports."""
        step = step_of(self.step)
        if self.format not in _FORMATS:
            raise UsageError(f"there is no format {self.format!r}.", fix=f"choose {' or '.join(_FORMATS)}.")
        if self.format == "stablehlo":
            return self._export_programs()
        import jax

        jax.config.update("jax_platforms", "cpu")
        from ..train.config import run_config
        from ..train.foreign import export_run

        export_run(run_config(self.run_), self.to, step, self.dtype)
        self.report({"folder": self.to}, f"written: {self.to}")

    def _export_programs(self) -> None:
        lengths = [word for word in self.prompts.split(",") if word]
        if not lengths or not all(word.isdecimal() for word in lengths) or self.slots < 1 or self.places < 1:
            raise UsageError(
                "there is no such program.",
                values=f"--slots {self.slots} --places {self.places} --prompts {self.prompts}",
                fix="give numbers, 1 or more.",
            )
        if self.dtype:
            raise UsageError("programs are exported in the dtype that they compute in.", fix="leave out --dtype.")
        from ..train.config import run_config

        kind = "pairs" if run_config(self.run_).model().batch_kind == "pairs" else "tokens"
        trained = OnTrained(run_=self.run_, step=self.step, mesh=self.mesh, layout=self.layout)
        with trained.restored_run(kind, "name the run of a model that writes.") as (run, model, work):
            from ..decode.exporting import export_programs
            from ..train.pair_examples import stored_vocabularies
            from ..train.text_record import TARGET_VOCABULARY, VOCABULARY

            work.begin()
            platforms = [word for word in self.platforms.split(",") if word]
            read, written = stored_vocabularies(run.directory)  # one and the same, but of sources and targets
            about = {"tokens": {"begin": written.begin, "end": written.end, "source_end": read.end}}
            export_programs(
                model, run.mesh, run.layout, self.to, slots=self.slots, places=self.places,
                prompts=[int(word) for word in lengths], platforms=platforms, about=about,
            )  # fmt: skip
            read.save(f"{self.to}/{VOCABULARY}")
            if written is not read:
                written.save(f"{self.to}/{TARGET_VOCABULARY}")
        self.report({"folder": self.to}, f"written: {self.to}")
