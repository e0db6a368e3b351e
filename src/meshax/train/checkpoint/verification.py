"""Whether a checkpoint is what its manifest says: every process looks at its share of the files."""

import contextlib
from pathlib import Path

import jax
import numpy as np
from jax.experimental import multihost_utils

from .manifest import MANIFEST, Damage, Manifest, OtherVersion, find_damage, read_manifest


def verify(path: Path) -> tuple[Manifest | None, list[str]]:
    """Returns the manifest, and what does not agree with it. Processes share the work."""
    num_processes = jax.process_count()
    damage: list[str] = []
    manifest = None
    try:
        manifest = read_manifest(path)
        if not path.name.endswith(f"-step-{manifest.step}"):
            raise Damage(f"{MANIFEST}: is of step {manifest.step}, another one")
        damage = find_damage(path, manifest, jax.process_index(), num_processes)
    except Damage as unreadable:
        damage = [str(unreadable)]
    if num_processes > 1 and np.any(multihost_utils.process_allgather(np.array(bool(damage)))) and manifest:
        damage = find_damage(path, manifest)  # so that all say the same
    return manifest, damage


def looks_whole(path: Path) -> bool:
    """Whether a checkpoint has the files that it should, by their names and sizes."""
    try:
        files = read_manifest(path).files
        return all((path / name).stat().st_size == file.bytes for name, file in files.items())
    except (Damage, OtherVersion, OSError):
        return False


def is_whole(path: Path) -> bool:
    """Whether a checkpoint is as it was written."""
    with contextlib.suppress(OtherVersion):
        return not verify(path)[1]
    return False
