"""`meshax score`."""

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import arg

from ..errors import shortened
from .options import UsageError
from .written import OnTrained, read_lines


@dataclass(kw_only=True)
class Score(OnTrained):
    """Says how likely texts are to a trained model, in nats: all their tokens after the first.

    meshax score --run runs/tiny --text "def f(x):"
    """

    text: Annotated[tuple[str, ...], arg(metavar="TEXT ...", help="The texts.", help_behavior_hint="")] = ()
    texts: Annotated[
        str, arg(metavar="FILE", help="A file with a text on each line; - is standard input.", help_behavior_hint="")
    ] = ""

    def run(self) -> None:
        """Restores and scores."""
        lines = read_lines(self.texts, "texts") if self.texts else []
        texts = [*self.text, *lines]
        if not texts:
            raise UsageError("there is no text.", fix="give --text TEXT, or --texts FILE.")
        with self.restored() as run:
            from ..decode.scoring import score

            tokens = run.words.encode_batch(texts)
            places = [*(f"--text, number {n}" for n in range(1, len(self.text) + 1))]
            places += [f"{self.texts}, line {n}" for n in range(1, len(lines) + 1)]
            if empty := [place for place, own in zip(places, tokens, strict=True) if not own]:
                raise UsageError("the text '' has no tokens.", values=shortened(empty), fix="leave it out.")
            scores = score(run.model, run.mesh, run.layout, tokens)
        rows = zip(texts, scores, tokens, strict=True)
        results = [{"text": text, "log_probability": value, "tokens": own} for text, value, own in rows]
        shown = [f"{value:.4f}  {text}" for text, value in zip(texts, scores, strict=True)]
        self.report({"results": results}, "\n".join(shown), folded=False)
