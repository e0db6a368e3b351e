"""The training step of every preset, as programs to explain, plan and lay out: `lm_4_90b()` for `lm-4.90b`.

Each gives the step, the shapes of its arguments, and which of them it may overwrite; nothing is made.
"""

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from meshax.dims import dims
from meshax.mesh import Mesh
from meshax.models.decoder import Decoder
from meshax.models.presets import PRESETS, preset
from meshax.optim import by_name, clipped
from meshax.program import spmd
from meshax.tensor import Tensor
from meshax.train.step import init_state, make_train_step


def training_step(name: str, optimizer: str = "adafactor") -> tuple[Any, tuple[Any, ...], tuple[int, ...]]:
    """Returns the step of a preset, the shapes of its arguments, and which of them it may overwrite."""
    chosen, update = preset(name), clipped(by_name(optimizer, 0.01), 1.0)
    chosen.model.dims()

    def init() -> Any:
        return init_state(lambda key: Decoder.init(key, chosen.model), update, jax.random.key(0))

    state = spmd(init, Mesh("none:1", abstract=True), "").shapes()
    shape = dims(batch=chosen.batch, length=chosen.length)
    sizes = (chosen.batch, chosen.length)
    batch = {name: Tensor(jax.ShapeDtypeStruct(sizes, jnp.int32), shape) for name in ("tokens", "targets", "weights")}
    return make_train_step(update), (state, batch, jax.random.key(0)), (0,)


def target_of(name: str) -> str:
    """Returns the `FILE.py:FUNCTION` that stands for a preset."""
    return f"{Path(__file__)}:{_identifier(preset(name).name)}"


def _identifier(name: str) -> str:
    return name.replace("-", "_").replace(".", "_")


globals().update({_identifier(name): partial(training_step, name) for name in PRESETS})
