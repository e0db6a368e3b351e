"""Writing a token with the model of a preset, as a program to explain, plan and lay out; nothing is made.

Run as a program, this module compiles one for whoever asks on its standard input: see `plan/compile/worker.py`.
"""

import json
from collections.abc import Mapping
from typing import Any

import jax

from ..dim import Dim
from ..errors import ArgumentError
from ..mesh import Mesh
from ..models.fields import with_fields
from ..models.presets import preset
from ..plan.compile.targets import Target
from ..plan.compile.worker import main
from ..program import spmd
from ..tensors import is_tensor
from .slots import state_of
from .stepping import write_token

_PAGE = 128
_UNSPLIT = ("pages", "parts", "stop")  # a program reads the first pages alone; parts are of products that are joined


def check_decode_step(name: str, model: Mapping[str, Any] = {}, slots: int = 1, context: int = 1024) -> Any:
    """Returns the configuration of a preset, with what is asked for instead, or raises if it cannot write so."""
    config: Any = with_fields(preset(name).model, {"layers_as": "unrolled", **model})
    if config.batch_kind != "tokens":
        raise ArgumentError(f"{name!r} is no language model.", fix="choose a preset that is.")
    if slots < 1 or context < 1:
        raise ArgumentError(
            "there are no such texts.", values=f"{slots} slots, {context} tokens", fix="give numbers, 1 or more."
        )
    return config


def decode_target(name: str, model: Mapping[str, Any] = {}, slots: int = 1, context: int = 1024) -> Target:
    """Returns the program that writes a token in each slot, and the shapes of its arguments.

    Args:
        name: the preset's.
        model: fields of the model's configuration, in place of the preset's.
        slots: how many texts are written at once.
        context: how many tokens the texts have, and the cache has room for: all of it is read.
    """
    config = check_decode_step(name, model, slots, context)
    batch, page = Dim("batch", slots), min(_PAGE, context)
    has_own_keys = config.kv_heads in (None, config.heads)  # where groups share keys, a layout may split their heads

    def init() -> Any:
        narrow = config.make(jax.random.key(0)).narrowed(joins=has_own_keys)
        return narrow, narrow.empty_cache((batch,), context, page)

    shapes, cache = spmd(init, Mesh("none:1", abstract=True), "").trace().results
    state = state_of([None] * slots, batch, config.dims()["vocab"], set())

    def write(model: Any, cache: Any, state: Any) -> Any:
        return write_token(model, cache, state, -(-context // page))

    args = (shapes, cache, state)
    present = {dim.name for leaf in jax.tree.leaves(args, is_leaf=is_tensor) for dim in leaf.dims}
    unsplit = tuple(dim for dim in _UNSPLIT if dim in present)
    return Target(f"writing with {name}", write, args, (1, 2), tokens=slots, unsplit=unsplit)


if __name__ == "__main__":
    main(lambda asked: decode_target(**json.loads(asked)))
