"""How well a model does on what it has not seen."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from .metrics import show_number


@dataclass(frozen=True)
class Evaluation:
    """How well a model predicts the held-out examples."""

    loss: float  # the mean
    count: int  # of predictions
    metrics: Mapping[str, float]  # of the model, the most telling first
    data_metrics: Mapping[str, float] = field(default_factory=dict)  # of the examples

    def figures(self) -> dict[str, float]:
        """Returns all metrics, by name."""
        return {**self.metrics, **self.data_metrics}

    def __str__(self) -> str:
        return ", ".join(show_metric(name, value) for name, value in self.figures().items())


def show_metric(name: str, value: float) -> str:
    """Returns a metric for reading; one of something per something is a measure, and comes before its name.

    >>> show_metric("perplexity", 34.181), show_metric("bits_per_byte", 1.5672)
    ('perplexity 34.18', '1.567 bits per byte')
    """
    words = name.replace("_", " ")
    return f"{show_number(value, 3)} {words}" if " per " in words else f"{words} {show_number(value, 2)}"
