"""Services that a run reports to while it goes. Each is an extra: it is imported when it is asked for."""

import os
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from ..errors import ArgumentError, did_you_mean
from ..extras import check_extra, extra

_REPORTS = "reports to a tracker"
_ID = "wandb.id"  # the name of the run there: a run that is resumed goes on with it


class Tracker(Protocol):
    """Gets what a run measures."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Takes the values of a step."""

    def close(self) -> None:
        """Ends, well or not: the exception that is on its way tells."""


class Wandb:
    """Weights & Biases; its own environment variables (WANDB_PROJECT, WANDB_MODE) say where to, and whether at once."""

    def __init__(self, directory: Path, options: Mapping[str, Any]):
        """Begins, or goes on with, the run of a directory."""
        with extra("wandb", _REPORTS):
            import wandb

        path = directory / _ID
        if not path.exists():
            path.write_text(uuid.uuid4().hex[:16], encoding="utf-8")
        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "meshax"),
            name=directory.name,
            id=path.read_text(encoding="utf-8"),
            resume="allow",
            dir=str(directory),
            config=dict(options),
            settings=wandb.Settings(console="off"),
        )

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Logs the values of a step."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Ends the run there."""
        self._run.finish(exit_code=int(sys.exc_info()[0] is not None))


TRACKERS = {"wandb": Wandb}


def check_tracker(name: str) -> None:
    """Raises if there is no such service, or its package is missing."""
    if name and name not in TRACKERS:
        raise ArgumentError(f"there is no tracker {name!r}.", fix=did_you_mean(name, TRACKERS))
    if name:
        check_extra(name, _REPORTS, name)


def open_tracker(name: str, directory: Path, options: Mapping[str, Any]) -> list[Tracker]:
    """Returns the service of a name, ready for a run with such options; none without a name."""
    return [TRACKERS[name](directory, options)] if name else []
