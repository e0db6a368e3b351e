"""What a run that translates is judged by beside its loss: translations of held-out sources, BLEU and chrF."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..data.bleu import Measure, measures
from ..decode.translating import Translator
from ..layout import Layout
from ..mesh import Mesh
from .pair_examples import PairExamples

_SHOWN = 5


@dataclass(frozen=True)
class Judgement:
    """Translations of held-out sources beside their references, and how near they are."""

    rows: list[tuple[str, str, str]]  # a source, its translation, the reference
    measures: list[Measure]

    def figures(self) -> dict[str, float]:
        """Returns the measures by name."""
        return {one.name.lower().replace(" ", "_"): one.value for one in self.measures}

    def lines(self) -> list[str]:
        """Returns the measures in words."""
        return [f"{one}, {len(self.rows):,} translations" for one in self.measures]

    def samples(self) -> list[str]:
        """Returns some of the translations, those that are wrong beside what is right."""
        lines = []
        for source, translation, reference in self.rows[:: max(len(self.rows) // _SHOWN, 1)][:_SHOWN]:
            lines += [f"  {source}", f"    {translation}"]
            lines += [f"    not: {reference}"] if translation != reference else []
        return lines


def judge(
    examples: PairExamples,
    model: Any,
    mesh: Mesh,
    layout: Layout,
    count: int = 0,
    *,
    paper: bool = False,
    on_done: Callable[[int], None] = lambda count: None,
    **search: Any,
) -> Judgement:
    """Translates the held-out sources, or the first so many, and compares.

    Args:
        examples: the pairs.
        model: the model.
        mesh: the processors.
        layout: which dims are split over which mesh axes.
        count: how many; 0: all.
        paper: whether BLEU is also counted as the paper did.
        on_done: is called with the number of texts that have been translated, now and then.
        search: `beams`, `length_penalty`, `alpha` and `slots` of `Translator`.
    """
    sources, references = examples.held_out_texts(count)
    lengths = {"source_length": examples.lengths[0], "length": examples.lengths[1]}
    translator = Translator(model, mesh, layout, examples.vocabularies, **lengths, **search)
    found = [texts[0].text if texts else "" for texts in translator.translate(sources, on_done)]
    return Judgement(list(zip(sources, found, references, strict=True)), measures(found, [references], paper=paper))
