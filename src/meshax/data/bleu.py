"""How near translations are to references, by the library `sacrebleu`: BLEU and chrF, each with its whole signature.

BLEU of one and the same text differs by points with how it is cut into tokens. Sacrebleu's own, of plain text, is what
results are compared by today. The paper's 43.9 is not: its pipeline counted tokens that were cut at every punctuation
mark, compounds at their hyphens, and smoothed nothing. Asked for, that is a second figure, which says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import ArgumentError
from ..extras import extra

PAPER_STYLE = "BLEU as the paper counted"


@dataclass(frozen=True)
class Measure:
    """A figure of 0 to 100, and what exactly it is."""

    name: str
    value: float
    signature: str

    def __str__(self) -> str:
        return f"{self.name} {self.value:.2f}  {self.signature}"


def measures(translations: Sequence[str], references: Sequence[Sequence[str]], *, paper: bool = False) -> list[Measure]:
    """Returns how near translations are to their references: BLEU, chrF, and BLEU as the paper counted.

    Args:
        translations: plain text, not cut into tokens.
        references: one or more translations of each that are right: lists as long as the first.
        paper: whether to count as the paper did, too.
    """
    lengths = [len(translations), *map(len, references)]
    if len(set(lengths)) != 1 or len(lengths) == 1 or not translations:
        raise ArgumentError(
            "translations and references are not of the same texts.",
            values=f"{lengths[0]:,} translations; references: {', '.join(f'{n:,}' for n in lengths[1:]) or 'none'}",
            rule="there is at least one, and line n of one belongs to line n of the others.",
            fix="name files of equally many lines.",
        )
    with extra("train", "figures of translations"):
        from sacrebleu.metrics import BLEU, CHRF

    metrics = {"BLEU": BLEU(), "chrF": CHRF()}
    if paper:
        metrics[PAPER_STYLE] = BLEU(tokenize="intl", smooth_method="none")
    found = []
    for name, metric in metrics.items():
        score = metric.corpus_score(list(translations), [list(one) for one in references])
        found.append(Measure(name, score.score, str(metric.get_signature())))
    return found
