"""Weights of a folder, put on a mesh: each processor reads its own blocks, one parameter after the other."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from ..layout import Layout, RulesLike, Setting
from ..mesh import Mesh
from ..models.decoder import Decoder
from ..program import put
from ..tensors import Tensor, is_tensor
from .families import family_of, matched
from .folder import Folder
from .names import Place, named_leaves, parameters, stack_and_layer

Sources = dict[tuple[str, int | None], tuple[str, Place]]


def load(
    folder: str | Path | Folder,
    mesh: Mesh,
    layout: Layout | RulesLike = "",
    *,
    layers_as: str = "auto",
    dtype: str = "",
) -> Decoder:
    """Reads the model of a Hugging Face folder onto a mesh.

    Args:
        folder: with `config.json` and safetensors files.
        mesh: the processors.
        layout: the rules.
        layers_as: how layers are gone through: "loop", "unrolled", or "auto".
        dtype: of products and activations; none: what `config.json` says. Parameters are float32.

    Communication: none; no processor reads more of a tensor than its own block.
    """
    folder = folder if isinstance(folder, Folder) else Folder(folder)
    family = family_of(folder.config)
    config = family.model(folder.config)
    config = replace(config, layers_as=layers_as, dtype=dtype or config.dtype)
    put((), mesh, layout)  # checks both
    setting = Setting(mesh, layout if isinstance(layout, Layout) else Layout(layout))
    sources = sources_of(matched(folder, family, config))
    tree = parameters(config, layers_as)
    arrays = [_placed(folder, sources, name, leaf, setting) for name, leaf in named_leaves(tree).items()]
    return jax.tree.unflatten(jax.tree.structure(tree, is_leaf=is_tensor), arrays)


def sources_of(wanted: dict[str, list[Place]]) -> Sources:
    """Returns the tensor that each parameter, or each layer of one, is made of."""
    return {(place.parameter, place.layer): (name, place) for name, all_ in wanted.items() for place in all_}


def view_of(folder: Folder, sources: Sources, parameter: str, layer: int | None) -> np.ndarray:
    """Returns a parameter as a view of the file that it is in."""
    name, place = sources[parameter, layer]
    return place.view(folder.array(name))


def _placed(folder: Folder, sources: Sources, name: str, leaf: Tensor, setting: Setting) -> Tensor:
    """Returns a parameter on the mesh."""
    parameter, layer = stack_and_layer(name)
    placement = setting.placement(leaf.dims, leaf.role)
    is_stack = layer is None and (parameter, None) not in sources
    read = _block_of_stack if is_stack else _block
    sizes = [dim.size for dim in leaf.dims]
    look: Callable[[int | None], np.ndarray] = lambda number: view_of(folder, sources, parameter, number)  # noqa: E731

    def block_at(index: Any) -> np.ndarray:
        bounds = [part.indices(size)[:2] for part, size in zip(index, placement.padded_shape, strict=True)]
        block = np.zeros([end - begin for begin, end in bounds], jnp.float32)
        inside = [(begin, min(end, size)) for (begin, end), size in zip(bounds, sizes, strict=True)]
        if all(begin < end for begin, end in inside):
            read(block[tuple(slice(0, end - begin) for begin, end in inside)], inside, look, layer)
        return block

    sharding = NamedSharding(setting.mesh.jax_mesh, placement.spec)
    array = jax.make_array_from_callback(placement.padded_shape, sharding, block_at)
    return Tensor(array, leaf.dims, leaf.role)


def _block(block: np.ndarray, bounds: list[tuple[int, int]], look: Callable[..., Any], layer: int | None) -> None:
    block[...] = look(layer)[tuple(slice(*pair) for pair in bounds)]


def _block_of_stack(block: np.ndarray, bounds: list[tuple[int, int]], look: Callable[..., Any], _: int | None) -> None:
    for row, layer in enumerate(range(*bounds[0])):
        _block(block[row, ...], bounds[1:], look, layer)
