"""`meshax generate`."""

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import arg

from ..interrupts import finishing
from .compile_cache import keep_compiled_programs
from .options import Reporting, UsageError, progress_console, step_of, use_processors


@dataclass(kw_only=True)
class Generate(Reporting):
    """Writes on from a beginning, with a trained model.

    meshax generate --run runs/tiny --prompt "def "
    """

    run_: Annotated[str, arg(name="run", metavar="DIR", help="The directory that meshax train wrote.")] = "runs/tiny"
    prompt: Annotated[str, arg(metavar="TEXT", help="The beginning.")] = "def "
    tokens: Annotated[int, arg(metavar="N", help="How many tokens to write at most.")] = 100
    temperature: Annotated[float, arg(metavar="T", help="Below 1 the likely become likelier.")] = 0.8
    top_k: Annotated[int, arg(metavar="K", help="Draw among so many of the likeliest; 0: among all.")] = 40
    seed: Annotated[int, arg(metavar="N", help="Chooses the draws.")] = 0
    step: Annotated[str, arg(metavar="STEP", help="A step, latest or best.")] = "latest"
    mesh: Annotated[str, arg(metavar="AXES", help="Other processors than it was trained on.")] = ""
    layout: Annotated[str, arg(metavar="RULES", help="Another layout than it was trained under.")] = ""

    def run(self) -> None:
        """Restores and samples."""
        self._check()
        step = step_of(self.step)
        from ..train.loop import Run, run_config
        from ..train.options import VIRTUAL

        config = run_config(self.run_, mesh=self.mesh, layout=self.layout)
        use_processors(config.mesh or VIRTUAL)
        from ..data.vocabulary import Vocabulary
        from ..decode.sampling import generate, sampler
        from ..train.corpus import VOCABULARY

        console = progress_console()
        keep_compiled_programs(console)
        run = Run(config, console, read_only=True)
        if run.model.batch_kind != "tokens":
            raise UsageError(f"the model in {self.run_!r} writes no text.", fix="name the run of a language model.")
        words = Vocabulary.load(run.directory / VOCABULARY)
        start, tokens = words.encode(self.prompt), list[int]()
        with finishing() as work:
            state, _ = run.restored(step)
            draw = sampler(state.model, run.mesh, run.layout, run.sizes["length"], self.top_k or None)
            how = words.end, self.seed, self.temperature, words.begin
            for token in generate(draw, start, self.tokens, *how):
                work.check()
                tokens.append(token)
        text = self.prompt + words.decode(tokens, after=start)
        self.report({"prompt": self.prompt, "text": text, "tokens": len(tokens)}, text, folded=False)

    def _check(self) -> None:
        try:
            self.prompt.encode()
        except UnicodeEncodeError:
            raise UsageError("the prompt is not UTF-8.", fix="set a UTF-8 locale, as in LC_ALL=C.UTF-8.") from None
        for name, least in (("tokens", 0), ("top_k", 0), ("temperature", 0), ("seed", 0)):
            if not getattr(self, name) >= least:
                raise UsageError(f"{name} is {getattr(self, name)}.", fix=f"give a number, {least} or more.")
