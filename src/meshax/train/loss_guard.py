"""What to do when the loss is not a number, or leaps."""

import math
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import TrainingError

_FEWEST = 10  # losses, before any is called a leap: the first fall fast


@dataclass
class Guard:
    """Watches losses one after the other.

    A step that is not finite has changed nothing (`train.step` sees to that). Stopping, the batch is saved so that the
    cause can be found; skipping, the run goes on with the next one. A leap always stops.
    """

    directory: Path
    on_nan: str = "stop"  # or "skip"
    spike: float = 0.0  # how many times the median of the last losses (10 to 50) is too much; 0: any loss is fine
    patience: int = 10  # steps skipped one after the other before a skipping run stops too
    process: int = 0  # of several: each saves its own rows of the batch
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=50))
    _skipped: int = 0

    def check(self, step: int, loss: float, finite: bool, batch: dict[str, Any]) -> None:
        """Raises if the run should stop at this step."""
        if not finite or not math.isfinite(loss):
            self._skipped += 1
            if self.on_nan == "stop" or self._skipped > self.patience:
                skip = ' or pass on_nan="skip".' if self.on_nan == "stop" else " look at the data."
                what = f"the loss or the gradients at step {step} are not numbers."
                self._stop(step, what, loss, batch, f"lower the learning rate, clip gradients,{skip}")
            return
        self._skipped = 0
        if self.spike and len(self._recent) >= _FEWEST and loss > self.spike * np.median(self._recent):
            fix = f"lower the learning rate, clip gradients, or pass a spike= above {self.spike}."
            self._stop(step, f"the loss at step {step} leapt.", loss, batch, fix)
        self._recent.append(loss)

    def _stop(self, step: int, what: str, loss: float, batch: dict[str, Any], fix: str) -> None:
        saved = self.directory / f"batch-{step}{f'-process-{self.process}' if self.process else ''}.npz"
        np.savez(saved, **batch)
        usual = np.median(self._recent) if self._recent else math.nan
        raise TrainingError(
            what,
            values=f"loss {loss:.4g}, before it around {usual:.4g}",
            rule="the run stops; its last checkpoint stays, and the batch is saved.",
            fix=f"look at {saved}; {fix}",
        )
