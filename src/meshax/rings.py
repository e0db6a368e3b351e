"""Rings of processors: blocks travel from neighbour to neighbour, and there is time to compute while they do.

Blocks go both ways, half of them each, so that both directions of a link carry some. What is sent is what an all-gather
or a reduce-scatter would send, of which the compiler makes one operation each: permutes it can start early and end
late, each by itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from . import collectives
from .compat import Array, varying_axes
from .errors import LayoutError
from .layout import Axes
from .mesh import Mesh

_LARGEST = 64
# How a scope of the trace begins in which something goes around, then come the axes; and one of a stored parameter.
RING, STORED = "in a ring over ", "stored, "


@dataclass(frozen=True)
class Ring:
    """Processors along some axes, which send to their neighbours; and the dimension of arrays that goes around."""

    mesh: Mesh
    axes: Axes
    position: int

    @property
    def size(self) -> int:
        """How many processors there are."""
        return self.mesh.count(self.axes)

    @property
    def ways(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """By which step blocks go, and how many of them: forwards and backwards."""
        return (1, self.size // 2), (-1, (self.size - 1) // 2)

    @property
    def distances(self) -> list[int]:
        """How far each block is from the processor whose number it has, in the order in which they come."""
        return sorted((step * hops for step, count in self.ways for hops in range(1, count + 1)), key=abs)

    def send(self, x: Array, step: int, *, transient: bool = False) -> Array:
        """Sends to the neighbour."""
        pairs = [(place, (place + step) % self.size) for place in range(self.size)]
        with self.scope():
            return collectives.permute(x, self.axes, pairs, self.mesh.axes, transient=transient)

    def scope(self, prefix: str = "") -> Any:
        """Returns a context manager that names what is traced: reports tell by it what goes around."""
        return jax.named_scope(prefix + RING + "+".join(self.axes))

    def starts(self, block: int) -> list[Array]:
        """Returns where the block of this processor begins, and those of the processors that are so far away."""
        here = collectives.processor_index(self.axes)
        return [(here - distance) % self.size * block for distance in (0, *self.distances)]


def _join(blocks: Sequence[Array], ring: Ring) -> Array:
    """Puts the blocks, this processor's and those from the ring's distances, where they belong."""
    shape = list(blocks[0].shape)
    shape[ring.position] *= ring.size
    whole = collectives.to_copies(jnp.zeros(shape, blocks[0].dtype), varying_axes(blocks[0]))
    for block, start in zip(blocks, ring.starts(blocks[0].shape[ring.position]), strict=True):
        whole = lax.dynamic_update_slice_in_dim(whole, block, start, ring.position)
    return whole


def _cut(whole: Array, ring: Ring) -> list[Array]:
    """Cuts the blocks out again."""
    block = whole.shape[ring.position] // ring.size
    return [lax.dynamic_slice_in_dim(whole, start, block, ring.position) for start in ring.starts(block)]


# The plain derivatives would copy the whole for each block. Forward there are views alone, which a policy knows.
joined, cut = (jax.custom_vjp(fn, nondiff_argnums=(1,)) for fn in (_join, _cut))
joined.defvjp(lambda blocks, ring: (_join(blocks, ring), None), lambda ring, _, ct: (cut(ct, ring),))
cut.defvjp(lambda whole, ring: (_cut(whole, ring), None), lambda ring, _, cts: (joined(cts, ring),))


def around(block: Array, ring: Ring, *, transient: bool = False) -> list[Array]:
    """Returns this processor's block, and those from the ring's distances, as they come."""
    blocks = {0: block}
    for distance in ring.distances:
        step = 1 if distance > 0 else -1
        blocks[distance] = ring.send(blocks[distance - step], step, transient=transient)
    return list(blocks.values())


def gathered(block: Array, ring: Ring) -> Array:
    """Joins the blocks along the ring's dimension, as copies: what an all-gather of something transient does.

    In the backward pass gradients go around the other way, and each processor adds its own: a reduce-scatter.
    """
    if ring.size > _LARGEST:
        raise LayoutError(
            f"stored parameters would go around a ring of {ring.size} processors, over {'+'.join(ring.axes)}.",
            rule=f"such a ring is a permute for each processor, wherever a parameter is used: at most {_LARGEST}.",
            fix='split them over two axes, as in "d_model:hosts+chips", and name the shorter one for rings.',
        )
    with ring.scope(STORED):
        return joined(around(block, ring, transient=True), ring)
