"""Where beams stand in the cache, so that little of it moves when some die and others go on twice.

A beam that goes on stays where its parent is. Where a parent goes on twice, the second beam takes the place of one that
died, and only there something is copied: what was written since the prompt, which all beams of a prompt share, of the
pages in use, in place.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..compat import Array
from ..layout import current
from ..ops import any as any_
from ..ops import arange, cumsum, gather, where
from ..ops.operands import compute
from ..tensors import Tensor, is_tensor
from .choosing import counted

_BEAM, _PAGES = "beam", "pages"


def assign_places(parents: Tensor) -> tuple[Tensor, Tensor]:
    """Returns where each beam stands, and what comes to each place from where: itself, if it stays.

    Args:
        parents: where the parent of each beam stands, [batch, beam], beams in their order.
    """
    beam = parents.dim(_BEAM)
    places, others = arange(beam).rename(beam="places"), parents.rename(beam="others")
    twins = (parents == others) & (arange(others.dim("others")) < arange(beam))
    comes_second = any_(twins, "others")
    is_free = ~any_(parents.rename(beam="of") == places, "of")
    number = cumsum(comes_second.astype(jnp.int32), beam)  # of those that come second: the first takes the first place
    free = cumsum(is_free.astype(jnp.int32), "places")
    taken = counted(where(is_free & (free == number), places, 0), "places")
    stands = where(comes_second, taken, parents)
    comes = counted(where(stands.rename(beam="of") == places, parents.rename(beam="of"), 0), "of")
    return stands, comes.rename(places=_BEAM)


def inverse(places: Tensor) -> Tensor:
    """Returns which beam stands at each place, if each beam stands at one."""
    numbers = arange(places.dim(_BEAM))
    here = places.rename(beam="of") == numbers
    return counted(where(here, numbers.rename(beam="of"), 0), "of")


def moved(cache: Any, comes: Tensor, pages: range, whole: int) -> Any:
    """Returns the cache in which each place has what it gets from another one.

    What has no dim of beams, such as what is kept of a source, all beams of a prompt have in common.

    Args:
        cache: what a model keeps, in any tree.
        comes: from where each place gets it, [batch, beam]; itself, if it stays.
        pages: those that were written to, of a cache that has a place for every token.
        whole: how many pages such a cache has; one that has fewer uses all of them again and again.

    Communication: none, unless the layout splits beams.
    """
    beam = comes.dim(_BEAM)
    is_split = bool(current().placement((beam,)).of(beam))

    def move(x: Tensor) -> Tensor:
        names = [dim.name for dim in x.dims]
        if _BEAM not in names:
            return x
        if is_split or _PAGES not in names or beam.size == 1:
            return gather(x, comes.rename(beam="to"), beam).rename(to=_BEAM)
        size = x.dim(_PAGES).size
        some = pages if size == whole else range(size)
        axes = [names.index(name) for name in (comes.dims[0].name, _BEAM, _PAGES)]
        return Tensor(compute(lambda x, comes: _copied(x, comes, some, *axes), [x, comes]), x.dims)

    return jax.tree.map(move, cache, is_leaf=is_tensor)


def _copied(cache: Array, comes: Array, pages: range, batch: int, beam: int, page: int) -> Array:
    """Copies from beam to beam, in place: what stays is neither read nor written, but for what comes in its stead."""
    size = cache.shape[beam]
    stays = comes == jnp.arange(size)
    order = jnp.argsort(stays, axis=1)[:, : size - 1]  # those that move come first: one at least never does
    source = jnp.take_along_axis(comes, order, 1)
    target = jnp.where(jnp.take_along_axis(stays, order, 1), size + order, order)  # beyond the end: nothing is written
    sizes = list(cache.shape)
    sizes[batch], sizes[beam], sizes[page] = 1, 1, len(pages)
    start = jnp.full_like(source, pages.start)
    windows = tuple(range(2, cache.ndim))
    taken = lax.gather(
        cache,
        jnp.stack([source, start], -1),
        lax.GatherDimensionNumbers(
            offset_dims=windows, collapsed_slice_dims=(beam,), start_index_map=(beam, page),
            operand_batching_dims=(batch,), start_indices_batching_dims=(0,),
        ),
        tuple(sizes),
        mode="clip",
    )  # fmt: skip
    return lax.scatter(
        cache,
        jnp.stack([target, start], -1),
        taken,
        lax.ScatterDimensionNumbers(
            update_window_dims=windows, inserted_window_dims=(beam,), scatter_dims_to_operand_dims=(beam, page),
            operand_batching_dims=(batch,), scatter_indices_batching_dims=(0,),
        ),
        unique_indices=True,
        mode="drop",
    )  # fmt: skip
