"""Before the first step: does it fit the memory of a processor, and what may the backward pass keep there?"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax

from ..errors import TrainingError
from ..layout import Layout
from ..mesh import Mesh
from ..models.contract import ModelConfig
from ..models.recomputation import KEEP
from ..optim.clipping import Clipped
from ..plan.cost.limits import memory_of_device, memory_there
from ..plan.explain.report import Report, explain
from ..plan.printing.units import show_bytes
from ..program import spmd
from ..tensors import Tensor
from .config import TrainConfig
from .examples import batch_shapes
from .options import AUTO
from .step import init_state, make_train_step

_MARGIN = 0.9  # of the memory, for what is kept by choice: estimates are up to a tenth too low


def step_and_shapes(
    model: ModelConfig,
    optimizer: Clipped,
    batch: dict[str, Tensor],
    microbatches: int | None = None,
) -> tuple[Any, tuple[Any, ...]]:
    """Returns the function of a training step and the shapes of its arguments; nothing is made.

    Args:
        model: the model.
        optimizer: changes its parameters.
        batch: the shapes of a batch.
        microbatches: parts of a batch, one after the other.
    """

    def init() -> Any:
        return init_state(model.make, optimizer, jax.random.key(0))

    state = spmd(init, Mesh("none:1", abstract=True), "").trace().results
    return make_train_step(optimizer, microbatches), (state, batch, jax.random.key(0))


def memory_of(mesh: Mesh, size: str) -> float:
    """Returns the bytes that a processor may use: those given, else what its device says, else what its kind has."""
    return memory_of_device(mesh.jax_mesh.local_devices[0], size)


def fitted(config: TrainConfig, mesh: Mesh, layout: Layout) -> tuple[ModelConfig, str]:
    """Returns the model of a run, with what its backward pass keeps, and a line about it.

    `keep="auto"`, what nobody asked for on an accelerator, too, keeps the most that is predicted to fit, with a tenth
    of the memory to spare. Where a limit is given,
    a step that does not fit raises.
    """
    model = config.model()
    chooses = config.keep == AUTO or (not config.keep and mesh.platform != "cpu")
    if not (chooses or config.memory):
        return model, ""
    limit = memory_of(mesh, config.memory)
    parts = config.optimizer.microbatches

    def predicted(model: ModelConfig) -> Report:
        batch = batch_shapes(model, config.sizes())
        step, args = step_and_shapes(model, config.make_optimizer(), batch, parts if parts > 1 else None)
        return explain(spmd(step, mesh, layout, donate=0), *args)

    keep = getattr(model, "keep", "everything")
    if chooses:
        keep, needs = most_kept(lambda keep: predicted(_keeping(model, keep)).memory["peak"], limit)
        model = _keeping(model, keep)
    else:
        needs = predicted(model).memory["peak"]
    if needs > limit:
        raise _too_large(limit, needs, keep, ', or pass keep="auto".' if not chooses else ", or use more processors.")
    return model, f"the backward pass keeps {keep}: {show_bytes(needs)} of {show_bytes(limit)} predicted"


def most_kept(needs: Callable[[str], int], limit: float) -> tuple[str, int]:
    """Returns the most that the backward pass may keep, and the bytes that a step then needs.

    A tenth of the limit is to spare, but where the least is kept: that is the answer also if it does not fit.

    Args:
        needs: tells the bytes of a step that keeps what is named so.
        limit: the bytes of a processor.
    """
    *more, least = reversed(KEEP)
    for keep in more:
        if (size := needs(keep)) <= limit * _MARGIN:
            return keep, size
    return least, needs(least)


def check_memory(report: Report, mesh: Mesh, keep: str) -> None:
    """Raises if a step cannot fit the memory that there is, where nobody has given another limit.

    Virtual processors share the machine's.
    """
    limit = memory_there(mesh)
    if report.memory["peak"] > limit:
        raise _too_large(limit, report.memory["peak"], keep, ", or give memory= if there is more.")


def _too_large(limit: float, needs: int, keep: str, otherwise: str) -> TrainingError:
    return TrainingError(
        f"a step does not fit {show_bytes(limit)} on each processor.",
        values=f"predicted with keep={keep!r}: {show_bytes(needs)}",
        rule="parameters, gradients, optimizer state, activations and temporaries of a step must fit at once.",
        fix=f"split more (meshax layout finds how), cut the batch into optimizer.microbatches={otherwise}",
    )


def _keeping(model: ModelConfig, keep: str) -> ModelConfig:
    changes: dict[str, Any] = {"keep": keep}
    return replace(model, **changes)
