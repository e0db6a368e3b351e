"""What the backward pass keeps of each layer, by name; the rest it computes again."""

from collections.abc import Callable
from typing import Any

import jax

from ..layout import current
from ..ops import remat
from ..ops.control import traced_once

# From the least memory to the least work.
KEEP: dict[str, Any] = {
    "nothing": None,
    "collectives": "collectives",
    "products": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "all products": jax.checkpoint_policies.dots_saveable,
    "everything": jax.checkpoint_policies.everything_saveable,
}


def keeping(layer: Callable[..., Any], keep: str) -> Callable[..., Any]:
    """Returns a layer of which the backward pass keeps what `keep` names, and computes the rest again.

    A checkpoint that keeps everything is none: it would hold every intermediate result in memory, where the compiler
    makes most of them anew from their neighbours. Stored parameters need one all the same, to be forgotten in.
    """
    is_whole = keep == "everything" and not current().layout.params
    return traced_once(layer if is_whole else remat(layer, policy=KEEP[keep]))
