"""What a run says before its first step: what it trains, on what, where, and what a step takes."""

import math
from typing import TYPE_CHECKING

from ..models.contract import parameter_count
from ..plan.printing.units import show_bytes
from .step_memory import memory_of

if TYPE_CHECKING:
    from .loop import Run


def banner(run: "Run") -> list[str]:
    """Returns the lines: each a word and what belongs to it."""
    lines = {
        "model": _model(run),
        "data": _data(run),
        "batch": _batch(run),
        "mesh": " ".join(f"{name}:{size}" for name, size in run.mesh.axes.items())
        + f", {run.mesh.size} x {run.mesh.device_kind}",
        "layout": str(run.layout).removeprefix("Layout(").removesuffix(")").replace('"', "") or "none",
        "rate": _rate(run),
        "memory": f"{show_bytes(run.report.memory['peak'])} on each processor predicted, "
        f"of {show_bytes(memory_of(run.mesh, run.config.memory))}",
        "sends": _sends(run),
    }
    return [f"{name:7} {words}" for name, words in lines.items()]


def _model(run: "Run") -> str:
    sizes = ", ".join(f"{name} {size}" for name, size in run.model.sizes().items())
    return f"{run.config.resolved().preset}, {parameter_count(run.model):,} parameters: {sizes}"


def _data(run: "Run") -> str:
    train, held_out = run.examples.amounts()
    epochs = run.config.steps * _predictions(run) / max(train, 1)
    return f"{train:,} {run.unit}s, {held_out:,} held out; {run.config.steps:,} steps are {epochs:.3g} epochs"


def _batch(run: "Run") -> str:
    weights = run.shapes["weights"].dims
    words = f"{' x '.join(str(dim.size) for dim in weights)} = {_predictions(run):,} {run.unit}s a step"
    counted = {dim.name for dim in weights}
    words += "".join(f", {name.replace('_', ' ')} {size}" for name, size in run.sizes.items() if name not in counted)
    parts = run.config.optimizer.microbatches
    return words + (f", in {parts} microbatches" if parts > 1 else "")


def _predictions(run: "Run") -> int:
    """Returns how many predictions a batch has room for."""
    return math.prod(dim.size for dim in run.shapes["weights"].dims)


def _rate(run: "Run") -> str:
    o = run.config.resolved().optimizer
    words = f"{o.rate:g} by {o.name}, {o.schedule.replace('_', ' ')}"
    words += f" to {o.min_rate:g}" if o.min_rate else ""
    return words + (f", warm-up of {o.warmup:,}" if o.warmup else "")


def _sends(run: "Run") -> str:
    report = run.report
    if not report.collectives:
        return "nothing"
    count = sum(record.count for record in report.collectives)
    return f"{show_bytes(report.wire_bytes)} by each processor in a step, in {count:,} collectives"
