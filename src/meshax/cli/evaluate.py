"""`meshax eval`."""

from dataclasses import dataclass, field
from typing import Annotated

from tyro.conf import arg

from ..interrupts import finishing
from ..train.text_options import TextOptions
from .compile_cache import keep_compiled_programs
from .options import Reporting, progress_console, step_of, usage, use_processors


@dataclass(kw_only=True)
class Evaluate(Reporting):
    """Evaluates a trained model on its held-out examples, or on any other text.

    meshax eval --run runs/tiny

    meshax eval --run runs/tiny --data.text "novels/*.txt" --data.errors replace
    """

    run_: Annotated[str, arg(name="run", metavar="DIR", help="The directory that meshax train or import wrote.")] = (
        "runs/tiny"
    )
    step: Annotated[str, arg(metavar="STEP", help="A step, latest or best.")] = "latest"
    mesh: Annotated[str, arg(metavar="AXES", help="Other processors than it was trained on.")] = ""
    layout: Annotated[str, arg(metavar="RULES", help="Another layout than it was trained under.")] = ""
    data: TextOptions = field(default_factory=TextOptions)

    def run(self) -> None:
        """Restores and evaluates."""
        step = step_of(self.step)
        with usage():
            self.data.check()
        from ..train.loop import Run, run_config
        from ..train.options import VIRTUAL

        config = run_config(self.run_, mesh=self.mesh, layout=self.layout)
        use_processors(config.mesh or VIRTUAL)
        console = progress_console()
        keep_compiled_programs(console)
        run = Run(config, console, read_only=True)
        if self.data.text:
            run.use_other_text(self.data)
        with finishing("finishing a batch") as work:
            state, extra = run.restored(step)
            evaluation = run.evaluate(state.model, check=work.check)
        data = {"step": extra["step"], "loss": evaluation.loss, **evaluation.figures()}
        self.report(data | {f"{run.unit}s": evaluation.count}, f"step {extra['step']}: {evaluation}")
