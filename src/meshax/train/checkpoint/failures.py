"""What can go wrong with checkpoints, and what is said then."""

import contextlib
import re
import shutil
from pathlib import Path

from ...errors import CheckpointError
from ...files import Held
from ...plan.printing.units import show_bytes
from .manifest import OtherVersion


class NotSaved(CheckpointError):
    """A checkpoint could not be written; older ones are as they were, and the next may succeed."""


class Damaged(CheckpointError):
    """A checkpoint is not as it was written."""


def reason(error: BaseException) -> str:
    """Returns what a disk says; of what the library that writes to it says of this, the last words."""
    said = re.sub(r"\s*\[[\w ]+='.*", "", getattr(error, "strerror", None) or str(error), flags=re.DOTALL)
    return re.sub(r"\A(process \d+: )?.*: ", r"\1", said, flags=re.DOTALL)


def not_saved(directory: Path, step: int, num_bytes: int, error: Exception) -> NotSaved:
    """Returns the error of a checkpoint that could not be written."""
    free = ""
    with contextlib.suppress(OSError):
        free = f", {show_bytes(shutil.disk_usage(directory).free)} free"
    failure = NotSaved(
        f"the checkpoint of step {step} was not saved.",
        values=f"{show_bytes(num_bytes)} to write{free} in {directory}: {reason(error)}",
        rule="a checkpoint is whole or not there; older ones are as they were.",
        fix="make room (or keep fewer: keep_last, keep_best) or correct the directory, and save again.",
    )
    failure.__cause__ = error
    return failure


def held_by(directory: Path, held: Held) -> CheckpointError:
    """Returns the error of a directory that another run writes into."""
    return CheckpointError(
        "another run writes into this checkpoint directory.",
        values=f"{directory}, held by {held}",
        rule="one run writes into a directory at a time.",
        fix="call .close() on the other Checkpoints, or open this one with read_only=True."
        if held.is_me
        else "stop that run, or give this one a directory of its own; to look only, open it with read_only=True.",
    )


def taken_over(directory: Path, holder: str) -> CheckpointError:
    """Returns the error of a directory whose lock another run has taken over."""
    return CheckpointError(
        "another run has taken over this checkpoint directory.",
        values=f"{directory}, now of {holder}",
        rule="one run writes into a directory at a time; a lock that nobody touches is taken over.",
        fix="stop one of the two runs, or give each a directory of its own.",
    )


def of_another_version(step: int, path: Path, other: OtherVersion) -> CheckpointError:
    """Returns the error of a checkpoint in a format that is not known here."""
    return CheckpointError(
        f"the checkpoint of step {step} was made by another version of meshax.",
        values=f"{path.name}/{other}",
        rule="a version of meshax reads the formats that it knows.",
        fix="read it with the version that made it, or take another step.",
    )
