"""Moving an array from one placement to another, by exactly the collectives it takes.

A dim that gives up its minor axes is gathered; one that takes on axes keeps its own block, or receives it from a
reduce-scatter if the value is a pending sum over them; an axis that goes from one dim to another is an all-to-all.
Blocks of two splits of an uneven dim need not nest (10 over 8, then over 2): then the dim is gathered whole first.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from . import collectives
from .compat import Array, is_traced, varying_axes
from .dim import Dim, Dims, sizes
from .layout import Axes, Placement, block_size, current, is_inside
from .mesh import Mesh
from .rings import Ring, gathered


def move(
    x: Array,
    source: Placement,
    target: Placement,
    pending: frozenset[str] = frozenset(),
    vary: frozenset[str] = frozenset(),
    transient: bool = False,
) -> Array:
    """Returns the array in the target placement, with nothing pending: what was a partial sum over axes is summed.

    What is gathered over axes over which the consumer varies arrives as copies; what is transient is gathered again
    for the backward pass.
    """
    if source == target and not pending:
        return x
    vary = vary & source.axes
    key = ("move", target.dims, source, target, pending, vary, transient)
    as_copies = vary | target.axes  # also what is gathered only to be cut again
    return collectives.once(x, key, lambda x: _Move(x, list(source), target, set(pending), as_copies, transient).run())


@dataclass
class _Move:
    """One move: the array on its way, and where each dim is by now."""

    x: Array
    now: list[Axes]
    target: Placement
    pending: set[str]
    vary: frozenset[str]
    transient: bool

    def run(self) -> Array:
        self._exchange_axes()
        self._take_blocks(only_unused=True)
        self.x = collectives.sum_over(self.x, [axis for axis in self.target.mesh.axes if axis in self.pending])
        self.pending.clear()
        for position in range(len(self.now)):
            self._gather(position)
        self._take_blocks(only_unused=False)
        return self.x

    def _exchange_axes(self) -> None:
        changed = [i for i, axes in enumerate(self.target) if axes != self.now[i]]
        for leaves, joins in itertools.permutations(changed, 2):
            left, gained = self._suffix(self.target, self.now, leaves), self._suffix(self.now, self.target, joins)
            if left and left == gained:
                self._pad(joins, left)
                self.x = collectives.exchange(self.x, left, split=joins, join=leaves)
                self.now[leaves], self.now[joins] = self.target[leaves], self.target[joins]
                self._crop(leaves)

    def _take_blocks(self, *, only_unused: bool) -> None:
        for position, axes in enumerate(self.target):
            if axes == self.now[position]:
                continue
            added = self._suffix(self.now, self.target, position)
            in_use = {axis for axes in self.now for axis in axes}
            if not added or (only_unused and in_use & set(added)):
                continue
            self._pad(position, added)
            for state, group in itertools.groupby(added, key=self._state):
                part = tuple(group)
                if state == "pending":
                    self.x = collectives.scatter_sum(self.x, part, position)
                    self.pending -= set(part)
                else:
                    block = self.x.shape[position] // self.target.mesh.count(part)
                    self.x = collectives.take_block(self.x, part, position, block)
            self.now[position] = axes

    def _state(self, axis: str) -> str:
        if axis in self.pending:
            return "pending"
        return "copies" if axis in varying_axes(self.x) else "replicated"

    def _gather(self, position: int) -> None:
        if self.now[position] == self.target[position] or self._suffix(self.now, self.target, position):
            return
        leaving = self._suffix(self.target, self.now, position) or self.now[position]
        self.now[position] = self.now[position][: -len(leaving)]
        # minor axes first, so that the blocks joined are neighbours
        for (copies, in_ring), group in itertools.groupby(reversed(leaving), key=self._way_to_gather):
            axes = tuple(reversed(list(group)))
            if in_ring and self.target.mesh.count(axes) > 2:  # a ring of two is a gather
                self.x = gathered(self.x, Ring(self.target.mesh, axes, position))
            else:
                self.x = collectives.gather(self.x, axes, position, copies=copies, transient=self.transient)
        self._crop(position)

    def _way_to_gather(self, axis: str) -> tuple[bool, bool]:
        """Returns whether what is gathered over an axis arrives as copies, and whether its blocks go around in a ring.

        Those of stored parameters do, where the layout says so and sums of gradients may be made on the way.
        """
        copies = axis in self.vary
        may = copies and self.transient and axis in current().layout.rings
        return copies, may and collectives.can_stay_pending(self.x.dtype)

    def _suffix(self, short: Sequence[Axes], long: Sequence[Axes], position: int) -> Axes:
        """Returns the axes by which the longer split of a dim refines the shorter one, if its blocks nest."""
        coarse, fine = short[position], long[position]
        return fine[len(coarse) :] if refines(self.target.dims[position], self.target.mesh, coarse, fine) else ()

    def _block(self, position: int, axes: Axes) -> int:
        return block_size(self.target.dims[position].size, self.target.mesh.count(axes))

    def _pad(self, position: int, added: Axes) -> None:
        wanted = self._block(position, self.target[position]) * self.target.mesh.count(added)
        self.x = pad_to(self.x, position, wanted)

    def _crop(self, position: int) -> None:
        wanted = self._block(position, self.now[position])
        if self.x.shape[position] != wanted:
            self.x = lax.slice_in_dim(self.x, 0, wanted, axis=position)


def refines(dim: Dim, mesh: Mesh, coarse: Axes, fine: Axes) -> bool:
    """Whether a split of a dim only goes further than another: each block is one of the other, or a part of one."""
    many, few = mesh.count(fine), mesh.count(coarse)
    nests = few == 1 or block_size(dim.size, few) == many // few * block_size(dim.size, many)
    return fine[: len(coarse)] == coarse and nests


def pad_to(x: Array, position: int, size: int) -> Array:
    """Appends zeros along an array dimension up to a size."""
    return pad(x, position, 0, size - x.shape[position])


def pad(x: Array, position: int, before: int, after: int, fill: Any = 0) -> Array:
    """Puts a number of elements before and after an array dimension."""
    if not before and not after:
        return x
    return jnp.pad(x, [(before, after) if i == position else (0, 0) for i in range(x.ndim)], constant_values=fill)


def crop(x: Array, shape: Dims) -> Array:
    """Cuts the padding off a whole array."""
    if x.shape == sizes(shape):
        return x
    if is_inside() and not is_traced(x):
        x = np.asarray(x)  # a placed array from outside: JAX cannot slice it while it traces for the same devices
    return x[tuple(slice(dim.size) for dim in shape)]


def along(x: Array, position: int, ndim: int) -> Array:
    """Returns a vector as an array of so many dimensions, of which it fills one."""
    return x.reshape([-1 if i == position else 1 for i in range(ndim)])


def indices(placement: Placement, dim: Dim) -> Array:
    """Returns the place in the whole dim of each element of this processor's block, padding included."""
    block, axes = placement.block(dim), placement.of(dim)
    local = jnp.arange(block, dtype=jnp.int32)
    return local + collectives.processor_index(axes) * block if axes else local


def fill_padding(x: Array, placement: Placement, over: Dims, value: Any = 0) -> Array:
    """Replaces the padding along some dims, whatever it holds; the backward pass drops what flows into it."""
    for dim in placement.uneven:
        if dim in over:
            inside = along(is_real(placement, dim), placement.dims.index(dim), x.ndim)
            x = jnp.where(inside, x, jnp.asarray(value, x.dtype))
    return x


def is_real(placement: Placement, dim: Dim) -> Array:
    """Whether each element of this processor's block is one of the dim, and not padding."""
    if dim.size <= collectives.LARGEST:
        return indices(placement, dim) < dim.size
    # places do not fit into 32 bits, but those in a block do: the first blocks are full, then one is not, then none
    full, rest = divmod(dim.size, block := placement.block(dim))
    here = collectives.processor_index(placement.of(dim))
    count = jnp.where(here < full, jnp.uint32(block), jnp.where(here == full, jnp.uint32(rest), jnp.uint32(0)))
    return jnp.arange(block, dtype=jnp.uint32) < count
