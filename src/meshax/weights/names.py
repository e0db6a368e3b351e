"""How a tensor there becomes a parameter here: the same numbers, in another order of dims.

A row of a family's table names a tensor, a parameter, and the dims along each dimension of the tensor, as in
`"kv_heads*heads*d_kv d_model"`: the first dimension is all heads one after the other. Dims that the parameter does not
have are passed over, so one row serves every way to group heads. `1/3` is the second of three parts of equal size. All
of it is a view: nothing is copied, and of a file nothing is read before somebody looks.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import numpy as np

from ..dim import Dim, Dims
from ..models.decoder import DecoderConfig
from ..tensors import Tensor, is_tensor

LAYERS = "layers"
_PART = re.compile(r"(\d+)/(\d+)\Z")
_INDEX = re.compile(rf"\.{LAYERS}\[(\d+)\]")


class Row(NamedTuple):
    """A tensor, a parameter of the model by its path, and which dims the tensor has."""

    tensor: str  # {} stands for the number of a layer
    parameter: str
    order: str


@dataclass(frozen=True)
class Place:
    """Where a tensor, or a part of one, is in the model."""

    parameter: str  # its name in the tree, as if the layers were one stack
    layer: int | None
    order: str
    dims: Dims  # without that of the layers

    def shape(self) -> tuple[int, ...]:
        """Returns the shape of the tensor."""
        return tuple(math.prod(size for _, size in axis) for axis in self._axes())

    def view(self, tensor: np.ndarray) -> np.ndarray:
        """Returns the tensor, or its part, in the order of the parameter's dims: what is written there changes it."""
        words = [word for axis in self._axes() for word in axis]
        fine = tensor.reshape([size for _, size in words])
        fine = fine[tuple(int(name.partition("/")[0]) if _PART.match(name) else slice(None) for name, _ in words)]
        names = [name for name, _ in words if not _PART.match(name)]
        return fine.transpose([names.index(dim.name) for dim in self.dims])

    def _axes(self) -> Iterator[list[tuple[str, int]]]:
        sizes = {dim.name: dim.size for dim in self.dims}
        for axis in self.order.split():
            words = (
                (word, int(part[2]) if (part := _PART.match(word)) else sizes.get(word, 0)) for word in axis.split("*")
            )
            yield [(name, size) for name, size in words if size or name in sizes]


def parameters(config: DecoderConfig, layers_as: str = "loop") -> Any:
    """Returns the model as a tree of shapes."""
    return jax.eval_shape(replace(config, layers_as=layers_as).make, jax.random.key(0))


def named_leaves(tree: Any) -> dict[str, Tensor]:
    """Returns the parameters of a model by name."""
    leaves = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_tensor)[0]
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves}


def places(config: DecoderConfig, rows: Sequence[Row]) -> dict[str, list[Place]]:
    """Returns for each tensor that a model of this configuration has where it goes: several parts to several places."""
    leaves = named_leaves(parameters(config))
    found: dict[str, list[Place]] = {}
    for row in rows:
        name = f".{row.parameter}"
        if name not in leaves:
            continue
        dims = leaves[name].dims
        is_stack = dims[0].name == LAYERS
        for layer in range(dims[0].size) if is_stack else (None,):
            place = Place(name, layer, row.order, dims[1:] if is_stack else dims)
            found.setdefault(row.tensor.format(layer), []).append(place)
    covered = {place.parameter for one in found.values() for place in one}
    assert covered == leaves.keys(), f"no tensor is known for {sorted(leaves.keys() - covered)}"
    return found


def stack_and_layer(name: str) -> tuple[str, int | None]:
    """Returns the name of a parameter as if the layers were one stack, and the layer that it is of, if of one.

    >>> stack_and_layer(".layers[3].attention.q.weight")
    ('.layers.attention.q.weight', 3)
    """
    match = _INDEX.match(name)
    return (name, None) if match is None else (f".{LAYERS}{name[match.end() :]}", int(match[1]))


def stacked_dims(place: Place, layers: int) -> Dims:
    """Returns the dims of the parameter when the layers are one stack."""
    return place.dims if place.layer is None else (Dim(LAYERS, layers), *place.dims)
