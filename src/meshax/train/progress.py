"""What a run shows while it goes."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from .metrics import perplexity, show_number

_WIDE, _WIDER = 100, 120  # columns: in fewer, the step and the time left matter more


class Display:
    """One line that keeps up with the run: step, loss, perplexity, tokens a second, utilization, time left."""

    def __init__(self, console: Console, steps: int, first: int):
        """Shows a run from its first step to its last."""
        self._progress = Progress(
            TextColumn("training"), BarColumn(bar_width=20), MofNCompleteColumn(), TextColumn("{task.fields[words]}"),
            TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), console=console,
        )  # fmt: skip
        self._task = self._progress.add_task("training", total=steps, completed=first, words="compiling")

    @contextmanager
    def running(self) -> Iterator["Display"]:
        """Shows the line inside."""
        with self._progress:
            yield self

    def update(self, step: int, loss: float, tokens_per_second: float, utilization: float) -> None:
        """Shows where the run is."""
        width = self._progress.console.width
        words = f"loss {show_number(loss, 3)}"
        words += f"  perplexity {show_number(perplexity(loss), 1)}" if width >= _WIDE else ""
        words += f"  {tokens_per_second:,.0f} tokens/s"
        words += f"  utilization {utilization:.1%}" if utilization and width >= _WIDER else ""
        self._progress.update(self._task, completed=step, words=words)

    def say(self, text: str) -> None:
        """Prints a line above."""
        self._progress.console.print(text, highlight=False, markup=False)
