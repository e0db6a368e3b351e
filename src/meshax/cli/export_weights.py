"""`meshax export`."""

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import arg

from .options import Reporting, step_of


@dataclass(kw_only=True)
class ExportWeights(Reporting):
    """Writes the weights of a run as a Hugging Face folder, which other libraries read.

    meshax export --run runs/llama --to models/mine
    """

    run_: Annotated[str, arg(name="run", metavar="DIR", help="The directory that meshax train or import wrote.")]
    to: Annotated[str, arg(metavar="DIR", help="The folder to make.")]
    step: Annotated[str, arg(metavar="STEP", help="A step, latest or best.")] = "latest"
    dtype: Annotated[
        str,
        arg(
            metavar="NAME",
            help="Of the weights: float32, bfloat16 or float16.",
            help_behavior_hint="(default: what they were imported in, else float32)",
        ),
    ] = ""

    def run(self) -> None:
        """Exports."""
        import jax

        step = step_of(self.step)
        jax.config.update("jax_platforms", "cpu")
        from ..train.config import run_config
        from ..train.foreign import export_run

        export_run(run_config(self.run_), self.to, step, self.dtype)
        self.report({"folder": self.to}, f"written: {self.to}")
