"""Where a run starts: from its latest checkpoint that is whole, from nothing, or from another run's weights."""

import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax

from ..errors import TrainingError
from ..launch.peers import COMPARISON, Peers, numbered
from ..layout import Layout
from ..mesh import Mesh
from ..models.contract import Model, ModelConfig
from ..optim.averaging import AveragedState
from ..optim.clipping import Clipped, ClippedState
from ..program import spmd
from .checkpoint import Checkpoints, Damaged
from .config import run_config
from .record import check_own
from .step import TrainState, state_of

CHECKPOINTS = "checkpoints"  # the folder of them in a run's directory
_SEEN = "seen-by-all-"
_SEEN_WITHIN = 10.0  # seconds: file systems of many hosts may show a new file late
IMPORTED = "imported"  # in what is saved beside a checkpoint: it holds weights from elsewhere, and nothing else


class Weights(eqx.Module):
    """The part of a state that is the model, under the same name: all that a checkpoint from elsewhere holds."""

    model: Any


class Averages(eqx.Module):
    """The part of a state that is the moving average of the model, under the same names."""

    optimizer: Any


def weights_of(
    run: str | Path, config: ModelConfig, mesh: Mesh, layout: Layout, step: Any = "latest", average: bool = False
) -> tuple[Model, dict[str, Any]]:
    """Reads the model of a run's checkpoint onto a mesh, and what was saved beside it; nothing else is read.

    Args:
        run: its directory.
        config: of its model; layers may be arranged otherwise, and floating numbers are read as this model has them.
        mesh: the processors, not necessarily those of that run.
        layout: the rules, not necessarily those of that run.
        step: of the checkpoint, or "latest" or "best".
        average: reads the moving average of the weights instead, which training has kept beside them.
    """
    if average and not run_config(run).optimizer.average:
        raise TrainingError(
            f"the run in {str(run)!r} has kept no average of its weights.",
            fix="train with optimizer.average=0.999, or leave the average out.",
        )

    def make() -> Any:
        model = config.make(jax.random.key(0))
        return Averages(ClippedState(None, AveragedState(model, None, None))) if average else Weights(model)

    like = spmd(make, Mesh("none:1", abstract=True), "").trace().results
    with checkpoints_of(run) as checkpoints:
        check_own(run, checkpoints.describe(step).extra)
        tree, extra = checkpoints.restore(step, like=like, mesh=mesh, layout=layout, dtype="like", partial=True)
    return (tree.optimizer.inner.average if average else tree.model), extra


def checkpoints_of(run: str | Path) -> Checkpoints:
    """Opens the checkpoints of a run, to look only."""
    return Checkpoints(Path(run).expanduser() / CHECKPOINTS, read_only=True)


def state_from(model: Model, optimizer: Clipped, mesh: Mesh, layout: Layout) -> TrainState:
    """Returns the state before the first step of a model that there is."""
    return spmd(lambda weights: state_of(weights, optimizer), mesh, layout, donate=0)(model)


def restored_or_before(
    checkpoints: Checkpoints,
    restore: Callable[[], tuple[Any, dict[str, Any]]],
    may_go_back: bool,
    warn: Callable[[str], None],
) -> tuple[Any, dict[str, Any]]:
    """Restores the latest checkpoint of a run. If it is damaged, and the user has allowed it, the last that is whole.

    What was saved after that one is set aside.
    """
    try:
        return restore()
    except Damaged as damaged:
        latest = checkpoints.latest()
        before = checkpoints.whole_before(latest) if may_go_back and latest is not None else None
        if before is None:
            raise
        names = ", ".join(checkpoints.set_aside(before))
        warn(f"{damaged}\n  set aside: {names}\n  THE RUN GOES BACK to step {before}, the last that is whole")
        return restore()


def make_directory(directory: Path, peers: Peers) -> None:
    """Makes the directory of a run, and raises in all of its processes if not all of them see it."""
    mark = ""
    if peers.is_first:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            directory.joinpath("events").mkdir(exist_ok=True)  # what is there may be someone else's
            for left in directory.glob(f"{_SEEN}*.tmp"):
                left.unlink()
            if peers.processes > 1:
                mark = f"{_SEEN}{secrets.token_hex(8)}.tmp"
                directory.joinpath(mark).touch()
        except OSError as error:
            raise TrainingError(
                "the directory of a run cannot be written to.",
                values=f"{directory}: {error.strerror or error}",
                fix="choose another out=.",
            ) from error
    if peers.processes > 1:
        _check_shared(directory, peers, mark)


def _check_shared(directory: Path, peers: Peers, mark: str) -> None:
    """Raises in all processes if one does not see a file that the first has made, which tells its name."""
    [name] = [value for value, _ in peers.gather("a file of the first process", mark) if value]
    end = time.monotonic() + _SEEN_WITHIN
    while not (is_seen := directory.joinpath(name).exists()) and time.monotonic() < end:
        time.sleep(0.1)
    blind = [process for value, processes in peers.gather(COMPARISON, is_seen) if not value for process in processes]
    if peers.is_first:
        directory.joinpath(name).unlink()
    if blind:
        raise TrainingError(
            "the processes do not see the same directory.",
            values=f"{directory}: what process 0 writes there is not seen by {numbered(blind)}",
            rule="all processes of a run write their parts of a checkpoint into one directory.",
            fix="choose an out= on a file system that all hosts share.",
        )
