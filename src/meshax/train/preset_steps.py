"""The training step of every preset, as a program to explain, plan and lay out; nothing is made.

Run as a program, this module compiles one for whoever asks on its standard input: see `plan/compile/worker.py`.
"""

from ..models.presets import preset
from ..optim import by_name, clipped
from ..plan.compile.targets import Target
from ..plan.compile.worker import main
from .step_memory import step_and_shapes


def preset_target(name: str, optimizer: str = "adafactor") -> Target:
    """Returns the step of a preset, the shapes of its arguments, and which of them it may overwrite."""
    chosen, update = preset(name), clipped(by_name(optimizer, 0.01), 1.0)
    step, args = step_and_shapes(chosen.model, update, chosen.model.batch(chosen.batch))
    return Target(f"the preset {name}", step, args, (0,))


if __name__ == "__main__":
    main(preset_target)
