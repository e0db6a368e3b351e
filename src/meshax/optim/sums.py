"""Many small pending sums, reduced together.

An all-reduce of one number takes as long as one of a hundred. A sum that is pending over fewer axes than another is
counted once along the missing ones: on the first processor there, and as zero on the others.
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from .. import collectives
from ..layout import current
from ..tensors import Tensor


def reduce_together(sums: Sequence[Tensor]) -> list[Tensor]:
    """Reduces the pending ones among some small tensors; one that has a split dim is left to its consumer.

    Communication: one all-reduce for all of them, over all the axes that any is pending over.
    """
    setting = current()
    chosen = [i for i, x in enumerate(sums) if x._pending and not setting.placement(x.dims, x.role).axes]
    axes = frozenset(axis for i in chosen for axis in sums[i]._pending)
    if not axes:
        return list(sums)
    parts = [jnp.ravel(collectives.only_first(sums[i]._array, axes - sums[i]._pending)) for i in chosen]
    in_mesh_order = tuple(axis for axis in setting.mesh.axes if axis in axes)
    total = collectives.sum_over(jnp.concatenate(parts), in_mesh_order)
    pieces = jnp.split(total, np.cumsum([part.size for part in parts])[:-1])
    done = list(sums)
    for i, piece in zip(chosen, pieces, strict=True):
        done[i] = Tensor(piece.reshape(sums[i]._array.shape), sums[i].dims, sums[i].role)
    return done
