"""Other weights than the last ones: the mean of several checkpoints, as a run of its own.

Checkpoints are read array by array and, of stacks, layer by layer; the mean goes to a file as it grows. So there is
never more in memory than a few times the largest part, however many checkpoints there are and however large they are.
"""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.progress import track

from ..errors import CheckpointError, TrainingError
from ..interrupts import undoing
from ..mesh import Mesh
from ..program import spmd
from ..tensors import Tensor
from .checkpoint import Checkpoints
from .checkpoint.trees import leaves_of
from .config import run_config
from .options import CONFIG
from .starting import CHECKPOINTS, IMPORTED, Weights, checkpoints_of

_STACK = "layers"


def average_checkpoints(run: str | Path, last: int, out: str | Path, console: Console | None = None) -> list[int]:
    """Makes a run of the mean of the last checkpoints of another, and returns their steps.

    Args:
        run: the directory of the other run.
        last: how many checkpoints.
        out: the directory of the new run: its model, its words and its data are those of the other.
        console: where progress is shown.
    """
    source, target = Path(run).expanduser(), Path(out).expanduser()
    model: Any = run_config(source).model()
    if (target / CONFIG).exists() or (target / CHECKPOINTS).exists():
        raise TrainingError(f"there is a run in {str(target)!r} already.", fix="choose another out=.")
    with checkpoints_of(source) as checkpoints:
        steps = checkpoints.steps()[-last:] if last > 0 else []
        if last < 1 or len(steps) < last:
            raise TrainingError(
                f"the last {last} checkpoints cannot be averaged.",
                values=f"there are {len(checkpoints.steps())}: steps {', '.join(map(str, checkpoints.steps()))}",
                fix="average fewer, or train with a greater keep_last=." if last > 0 else "average 1 or more.",
            )
        sources = [checkpoints.on_host(step) for step in steps]
        tree, names = _tree_of(model, sources)
        with _whole_or_gone(target), tempfile.TemporaryDirectory(dir=target, prefix="average-") as scratch:
            leaves = []
            for number, name in enumerate(track(names, "averaging", console=console, transient=True)):
                leaves.append(_mean(name, sources, Path(scratch) / f"{number}.bin"))
            values = [Tensor(mean, leaf.dims, leaf.role) for mean, leaf in zip(leaves, names.values(), strict=True)]
            mean = jax.tree.unflatten(jax.tree.structure(tree, is_leaf=_is_leaf), values)
            extra = {name: value for name, value in sources[-1][0].extra.items() if name != "data"}
            extra[IMPORTED] = f"the mean of steps {', '.join(map(str, steps))} of {source}"
            with Checkpoints(target / CHECKPOINTS) as averaged:
                averaged.save(steps[-1], mean, extra, wait=True)
            for path in sorted(source.glob("*.json")):
                if path.name != CONFIG:
                    shutil.copyfile(path, target / path.name)
            shutil.copyfile(source / CONFIG, target / CONFIG)  # last: with it there is a run
    return steps


@contextlib.contextmanager
def _whole_or_gone(target: Path) -> Iterator[None]:
    """Makes a directory, and takes away what is in it if the work inside does not end well."""
    is_new = not target.exists()

    def remove() -> None:
        shutil.rmtree(target if is_new else target / CHECKPOINTS, ignore_errors=True)

    try:
        target.mkdir(parents=True, exist_ok=True)
        with undoing(remove):
            yield
    except OSError as error:
        remove()
        raise TrainingError(
            "the mean cannot be written.", values=f"{target}: {error.strerror or error}", fix="choose another out=."
        ) from error
    except BaseException:
        remove()
        raise


def _is_leaf(x: Any) -> bool:
    return isinstance(x, Tensor)


def _tree_of(model: Any, sources: Sequence[Any]) -> tuple[Any, dict[str, Tensor]]:
    """Returns the model as it was saved, looped or unrolled, and its leaves by name; raises if checkpoints differ."""
    first = sources[0][0].arrays
    for layers_as in ("loop", "unrolled"):
        config = replace(model, layers_as=layers_as) if hasattr(model, "layers_as") else model
        tree = spmd(lambda: Weights(config.make(jax.random.key(0))), Mesh("none:1", abstract=True), "").trace().results  # noqa: B023
        names = leaves_of(tree)
        if set(names) <= set(first):
            break
    odd = [
        f"step {manifest.step}: {name}"
        for manifest, _ in sources
        for name in names
        if manifest.arrays.get(name) != first.get(name) or name not in first
    ]
    if odd:
        raise CheckpointError(
            "the checkpoints do not hold the same parameters.",
            values="; ".join(odd[:8]),
            rule="a mean is of arrays of one name, shape and dtype.",
            fix="average checkpoints of one model.",
        )
    return tree, names


def _mean(name: str, sources: Sequence[Any], path: Path) -> np.ndarray:
    """Returns the mean of an array in all checkpoints, as a file; what is not floating has to be the same in all."""
    entry = sources[0][0].arrays[name]
    dtype = jnp.dtype(entry.dtype)
    result = np.memmap(path, dtype, "w+", shape=entry.shape or (1,)).reshape(entry.shape)
    is_stack = bool(entry.dims) and entry.dims[0][0] == _STACK
    for part in range(entry.shape[0]) if is_stack else (None,):
        total: Any = 0.0
        for _, reader in sources:
            total = total + reader.whole(name, part).astype(np.float64)
        result[... if part is None else part] = (total / len(sources)).astype(dtype)
    return result
