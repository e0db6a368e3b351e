"""What a run shows while it goes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from .metrics import show_number

_WIDE, _WIDER = 100, 120  # columns: in fewer, the step and the time left matter more


class Display:
    """One line that keeps up with the run: step, loss, a metric, predictions a second, utilization, time left."""

    def __init__(
        self, console: Console, steps: int, first: int, unit: str, metrics: Callable[[float], dict[str, float]]
    ):
        """Shows a run from its first step to its last.

        Args:
            console: where.
            steps: of the whole run.
            first: the step before the first.
            unit: what the run predicts, one of it.
            metrics: of a loss.
        """
        self._unit, self._metrics = unit, metrics
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

    def update(self, step: int, loss: float, per_second: float, utilization: float) -> None:
        """Shows where the run is."""
        width = self._progress.console.width
        words = f"loss {show_number(loss, 3)}"
        for name, value in list(self._metrics(loss).items())[:1] if width >= _WIDE else ():
            words += f"  {name} {show_number(value, 1)}"
        words += f"  {per_second:,.0f} {self._unit}s/s"
        words += f"  utilization {utilization:.1%}" if utilization and width >= _WIDER else ""
        self._progress.update(self._task, completed=step, words=words)

    def say(self, text: str) -> None:
        """Prints a line above."""
        self._progress.console.print(text, highlight=False, markup=False)
