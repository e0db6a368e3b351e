"""Which parameters weight decay takes away from: all but those with some word in their name."""

from collections.abc import Sequence
from typing import Any

import jax

from ..errors import ArgumentError, did_you_mean
from ..tensors import is_tensor

USUAL_SKIPS = ("norm", "bias")  # what most skip; a model need not have them


def is_decayed(params: Any, skips: Sequence[str]) -> Any:
    """Returns a tree like the parameters, with True in the place of each that decays.

    A parameter is skipped if a part of its name has one of the words in it: "norm" skips `layers.attention_norm.scale`.
    The words do not depend on how layers are arranged: `layers[3].attention_norm.scale` is skipped as well.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(params, is_leaf=is_tensor)
    names = [jax.tree_util.keystr(path) for path, _ in leaves]
    unknown = [word for word in skips if word not in USUAL_SKIPS and not any(word in name for name in names)]
    if unknown:
        parts = {str(getattr(key, "name", getattr(key, "key", ""))) for path, _ in leaves for key in path} - {""}
        raise ArgumentError(
            f"weight decay is to skip {unknown[0]!r}, and no parameter is called so.",
            fix=did_you_mean(unknown[0], parts),
        )
    return jax.tree.unflatten(structure, [not any(word in name for word in skips) for name in names])
