"""The training step of every preset, as a program to explain, plan and lay out; nothing is made.

Run as a program, this module compiles one for whoever asks on its standard input: see `plan/compile/worker.py`.
"""

import json
from collections.abc import Mapping
from typing import Any

from ..models.contract import ModelConfig
from ..models.fields import with_fields
from ..models.presets import batch_sizes, preset
from ..optim import by_name, clipped
from ..plan.compile.targets import Target
from ..plan.compile.worker import main
from .step import compiler_options
from .step_memory import step_and_shapes


def check_preset_step(
    name: str, model: Mapping[str, Any] = {}, sizes: Mapping[str, int] = {}
) -> tuple[ModelConfig, dict[str, int]]:
    """Returns the model of a preset and the sizes of its batch, with what is asked for instead, or raises."""
    chosen = preset(name)
    return with_fields(chosen.model, model), batch_sizes(chosen, sizes)


def preset_target(
    name: str, optimizer: str = "adafactor", model: Mapping[str, Any] = {}, sizes: Mapping[str, int] = {}
) -> Target:
    """Returns the step of a preset, the shapes of its arguments, and which of them it may overwrite.

    Args:
        name: the preset's, or that of a kind of model.
        optimizer: by its name.
        model: fields of the model's configuration, in place of the preset's.
        sizes: of the dims of a batch, in place of the preset's; 0: as there.
    """
    config, batch = check_preset_step(name, model, sizes)
    step, args = step_and_shapes(config, clipped(by_name(optimizer, 0.01), 1.0), config.batch(batch))
    return Target(f"the preset {name}", step, args, (0,), flags=compiler_options)


if __name__ == "__main__":
    main(lambda asked: preset_target(**json.loads(asked)))
