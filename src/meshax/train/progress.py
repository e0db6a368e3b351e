"""What a run shows while it goes: on a terminal one line that keeps up, elsewhere a plain line every few steps."""

import contextlib
from collections.abc import Callable, Iterator
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ..plan.printing.units import show_bytes
from .metrics import show_number
from .watch import Reading

_WIDE, _WIDER = 100, 120  # columns: in fewer, the step and the time left matter more


class Display:
    """Where a run is: step, loss, a metric, predictions a second, utilization, time left."""

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
        self._console, self._steps, self._unit, self._metrics = console, steps, unit, metrics
        self._progress = Progress(
            TextColumn("training"), BarColumn(bar_width=20), MofNCompleteColumn(), TextColumn("{task.fields[words]}"),
            TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), console=console,
            disable=not console.is_terminal,
        )  # fmt: skip
        self._task = self._progress.add_task("training", total=steps, completed=first, words="compiling")

    @contextlib.contextmanager
    def running(self) -> Iterator["Display"]:
        """Shows the line inside."""
        with self._progress:
            yield self

    def update(self, reading: Reading) -> None:
        """Shows where the run is."""
        if not self._console.is_terminal:
            self.say(self._line(reading))
            return
        width = self._console.width
        words = [f"loss {show_number(reading.loss, 3)}"]
        words += self._metric(reading.loss) if width >= _WIDE else []
        words.append(f"{reading.per_second:,.0f} {self._unit}s/s")
        words += [f"utilization {reading.utilization:.1%}"] if reading.utilization and width >= _WIDER else []
        self._progress.update(self._task, completed=reading.step, words="  ".join(words))

    def _line(self, reading: Reading) -> str:
        """Returns all that is known after a step, on one line, whose parts stand below one another."""
        place = f"{reading.step:>{len(str(self._steps))}}/{self._steps}"
        words = [f"step {place}", f"loss {show_number(reading.loss, 3)}", *self._metric(reading.loss)]
        words += [f"rate {reading.rate:.2e}", f"norm {show_number(reading.norm, 2)}"]
        words += [f"{reading.per_second:,.0f} {self._unit}s/s"]
        words += [f"utilization {reading.utilization:.1%}"] if reading.utilization else []
        words += [f"memory {show_bytes(reading.memory)}"] if reading.memory else []
        return "  ".join([*words, f"left {timedelta(seconds=round(reading.left))}"])

    def _metric(self, loss: float) -> list[str]:
        """Returns the most telling figure of a loss."""
        return [f"{name} {show_number(value, 1)}" for name, value in list(self._metrics(loss).items())[:1]]

    def say(self, text: str) -> None:
        """Prints a line above."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


@contextlib.contextmanager
def counting(console: Console, words: str, total: int | None, hidden: bool = False) -> Iterator[Callable[[int], None]]:
    """Shows how many of some things are done, on a terminal; inside, call what it gives with how many more are."""
    columns = (
        TextColumn(words),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
    )
    with Progress(
        *columns, TimeRemainingColumn(), console=console, disable=hidden or not console.is_terminal
    ) as progress:
        task = progress.add_task(words, total=total)
        yield lambda count: progress.advance(task, count)
