"""Rings of processors: blocks travel from neighbour to neighbour, and there is time to compute while they do.

Blocks go both ways, half of them each, so that both directions of a link carry some. What is sent is what an all-gather
or a reduce-scatter would send, of which the compiler makes one operation each: permutes it can start early and end
late, each by itself.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jax import lax

from . import collectives
from .compat import Array
from .errors import LayoutError
from .layout import Axes
from .mesh import Mesh

_LARGEST = 64
RING = "in a ring over "  # how a scope of the trace begins in which something goes around; then come the axes


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

    def send(self, x: Array, step: int) -> Array:
        """Sends to the neighbour."""
        pairs = [(place, (place + step) % self.size) for place in range(self.size)]
        with self.scope():
            return collectives.permute(x, self.axes, pairs, self.mesh.axes)

    def scope(self) -> Any:
        """Returns a context manager that names what is traced: reports tell by it what goes around."""
        return jax.named_scope(RING + "+".join(self.axes))

    def start(self, distance: int, block: int) -> Array:
        """Returns where the block of the processor begins that is so far away, this one's number less its own."""
        return (collectives.processor_index(self.axes) - distance) % self.size * block


def added_up(part: Callable[[int], Array], ring: Ring) -> Array:
    """Returns the sum of what all processors add to this one's block: what goes furthest sets out first.

    Args:
        part: what this processor adds to the block of one so far away, counted around the ring.
        ring: around which sums go, and each processor adds its own.
    """
    arrived = []
    for step, count in ring.ways:
        if count:
            total = part(-step * count % ring.size)
            for hops in range(count - 1, 0, -1):
                total = ring.send(total, step) + part(-step * hops % ring.size)
            arrived.append(ring.send(total, step))
    return sum(arrived, start=part(0))


def gathered(block: Array, ring: Ring) -> Array:
    """Joins the blocks along the ring's dimension, as copies: an all-gather of something transient.

    In the backward pass gradients go around, and each processor adds its own, in the place of a reduce-scatter.
    """
    if ring.size > _LARGEST:
        raise LayoutError(
            f"gradients of stored parameters would go around a ring of {ring.size} processors, over "
            f"{'+'.join(ring.axes)}.",
            rule=f"such a ring is a permute for each processor, wherever a parameter is used: at most {_LARGEST}.",
            fix='split them over two axes, as in "d_model:hosts+chips", and name the shorter one for rings.',
        )
    return _gathered(block, ring)


def _gather(block: Array, ring: Ring) -> Array:
    return collectives.gather(block, ring.axes, ring.position, copies=True, transient=True)


def _scatter(whole: Array, ring: Ring) -> Array:
    block, at = whole.shape[ring.position] // ring.size, ring.position
    with ring.scope():
        return added_up(lambda d: lax.dynamic_slice_in_dim(whole, ring.start(d, block), block, at), ring)


_gathered = jax.custom_vjp(_gather, nondiff_argnums=(1,))
_gathered.defvjp(lambda block, ring: (_gathered(block, ring), None), lambda ring, _, ct: (_scatter(ct, ring),))
