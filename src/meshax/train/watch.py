"""What is read of a run while it goes: every few steps its loss, its rate, its speed, its memory, the time left."""

import contextlib
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..mesh import Mesh
from ..models.contract import Model
from ..plan.cost.hardware import of_device
from ..tensors import Tensor
from .loss_guard import Guard
from .metrics import Metrics

if TYPE_CHECKING:
    from .examples import Batch
    from .loop import Run
    from .progress import Display


@dataclass(frozen=True)
class Reading:
    """What is known after a step."""

    step: int
    loss: float
    rate: float  # the learning rate
    norm: float  # of the gradients, before they are clipped
    per_second: float  # predictions
    utilization: float  # the share of the peak FLOP/s; 0: unknown
    memory: int  # bytes at the peak of one processor; on CPUs, of the process; 0: unknown
    left: float  # seconds to the last step

    def as_metrics(self, unit: str) -> dict[str, float]:
        """Returns it as it is written down."""
        known = {"loss": self.loss, "rate": self.rate, "norm": self.norm, f"{unit}s_per_second": self.per_second}
        return known | {"utilization": self.utilization, "memory_bytes": self.memory, "seconds_left": self.left}


class Watch:
    """Reads what a step measured when the next one is already running, so that the processors never wait for us."""

    def __init__(self, run: "Run", display: "Display", metrics: Metrics, guard: Guard, first: int):
        self.run, self.display, self.metrics, self.guard = run, display, metrics, guard
        # What the processors compute for us, they compute now: later it would wait behind a step, and we for it.
        self.rates = np.asarray(run.config.schedule()(np.arange(run.config.steps)))
        machine = of_device(run.mesh.device_kind)
        is_known = machine is not None and machine.platform != "cpu"  # virtual processors share cores, however many
        # seconds of a step at the peak
        self.ideal = run.report.utilization(machine) * run.report.seconds(machine) if is_known else 0.0
        self.waiting: Any = None
        self.since, self.last, self.first = time.perf_counter(), first, first + 1

    def saw(self, step: int, measured: dict[str, Tensor], batch: "Batch") -> None:
        """Takes note of a step that has begun, and reads the one before it."""
        self.finish()
        self.waiting = step, measured, batch, self.run.batches.position

    def finish(self) -> None:
        """Reads the step that is waiting."""
        if self.waiting is None:
            return
        (step, measured, batch, position), self.waiting = self.waiting, None
        # Sent for before it is there, it would hold up what a checkpoint sends to the host in the same stream.
        measured["loss"].array.block_until_ready()
        loss, now = float(measured["loss"]), time.perf_counter()  # it has ended now, whatever is done before the next
        self.guard.check(step, loss, bool(measured["finite"]), batch)
        is_read = step % self.run.config.log_every == 0 or step == self.run.config.steps
        if is_read:
            reading = self._read(step, loss, measured, now - self.since)
            known = {**reading.as_metrics(self.run.unit), "batches_read": position}
            self.metrics.write(step, **known, **self.run.peers.skew())
            self.display.update(reading)
        if is_read or step == self.first:  # the first has compiled the program
            self.since, self.last = now, step

    @contextlib.contextmanager
    def aside(self, step: int, what: str) -> Iterator[None]:
        """Reads the step that is waiting; writes down how long what is done inside keeps the next one waiting.

        That time is left out of how fast the run is.
        """
        self.finish()
        begin = time.perf_counter()
        yield
        seconds = time.perf_counter() - begin
        self.since += seconds
        self.metrics.write(step, **{f"{what}_seconds": seconds})

    def _read(self, step: int, loss: float, measured: dict[str, Tensor], passed: float) -> Reading:
        seconds = passed / max(step - self.last, 1)
        return Reading(
            step=step,
            loss=loss,
            rate=float(self.rates[step - 1]),
            norm=float(measured["norm"]),
            per_second=float(measured["count"]) / seconds,
            utilization=self.ideal / seconds,
            memory=memory_at_peak(self.run.mesh),
            left=seconds * (self.run.config.steps - step),
        )


def look(run: "Run", step: int, model: Model, metrics: Metrics) -> None:
    """Draws what the model makes of held-out examples after a step, if these can be seen."""
    picture = run.examples.picture(model, run.local, run.sizes, run.mesh, run.layout)
    if picture is not None:
        metrics.show(step, "slices", picture)


def memory_at_peak(mesh: Mesh) -> int:
    """Returns the most bytes that one processor has used so far, as its device says; of CPUs, this process."""
    device = mesh.jax_mesh.local_devices[0]
    if device.platform != "cpu":
        return int((device.memory_stats() or {}).get("peak_bytes_in_use", 0))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
