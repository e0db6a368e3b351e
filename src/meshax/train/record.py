"""What is written down of a run when it starts: its options as they were resolved, by which versions, and what changed.

`config.json` has all of it, for the next start; `config.toml` has the options, for people.
"""

import importlib.metadata
import json
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax

from ..files import write_whole
from ..layout import Layout
from ..mesh import Mesh
from .config import TrainConfig
from .options import CONFIG, flat
from .toml import as_toml

TOML = "config.toml"
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


def record_start(config: TrainConfig, step: int, mesh: Mesh, layout: Layout) -> list[str]:
    """Writes the configuration of a run that starts after some step, and returns what has changed, for reading."""
    directory, now = config.directory(), config.resolved()
    before = _read(directory / CONFIG) if step else {}
    here = versions()
    changes = differences(before, now.as_dict() | {"versions": here}) if before else {}
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
    write_whole(directory / CONFIG, now.to_json(versions=here, history=history))
    write_whole(directory / TOML, as_toml(now))
    return [f"{name}: {json.dumps(old)} before, {json.dumps(new)} now" for name, (old, new) in changes.items()]


def differences(before: dict[str, Any], now: dict[str, Any]) -> dict[str, list[Any]]:
    """Returns the options that have other values now: the old one and the new one."""
    old, new = (flat(json.loads(json.dumps({k: v for k, v in d.items() if k != "history"}))) for d in (before, now))
    names = [name for name in {**old, **new} if name not in _ELSEWHERE]
    return {name: [old.get(name), new.get(name)] for name in names if old.get(name) != new.get(name)}


def _read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}
