"""A model as programs that run without meshax: StableHLO by `jax.export`, the weights beside it, and what goes where.

There are a program for each length of prompts, and one for a step:

    prefill(*weights, *cache, taken, tokens, lengths) -> cache      reads the beginnings of texts into slots
    step(*weights, *cache, token, at) -> (logits, *cache)           one more token of each text

Of a model that writes a text from another, the first kind reads sources: `sources` and `source_lengths` stand in the
place of tokens and lengths, and a text begins with the first token that a step takes.

A cache begins as zeros. `exported.json` lists the arguments in their order, each with its shape, dtype, dims and how
the mesh splits it; `run.py`, which needs nothing but JAX, shows how they are called.
"""

import inspect
import json
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from ..dim import Dim
from ..errors import ArgumentError, CheckpointError
from ..extras import check_extra
from ..files import write_whole
from ..layout import Layout, RulesLike
from ..mesh import Mesh
from ..models.contract import CachingModel
from ..nn.step_attention import lasting
from ..ops import zeros
from ..program import Program, put, spmd
from ..tensors import Tensor, tensor
from ..weights.names import named_leaves
from ..weights.safetensors import DTYPES, Entry, write_file
from . import run_exported
from .room import Room

WEIGHTS, DESCRIPTION, RUNNER = "weights.safetensors", "exported.json", "run.py"
_FORMAT = 1


def export_programs(
    model: CachingModel,
    mesh: Mesh,
    layout: Layout | RulesLike,
    to: str | Path,
    *,
    slots: int = 1,
    places: int = 1024,
    page: int = 128,
    prompts: Sequence[int] = (64,),
    platforms: Sequence[str] = (),
    about: dict[str, Any] | None = None,
) -> Path:
    """Writes a folder with the programs, and returns it.

    Args:
        model: the model.
        mesh: the processors that the programs will run on: as many, of whatever kind.
        layout: which dims are split over which mesh axes.
        to: the folder to make.
        slots: how many texts are written at once.
        places: how many tokens a text has at most, its prompt included.
        page: how many tokens a page of the cache holds.
        prompts: the lengths of prompts, in tokens: there is a program for each. Of a model that reads sources, their
            lengths; the longest is what there is room for.
        platforms: what the programs may run on: cpu, cuda, rocm or tpu; none: what the mesh is of.
        about: what else the description says.
    """
    check_extra("export", "exported programs", "flatbuffers")
    target = Path(to).expanduser()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        state = "not empty" if target.is_dir() else "a file"
        raise CheckpointError(f"the folder to export to is {state}.", values=str(target), fix="name another one.")
    reads_sources = getattr(model, "reads_sources", False)
    if wrong := [length for length in prompts if length < 1 or (length > places and not reads_sources)]:
        raise ArgumentError(
            f"a prompt of {wrong[0]} tokens does not fit.",
            values=f"{places} places",
            fix="give more places, or shorter prompts.",
        )
    batch = Dim("batch", slots)
    room = Room(model, mesh, layout, (batch,), places, page, max(prompts) if reads_sources else 0)
    numbers = [tensor(np.zeros(slots, np.int32), (batch,)) for _ in range(2)]
    step = spmd(_step(room.pages(places)), mesh, room.layout_of_a_step, donate=1)
    programs: dict[str, tuple[Program[..., Any], dict[str, Tensor]]] = {
        "step": (step, dict(zip(("token", "at"), numbers, strict=True)))
    }
    names = ("sources", "source_lengths") if reads_sources else ("tokens", "lengths")
    for length in prompts:
        dims = batch, Dim("source_length" if reads_sources else "length", length)
        read = tensor(np.zeros((slots, length), np.int32), dims), numbers[1]
        inputs = {"taken": numbers[0], **dict(zip(names, read, strict=True))}
        fill = _with_sources(room) if reads_sources else room.filled
        programs[f"prefill-{length}"] = (spmd(fill, mesh, room.layout, donate=1), inputs)

    cache, target = room.empty(), _folder(target)
    described = {}
    for name, (program, inputs) in programs.items():
        placed = {key: put(value, mesh, program.layout) for key, value in inputs.items()}
        write_whole(target / f"{name}.jax_export", _exported(program, (room.model, cache, *placed.values()), platforms))
        described[name] = {"file": f"{name}.jax_export", "inputs": _described(placed)}
    weights = named_leaves(room.model)
    _write_weights(target / WEIGHTS, weights)
    description = {
        "format": _FORMAT,
        "meshax": version("meshax"),
        "jax": jax.__version__,
        "mesh": dict(mesh.axes),
        "slots": slots,
        "places": places,
        "reads_sources": reads_sources,
        "vocab": room.vocab.size,
        "weights": {"file": WEIGHTS, "arrays": _described(weights)},
        "cache": _described(named_leaves(cache)),
        "programs": described,
        **(about or {}),
    }
    write_whole(target / RUNNER, inspect.getsource(run_exported))
    write_whole(target / DESCRIPTION, json.dumps(description, indent=1) + "\n")
    return target


def _step(num_pages: int) -> Any:
    def step(model: Any, cache: Any, token: Tensor, at: Tensor) -> Any:
        logits, cache = model.step(token, at, cache, num_pages)
        return logits.astype(jnp.float32), cache

    return step


def _with_sources(room: Room) -> Any:
    """Returns the program that reads sources, whose texts have no beginning yet."""

    def filled(model: Any, cache: Any, taken: Tensor, sources: Tensor, lengths: Tensor) -> Any:
        nothing = zeros((sources.dim("batch"), Dim("length", 1)), jnp.int32)
        return room.filled(model, cache, taken, nothing, zeros((sources.dim("batch"),), jnp.int32), sources, lengths)

    return filled


def _folder(target: Path) -> Path:
    target.mkdir(parents=True, exist_ok=True)
    return target


def _exported(program: Program[..., Any], arguments: tuple[Any, ...], platforms: Sequence[str]) -> bytes:
    """Returns a program as a function of plain arrays, in the order of the leaves of its arguments."""
    leaves, tree = jax.tree.flatten(arguments)
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding) for x in leaves]
    num_before = len(jax.tree.leaves(arguments[0]))
    num_cache = len(jax.tree.leaves(arguments[1]))

    def flat(*arrays: Any) -> list[Any]:
        return jax.tree.leaves(program(*jax.tree.unflatten(tree, arrays)))

    jitted = jax.jit(flat, donate_argnums=range(num_before, num_before + num_cache))
    try:
        with lasting():
            return bytes(jax.export.export(jitted, platforms=list(platforms) or None)(*shapes).serialize())
    except ValueError as error:
        raise ArgumentError(
            f"these programs cannot be exported for {', '.join(platforms) or 'this platform'}.",
            values=str(error).partition("\n")[0],
            fix="export on a CPU, or for the platform at hand alone.",
        ) from error


def _described(tensors: dict[str, Tensor]) -> list[dict[str, Any]]:
    """Returns what is to be known of arrays, in their order."""

    def one(name: str, x: Tensor) -> dict[str, Any]:
        (array,) = jax.tree.leaves(x)
        split = [list(axes) if isinstance(axes, tuple) else axes for axes in array.sharding.spec]
        sizes = {dim.name: dim.size for dim in x.dims}
        return {"name": name, "dtype": str(array.dtype), "shape": array.shape, "dims": sizes, "split": split}

    return [one(name, x) for name, x in tensors.items()]


def _write_weights(path: Path, weights: dict[str, Tensor]) -> None:
    """Writes arrays as they are stored, padding included."""
    words = {dtype: word for word, dtype in DTYPES.items()}
    arrays = {name: jax.tree.leaves(x)[0] for name, x in weights.items()}
    entries = {name: Entry(words[np.dtype(x.dtype)], x.shape) for name, x in arrays.items()}
    write_file(path, entries, lambda name: np.asarray(arrays[name]), {})
