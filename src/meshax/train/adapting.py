"""A mesh and a layout for the processors that there are: where a run goes on with fewer, or more, than it had.

The first process searches, and tells the others. The batch and the order of the data stay as they are.
"""

from dataclasses import replace

import jax
from rich.console import Console

from ..launch.peers import Peers
from ..plan.cost.hardware import find, of_device
from ..plan.cost.limits import memory_of_device
from ..plan.search.layout_search import search
from .config import TrainConfig
from .examples import batch_shapes
from .options import AUTO
from .step_memory import step_and_shapes


def adapted(config: TrainConfig, peers: Peers, console: Console) -> TrainConfig:
    """Returns the run with a mesh and a layout for all processors, if it asks for that: mesh "auto"."""
    if config.mesh != AUTO:
        return config
    place = _search(config, console) if peers.is_first else None
    place = next(value for value, _ in peers.gather("the layout", place) if value is not None)
    config = replace(config, **place)
    if peers.is_first:
        words = f"mesh and layout for {jax.device_count()} processors: {config.mesh}, {config.layout or 'none'}"
        console.print(words, highlight=False, markup=False, soft_wrap=True)
    return config


def _search(config: TrainConfig, console: Console) -> dict[str, str]:
    """Returns the options of the fastest that fits the memory, by prediction."""
    model, parts, device = config.model(), config.optimizer.microbatches, jax.local_devices()[0]
    shapes = batch_shapes(model, config.sizes())
    step, args = step_and_shapes(model, config.make_optimizer(), shapes, parts if parts > 1 else None)
    machine = of_device(device.device_kind)
    if machine is None:
        machine = find(None)
        words = f"nothing is known of a {device.device_kind}: searching with what a {machine.name} can do."
        console.print(
            f"{words} Measure this one: meshax bench calibrate", highlight=False, markup=False, soft_wrap=True
        )
    limit = memory_of_device(device, config.memory)
    with console.status("searching") as status:
        best, *_ = search(
            step, args, None, processors=jax.device_count(), hardware=machine, memory=limit, donate=(0,),
            progress=status.update,
        )  # fmt: skip
    roles = {"layout": best.layout.rules, "param_layout": best.layout.params, "optimizer_layout": best.layout.optimizer}
    rules = {name: " ".join(f"{dim}:{'+'.join(axes)}" for dim, axes in one) for name, one in roles.items()}
    return {"mesh": " ".join(f"{axis}:{size}" for axis, size in best.mesh.axes.items()), **rules}
