"""`meshax eval`."""

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import arg

from ..interrupts import finishing
from ..train.text_options import TextOptions
from .compile_cache import keep_compiled_programs
from .options import Reporting, UsageError, progress_console, step_of, usage, use_processors

if TYPE_CHECKING:
    from ..train.translations import Judgement


@dataclass(kw_only=True)
class Evaluate(Reporting):
    """Evaluates a trained model on its held-out examples, or on any other text.

    meshax eval --run runs/tiny

    meshax eval --run runs/tiny --data.text "novels/*.txt" --data.errors replace

    meshax eval --run runs/wmt-tiny --data.source news.en --data.target news.fr
    """

    run_: Annotated[str, arg(name="run", metavar="DIR", help="The directory that meshax train or import wrote.")] = (
        "runs/tiny"
    )
    step: Annotated[str, arg(metavar="STEP", help="A step, latest or best.")] = "latest"
    average: Annotated[bool, arg(help="The moving average of the weights, if training kept one.")] = False
    mesh: Annotated[str, arg(metavar="AXES", help="Other processors than it was trained on.")] = ""
    layout: Annotated[str, arg(metavar="RULES", help="Another layout than it was trained under.")] = ""
    translations: Annotated[
        int, arg(metavar="N", help="Of a model that translates: how many sources, for BLEU and chrF; 0: none.")
    ] = 5000
    beam: Annotated[int, arg(metavar="B", help="Of those: how many beginnings live on.")] = 4
    length_penalty: Annotated[float, arg(metavar="A", help="Of those: the exponent; 0: lengths do not count.")] = 0.6
    paper: Annotated[
        bool, arg(help="Of those: also BLEU as the paper counted, which is not sacrebleu's.", help_behavior_hint="")
    ] = False
    data: TextOptions = field(default_factory=TextOptions)

    def run(self) -> None:
        """Restores and evaluates."""
        step = step_of(self.step)
        if self.translations < 0:
            raise UsageError(f"--translations is {self.translations}.", fix="give a number, 0 or more.")
        if self.translations and (self.beam < 1 or not 0 <= self.length_penalty < math.inf):
            raise UsageError(
                "beams are 1 or more, and the exponent of the length penalty is a number, not negative.",
                values=f"--beam {self.beam} --length-penalty {self.length_penalty}",
                fix="for example --beam 4 --length-penalty 0.6.",
            )
        with usage():
            self.data.check()
        from ..train.loop import Run, run_config
        from ..train.options import VIRTUAL

        config = run_config(self.run_, mesh=self.mesh, layout=self.layout)
        use_processors(config.mesh or VIRTUAL)
        console = progress_console()
        keep_compiled_programs(console)
        run = Run(config, console, read_only=True)
        if self.data.text or self.data.source or self.data.pairs or self.data.images:
            run.use_other_text(self.data)
        with finishing("finishing a batch") as work:
            state, extra = run.restored(step, self.average)
            evaluation = run.evaluate(state.model, check=work.check)
            judgement = self._judge(run, state.model) if run.model.batch_kind == "pairs" and self.translations else None
        data = {"step": extra["step"], "loss": evaluation.loss, **evaluation.figures()}
        data |= {f"{run.unit}s": evaluation.count}
        lines = [f"step {extra['step']}: {evaluation}"]
        if judgement is not None:
            data |= judgement.figures() | {"translations": len(judgement.rows)}
            data["signatures"] = {one.name: one.signature for one in judgement.measures}
            lines += judgement.lines()
        self.report(data, "\n".join(lines), folded=judgement is None)

    def _judge(self, run: Any, model: Any) -> "Judgement":
        """Translates, and compares."""
        from ..train.progress import counting
        from ..train.translations import judge

        sources, references = run.examples.held_out_texts(self.translations)
        with usage():
            search = {"beams": self.beam, "alpha": self.length_penalty}
            translator = run.examples.translator(model, run.mesh, run.layout, **search)
        with counting(run.console, "translating", len(sources)) as count:
            return judge(translator, sources, references, paper=self.paper, on_done=count)
