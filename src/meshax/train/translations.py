"""What a run that translates is judged by beside its loss: translations of held-out sources, BLEU and chrF."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..data.bleu import Measure, measures
from ..decode.translating import Translator

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
    translator: Translator,
    sources: Sequence[str],
    references: Sequence[str],
    *,
    paper: bool = False,
    on_done: Callable[[int], None] = lambda count: None,
) -> Judgement:
    """Translates sources, and compares.

    Args:
        translator: what to judge.
        sources: what to translate.
        references: what is right.
        paper: whether BLEU is also counted as the paper did.
        on_done: is called with the number of texts that have been translated, now and then.
    """
    found = [texts[0].text if texts else "" for texts in translator.translate(sources, on_done)]
    return Judgement(list(zip(sources, found, references, strict=True)), measures(found, [references], paper=paper))
