"""What several processes hold together: the rows of a batch that each reads, and values that all of them want.

A mesh may stand on the devices of many processes. Each process reads what its own devices hold, which follows from the
placement of a tensor and from nothing else: not from the number of the process, nor from how many there are.
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding

from .errors import ArgumentError
from .layout import Layout, RulesLike, Setting
from .mesh import Mesh
from .program import put
from .tensors import Tensor, is_tensor


class LocalRows:
    """The rows of a batch that the devices of this process hold, and the way of such rows onto the mesh.

    A row is an element of the first dim. Where other dims are split too, or nothing is, several processes hold the same
    rows, and each reads them.
    """

    rows: tuple[int, ...]

    def __init__(self, shapes: Mapping[str, Tensor], mesh: Mesh, layout: Layout | RulesLike = ""):
        """Finds out which rows these are.

        Args:
            shapes: the tensors of a batch by name; `jax.ShapeDtypeStruct` will do for their arrays.
            mesh: the processors.
            layout: the rules.
        """
        put((), mesh, layout)  # checks both
        self._dims = {name: shape.dims for name, shape in shapes.items()}
        setting = Setting(mesh, layout if isinstance(layout, Layout) else Layout(layout))
        self._places = {name: setting.placement(dims) for name, dims in self._dims.items()}
        self._shardings = {name: NamedSharding(mesh.jax_mesh, one.spec) for name, one in self._places.items()}
        self.rows = tuple(sorted({row for name in shapes for row in self._held(name)}))
        self._number = {row: number for number, row in enumerate(self.rows)}

    def _held(self, name: str) -> set[int]:
        shape, size = self._places[name].padded_shape, self._dims[name][0].size
        indices = self._shardings[name].addressable_devices_indices_map(shape).values()
        return {row for index in indices if index is not None for row in range(size)[index[0]]}

    def put(self, batch: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
        """Places a batch of which this process has its own rows only. Nothing is sent to others.

        Instead of an array there may be anything with a shape and a dtype that gives a block when it is sliced: of that
        only the blocks of this process's devices are asked for.
        """
        return {name: self._placed(name, rows) for name, rows in batch.items()}

    def _placed(self, name: str, rows: np.ndarray) -> Tensor:
        dims, shape = self._dims[name], self._places[name].padded_shape
        expected = (len(self.rows), *(dim.size for dim in dims[1:]))
        if rows.shape != expected:
            raise ArgumentError(
                f"{name!r} has the shape {rows.shape} in this process, not {expected}.",
                rule="a process has those rows of a batch that its devices hold.",
                fix="read the rows that .rows names: Batches(..., rows=local.rows).",
            )
        dtype = jax.dtypes.canonicalize_dtype(rows.dtype)

        def block_at(index: Any) -> np.ndarray:
            bounds = [part.indices(size)[:2] for part, size in zip(index, shape, strict=True)]
            block = np.zeros([end - begin for begin, end in bounds], dtype)
            (begin, end), *others = [
                (begin, min(end, dim.size)) for (begin, end), dim in zip(bounds, dims, strict=True)
            ]
            if begin < end and all(first < last for first, last in others):  # the rest is padding
                first = self._number[begin]
                part = rows[(slice(first, first + end - begin), *(slice(*pair) for pair in others))]
                block[tuple(map(slice, part.shape))] = part
            return block

        return Tensor(jax.make_array_from_callback(shape, self._shardings[name], block_at), dims)


def gather_to_host(tree: Any) -> Any:
    """Returns a pytree with whole numpy arrays for its tensors and arrays, in every process.

    All processes call it together, with the same tree. In one process it is `.numpy()` for each.

    Communication: an all-gather of what is split over processes; each device holds one whole array at a time.
    """

    def gathered(x: Any) -> Any:
        array = x.array if is_tensor(x) else x
        if isinstance(array, jax.Array):
            array = multihost_utils.process_allgather(array, tiled=True) if not array.is_fully_addressable else array
            array = np.asarray(array)
        return array[tuple(slice(dim.size) for dim in x.dims)] if is_tensor(x) else array

    return jax.tree.map(gathered, tree, is_leaf=is_tensor)
