"""What the backward pass keeps of each layer, by name; the rest it computes again."""

from typing import Any

import jax

# From the least memory to the least work.
KEEP: dict[str, Any] = {
    "nothing": None,
    "collectives": "collectives",
    "products": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "all products": jax.checkpoint_policies.dots_saveable,
    "everything": jax.checkpoint_policies.everything_saveable,
}
