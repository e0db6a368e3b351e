"""One step of training, and one of evaluation, as functions of tensors for `mx.spmd`.

The loss of a step is the sum over all predictions divided by the sum of their weights, which is known before: so
microbatches and padded examples weigh exactly what their predictions weigh. A step whose loss or gradients are not
finite changes nothing.
"""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from ..errors import ArgumentError
from ..mesh import Mesh
from ..models.contract import Model
from ..ops import full, isfinite, maximum, value_and_grad, zeros
from ..ops import sum as sum_
from ..ops.elementwise import apply
from ..optim.clipping import Clipped
from ..plan.compile.overlap import overlapping
from ..tensors import Tensor, is_tensor, settled_array, with_role

# XLA's flags under which a step is fastest, by platform: docs/performance.md has what was measured.
_FASTEST: dict[str, dict[str, Any]] = {
    "gpu": {
        "xla_gpu_enable_triton_gemm": False,
        "xla_gpu_enable_cublaslt": True,
        # In loops it computes a product twice that is kept and used: once into the stack, once for the next kernel.
        "xla_gpu_enable_dynamic_slice_fusion": False,
    }
}


class TrainState(eqx.Module):
    """All that a step of training changes."""

    step: Tensor
    model: Any
    optimizer: Any


def init_state(make_model: Callable[[Any], Model], optimizer: Clipped, key: Any) -> TrainState:
    """Returns the state before the first step."""
    return state_of(make_model(key), optimizer)


def state_of(model: Model, optimizer: Clipped) -> TrainState:
    """Returns the state before the first step of a model that there is."""
    return TrainState(zeros((), jnp.int32), model, optimizer.init(model))


def compiler_options(mesh: Mesh, changes: Sequence[str] = (), overlap: bool = False) -> dict[str, Any]:
    """Returns XLA's flags for a step: those that were fastest on such processors, and what is to be changed in them.

    Args:
        mesh: the processors.
        changes: flags and values, as in `xla_gpu_enable_triton_gemm=true`.
        overlap: whether collectives are to run beside computation.
    """
    flags = _FASTEST.get(mesh.platform, {}) | (overlapping(mesh.platform) if overlap else {})
    for change in changes:
        name, equals, value = change.partition("=")
        if not (equals and value and name.startswith("xla_")):
            raise ArgumentError(
                f"{change!r} is no option of the compiler.",
                fix="write a flag of XLA's, an equals sign and a value: xla_gpu_enable_triton_gemm=true.",
            )
        flags[name] = {"true": True, "false": False}.get(value.lower(), value)
    return flags


def check_compiler_options(flags: dict[str, Any]) -> None:
    """Raises if the compiler of this machine does not know a flag, or its value: asked for a program of nothing."""
    try:
        jax.jit(lambda: 0, compiler_options=flags).lower().compile()
    except jax.errors.JaxRuntimeError as error:
        raise ArgumentError(
            "the compiler refuses its options.",
            values=str(error).splitlines()[0].partition(": ")[2],
            fix="correct them, or leave them out: XLA's flags differ from version to version.",
        ) from None


def make_train_step(
    optimizer: Clipped, microbatches: int | None = None, count_padding: bool = False
) -> Callable[[TrainState, dict[str, Tensor], Any], tuple[TrainState, dict[str, Tensor]]]:
    """Makes the function of one step: from the state, a batch and a key to the next state and what to report.

    Args:
        optimizer: clips gradients, and so knows their norm.
        microbatches: cuts the batch into so many parts, to need less memory.
        count_padding: divides the loss that is differentiated by all places, not by the sum of their weights.
    """
    options: dict[str, Any] = {} if microbatches is None else {"microbatches": microbatches, "over": "batch"}
    parts = microbatches or 1

    def loss(model: Any, batch: dict[str, Tensor], total: Tensor, key: Any) -> tuple[Tensor, Any]:
        value, _, *observed = (model.loss_and_observed if _observes(model) else model.loss)(batch, key)
        return value * parts / total, observed

    def train_step(state: TrainState, batch: dict[str, Tensor], key: Any) -> tuple[TrainState, dict[str, Tensor]]:
        count = maximum(sum_(batch["weights"].astype(jnp.float32)), 1.0)
        total = full((), float(batch["weights"].size)) if count_padding else count
        drawn = jax.random.fold_in(key, state.step.array)
        (value, observed), grads = value_and_grad(loss, has_aux=True, **options)(state.model, batch, total, drawn)
        model, moments = optimizer.apply(grads, state.optimizer, state.model)
        model = _with_statistics(model, state.model.updated(*observed)) if _observes(model) else model
        norm = with_role(moments.norm, None)
        finite = isfinite(value) & isfinite(norm)
        model, moments = _if(finite, model, state.model), _if(finite, moments, state.optimizer)
        shown = value * (total / count) if count_padding else value
        metrics = {"loss": shown, "norm": norm, "count": count, "finite": finite}
        return TrainState(state.step + 1, model, moments), metrics

    return train_step


def _observes(model: Any) -> bool:
    return hasattr(model, "loss_and_observed")


def _with_statistics(model: Any, updated: Any) -> Any:
    """Returns the parameters of a model with the statistics of another, which no optimizer may change."""
    return jax.tree.map(lambda a, b: a if a.role == "param" else b, model, updated, is_leaf=is_tensor)


def _if(condition: Tensor, new: Any, old: Any) -> Any:
    """Returns the new tree where the condition holds, else the old one, in the same roles: as it is stored."""
    one = settled_array(condition)  # a number chooses between whole arrays: no mask is made

    def chosen(a: Any, b: Any) -> Any:
        if not is_tensor(b):
            return jax.lax.select(one, jnp.asarray(a), jnp.asarray(b))
        return with_role(apply(lambda a, b: jax.lax.select(one, a, b), (a, b), "where"), b.role)

    return jax.tree.map(chosen, new, old, is_leaf=is_tensor)


def evaluation_step(model: Model, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns what an evaluation adds up: what the model measures, and the `count` of its predictions."""
    return {**model.measure(batch), "count": sum_(batch["weights"].astype(jnp.float32))}
