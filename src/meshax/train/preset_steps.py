"""The training step of every preset, as programs to explain, plan and lay out: `lm_4_90b()` for `lm-4.90b`.

Each gives the step, the shapes of its arguments, and which of them it may overwrite; nothing is made.
"""

from functools import partial
from pathlib import Path
from typing import Any

from meshax.models.presets import PRESETS, preset
from meshax.optim import by_name, clipped
from meshax.train.fitting import step_and_shapes


def training_step(name: str, optimizer: str = "adafactor") -> tuple[Any, tuple[Any, ...], tuple[int, ...]]:
    """Returns the step of a preset, the shapes of its arguments, and which of them it may overwrite."""
    chosen, update = preset(name), clipped(by_name(optimizer, 0.01), 1.0)
    given = ("tokens", "targets", "weights")
    return *step_and_shapes(chosen.model, update, (chosen.batch, chosen.length), given=given), (0,)


def target_of(name: str) -> str:
    """Returns the `FILE.py:FUNCTION` that stands for a preset."""
    return f"{Path(__file__)}:{_identifier(preset(name).name)}"


def _identifier(name: str) -> str:
    return name.replace("-", "_").replace(".", "_")


globals().update({_identifier(name): partial(training_step, name) for name in PRESETS})
