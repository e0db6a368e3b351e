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

_PAGE, _CONTEXT = 128, 1024
_WRITE = ("tokens", "pairs")  # kinds of batches of models that write text
_UNSPLIT = ("pages", "parts", "stop")  # a program reads the first pages alone; parts are of products that are joined


def check_decode_step(name: str, model: Mapping[str, Any] = {}, slots: int = 1, context: int = 0) -> tuple[Any, int]:
    """Returns the configuration of a preset, with what is asked for instead, and the context, or raises."""
    own = preset(name).model
    if own.batch_kind not in _WRITE:
        raise ArgumentError(f"{name!r} writes no text.", fix="choose a language model, or one that translates.")
    config: Any = with_fields(own, {"layers_as": "unrolled", **model})
    if slots < 1 or context < 0:
        raise ArgumentError(
            "there are no such texts.", values=f"{slots} slots, {context} tokens", fix="give numbers, 1 or more."
        )
    if config.positions == "learned" and context > config.max_length:
        raise ArgumentError(
            f"the model has {config.max_length} learned positions, for {context} tokens.",
            fix="choose a greater max_length, or less context.",
        )
    return config, context or usual_context(config)


def usual_context(config: Any) -> int:
    """Returns how many tokens a text has if nobody says: 1,024, or as many as there are learned positions.

    Where there are sources too, half of the learned positions are theirs.
    """
    learned = config.max_length // (2 if config.batch_kind == "pairs" else 1)
    return min(_CONTEXT, learned) if config.positions == "learned" else _CONTEXT


def decode_target(name: str, model: Mapping[str, Any] = {}, slots: int = 1, context: int = 0) -> Target:
    """Returns the program that writes a token in each slot, and the shapes of its arguments.

    Args:
        name: the preset's.
        model: fields of the model's configuration, in place of the preset's.
        slots: how many texts are written at once.
        context: how many tokens the texts have, and the cache has room for: all of it is read; 0: `usual_context`.
            Sources, of a model that reads them, have as many.
    """
    config, context = check_decode_step(name, model, slots, context)
    batch, page = Dim("batch", slots), min(_PAGE, context)
    has_own_keys = config.kv_heads in (None, config.heads)  # where groups share keys, a layout may split their heads

    def init() -> Any:
        narrow = config.make(jax.random.key(0)).narrowed(joins=has_own_keys)
        source = (context,) if getattr(narrow, "reads_sources", False) else ()
        return narrow, narrow.empty_cache((batch,), context, page, *source)

    shapes, cache = spmd(init, Mesh("none:1", abstract=True), "").trace().results
    state = state_of([None] * slots, batch, config.dims()["vocab"], {"log_probabilities"})

    def write(model: Any, cache: Any, state: Any) -> Any:
        return write_token(model, cache, state, -(-context // page))

    args = (shapes, cache, state)
    present = {dim.name for leaf in jax.tree.leaves(args, is_leaf=is_tensor) for dim in leaf.dims}
    unsplit = tuple(dim for dim in _UNSPLIT if dim in present)
    return Target(f"writing with {name}", write, args, (1, 2), tokens=slots, unsplit=unsplit)


if __name__ == "__main__":
    main(lambda asked: decode_target(**json.loads(asked)))
