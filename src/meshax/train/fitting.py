"""Before the first step: does it fit the memory of a processor, and what may the backward pass keep there?"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from ..dims import dims
from ..errors import TrainingError
from ..layout import Layout
from ..mesh import Mesh
from ..models.decoder import KEEP, Decoder, DecoderConfig
from ..optim.clipping import Clipped
from ..plan.cost.hardware import of_device, parse_bytes
from ..plan.explain.report import Report, explain
from ..plan.printing.units import show_bytes
from ..program import spmd
from ..tensor import Tensor
from .config import AUTO, TrainConfig
from .step import init_state, make_train_step

_MARGIN = 0.9  # of the memory, for what is kept by choice: estimates are up to a tenth too low
BATCH = ("tokens", "targets", "weights", "segments", "positions")


def step_and_shapes(
    model: DecoderConfig,
    optimizer: Clipped,
    sizes: Sequence[int],
    microbatches: int | None = None,
    given: Sequence[str] = BATCH,
) -> tuple[Any, tuple[Any, ...]]:
    """Returns the function of a training step and the shapes of its arguments; nothing is made.

    Args:
        model: the model.
        optimizer: changes its parameters.
        sizes: the examples of a batch, and the tokens of an example.
        microbatches: parts of a batch, one after the other.
        given: the tensors of a batch.
    """
    model.dims()

    def init() -> Any:
        return init_state(lambda key: Decoder.init(key, model), optimizer, jax.random.key(0))

    state = spmd(init, Mesh("none:1", abstract=True), "").trace().results
    shape = dims(batch=sizes[0], length=sizes[1])
    batch = {name: Tensor(jax.ShapeDtypeStruct(tuple(sizes), jnp.int32), shape) for name in given}
    return make_train_step(optimizer, microbatches), (state, batch, jax.random.key(0))


def memory_of(mesh: Mesh, given: str) -> float:
    """Returns the bytes that a processor may use: those given, else what its device says, else what its kind has."""
    if given:
        return parse_bytes(given)
    device = mesh.jax_mesh.devices.flat[0]
    stats = device.memory_stats() or {}
    return float(stats.get("bytes_limit") or of_device(device.device_kind).memory)


def fitted(config: TrainConfig, mesh: Mesh, layout: Layout) -> tuple[DecoderConfig, str]:
    """Returns the model of a run, with what its backward pass keeps, and a line about it.

    `--keep auto` keeps the most that is predicted to fit, with a tenth of the memory to spare. Where a limit is given,
    a step that does not fit raises.
    """
    model = config.model()
    if config.keep != AUTO and not config.memory:
        return model, ""
    limit = memory_of(mesh, config.memory)
    parts = config.optimizer.microbatches

    def predicted(keep: str) -> Report:
        step, args = step_and_shapes(
            replace(model, keep=keep), config.make_optimizer(), config.sizes(), parts if parts > 1 else None
        )
        return explain(spmd(step, mesh, layout, donate=0), *args)

    needs = 0
    *more, least = reversed(KEEP) if config.keep == AUTO else [model.keep]
    for keep in (*more, least):
        needs = predicted(keep).memory["peak"]
        if needs <= (limit if keep == least else limit * _MARGIN):
            line = f"the backward pass keeps {keep}: {show_bytes(needs)} of {show_bytes(limit)} predicted"
            return replace(model, keep=keep), line
    raise TrainingError(
        f"a step does not fit {show_bytes(limit)} on each processor.",
        values=f"predicted with --keep {keep!r}: {show_bytes(needs)}",
        rule="parameters, gradients, optimizer state, activations and temporaries of a step must fit at once.",
        fix="split more (meshax layout finds how), cut the batch into --optimizer.microbatches"
        + (", or pass --keep auto." if config.keep != AUTO else ", or use more processors."),
    )
