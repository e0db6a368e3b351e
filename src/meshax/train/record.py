"""What is written down of a run when it starts: its options as they were resolved, by which versions, and what changed.

`config.json` has all of it, for the next start; `config.toml` has the options, for people. A run has a name of its own
since it first started. Each checkpoint has that too, and the options: so one from another run is told.
"""

import importlib.metadata
import json
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import jax

from ..errors import shortened
from ..files import write_whole
from ..layout import Layout
from ..mesh import Mesh
from .checkpoint import Damaged
from .config import TrainConfig
from .options import CONFIG, RECORD, flat
from .toml import as_toml

TOML = "config.toml"
RUN, OPTIONS = "run", "options"  # in what is saved beside a checkpoint
_ELSEWHERE = ("out",)  # a run may be moved


def versions() -> dict[str, str]:
    """Returns the versions that a result may depend on; the commit is that of the folder we are started in."""
    try:
        own = importlib.metadata.version("meshax")
    except importlib.metadata.PackageNotFoundError:
        own = "unknown"
    known = {"meshax": own, "jax": jax.__version__, "python": platform.python_version()}
    commit = _commit()
    return {**known, "commit": commit} if commit else known


def _commit() -> str:
    """Returns the commit, with "-dirty" after it where files have changed since; nothing where there is none."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def signature(config: TrainConfig, extra: Mapping[str, Any] = {}) -> dict[str, Any]:
    """Returns what tells the checkpoints of a run from those of others: its name, and its options.

    The name follows from the options at its first start: so all processes give the same, and ask nobody. Runs that
    begin with the same options, wherever they are, are one run.

    Args:
        config: of the run.
        extra: what was saved beside the checkpoint that it goes on from; of a run that begins there is none.
    """
    known = extra.get(RUN) or (_read(config.directory() / CONFIG).get(RUN) if extra else None)
    options = _plain(config.resolved().as_dict())
    own = json.dumps({name: value for name, value in options.items() if name not in _ELSEWHERE}, sort_keys=True)
    return {RUN: known or sha256(own.encode()).hexdigest()[:16], OPTIONS: options}


def check_own(run: str | Path, extra: Mapping[str, Any]) -> None:
    """Raises if a checkpoint is of another run than the folder that it is in. What has no name may be of any.

    Args:
        run: the directory of the run.
        extra: what was saved beside the checkpoint.
    """
    own = _read(Path(run).expanduser() / CONFIG)
    if not (extra.get(RUN) and own.get(RUN)) or extra[RUN] == own[RUN]:
        return
    there, here = extra.get(OPTIONS, {}), _plain({k: v for k, v in own.items() if k not in RECORD})
    changes = [f"{name} is {old!r} there, {new!r} here" for name, (old, new) in differences(there, here).items()]
    raise Damaged(
        f"the checkpoint of step {extra['step']} is of another run than the folder that it is in.",
        values=f"{run}: {shortened(changes) if changes else 'the options are the same'}",
        rule="a run goes on from its own checkpoints.",
        fix="remove it; to start from the weights of another run, name its directory: from=.",
    )


def record_start(
    config: TrainConfig, mesh: Mesh, layout: Layout, signed: Mapping[str, Any], extra: Mapping[str, Any] = {}
) -> list[str]:
    """Writes the configuration of a run that starts after some step, and returns what has changed, for reading.

    Args:
        config: of the run.
        mesh: the processors of this start.
        layout: the rules of this start.
        signed: its `signature`.
        extra: what was saved beside the checkpoint that it goes on from; of a run that begins there is none.
    """
    directory, now = config.directory(), config.resolved()
    step, here = extra.get("step", 0), versions()
    before = _read(directory / CONFIG) if step else {}
    saved = extra.get(OPTIONS, {})  # what there is to compare with where only the checkpoints were kept
    if before:
        changes = differences(before, now.as_dict() | {"versions": here})
    else:
        changes = differences(saved, signed[OPTIONS]) if saved else {}
    start = {
        "step": step,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "mesh": " ".join(f"{name}:{size}" for name, size in mesh.axes.items()),
        "device": mesh.device_kind,
        "layout": str(layout).removeprefix("Layout(").removesuffix(")"),
        "versions": here,
        "changes": changes,
    }
    history = [*before.get("history", ()), start]
    write_whole(directory / CONFIG, now.to_json(run=signed[RUN], versions=here, history=history))
    write_whole(directory / TOML, as_toml(now))
    return [f"{name}: {json.dumps(old)} before, {json.dumps(new)} now" for name, (old, new) in changes.items()]


def differences(before: dict[str, Any], now: dict[str, Any]) -> dict[str, list[Any]]:
    """Returns the options that have other values now: the old one and the new one."""
    old, new = (_plain({k: v for k, v in d.items() if k not in ("history", RUN)}) for d in (before, now))
    names = [name for name in {**old, **new} if name not in _ELSEWHERE]
    return {name: [old.get(name), new.get(name)] for name in names if old.get(name) != new.get(name)}


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns options by the names that they have in messages, as they come back from a file."""
    return flat(json.loads(json.dumps(dict(options))))


def _read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}
