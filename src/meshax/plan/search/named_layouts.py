"""Layouts by name: the ones that everybody means, for any mesh.

A name stands for rules over the usual dims (`batch`, `length`, `d_model`, `heads`, `d_ff`, `vocab`), as far as the
program has them. `data` and `model` split over all axes of the mesh; `data+model` and `sequence` need the two axes
`data` and `model`. Heads that share keys in groups have two dims, `kv_heads` and `heads`: the one that divides better
is split.
"""

from collections.abc import Collection, Mapping
from typing import Any

import jax

from ...dim import made_names
from ...errors import LayoutError, did_you_mean
from ...layout import Layout, block_size
from ...mesh import Mesh
from ...tensors import is_tensor

NAMES = {
    "none": "nothing is split: every processor does everything",
    "data": "batch over all axes",
    "model": "heads, d_ff and vocab over all axes",
    "data+model": "batch over data; heads, d_ff and vocab over model",
    "fsdp": "batch over all axes; parameters and optimizer state stored by slices of d_model",
    "sequence": "as data+model, and length over model: the stream between the layers is split too",
}
_MODEL_DIMS = ("heads", "d_ff", "vocab")


def find_layout(
    text: str,
    mesh: Mesh,
    params: str = "",
    optimizer: str = "",
    known: Collection[str] | None = None,
    sizes: Mapping[str, int] | None = None,
    rings: str = "",
) -> Layout:
    """Returns the layout that is meant by a name or by rules.

    Args:
        text: one of `NAMES`, or rules such as `"batch:data heads:model"`.
        mesh: the processors.
        params: rules for stored parameters; they replace those that the name stands for.
        optimizer: the same for the optimizer's state.
        known: the names of the program's dims; by default of all that were made.
        sizes: the sizes of the program's dims, as far as they are known; `sizes_of` its arguments.
        rings: the axes around which linear maps send blocks, and stored parameters gradients.
    """
    word = text.strip()
    if word not in NAMES:
        if word and ":" not in word:
            raise LayoutError(
                f"there is no layout named {word!r}.",
                rule='a layout is a name, or rules such as "batch:data heads:model".',
                fix=did_you_mean(word, NAMES),
            )
        return Layout(word, params, optimizer, rings)
    rules, stored = _rules(word, mesh)
    rules = _for_groups(rules, mesh, sizes or {})
    exist = made_names() if known is None else known
    kept = {dim: axes for dim, axes in rules.items() if dim in exist}
    missing = [dim for dim in stored if dim not in exist]
    if (rules and not kept) or (missing and not (params or optimizer)):
        raise LayoutError(
            f"the layout {word!r} splits no dim of this program."
            if not kept
            else f"the layout {word!r} stores by slices of {missing[0]!r}, which this program does not have.",
            values=f"it is: {NAMES[word]}",
            rule="a name stands for rules over dims of these names.",
            fix='write rules for the dims that there are, such as "rows:data".',
        )
    stored = {dim: axes for dim, axes in stored.items() if dim in exist}
    return Layout(kept, params or stored, optimizer or stored, rings)


def _rules(name: str, mesh: Mesh) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the rules of a name, and those for what is stored."""
    every = "+".join(mesh.axes)
    if name in ("data+model", "sequence"):
        missing = [axis for axis in ("data", "model") if axis not in mesh.axes]
        if missing:
            raise LayoutError(
                f"the layout {name!r} needs the mesh axes data and model.",
                values=f"{mesh} has no {' and no '.join(missing)}",
                fix='name the axes so, as in "data:2 model:4"; or choose data, model or fsdp, or write rules.',
            )
    if name == "none":
        return {}, {}
    if name == "data":
        return {"batch": every}, {}
    if name == "model":
        return dict.fromkeys(_MODEL_DIMS, every), {}
    if name == "fsdp":
        return {"batch": every}, {"d_model": every}
    rules = {"batch": "data"} | dict.fromkeys(_MODEL_DIMS, "model")
    return (rules | {"length": "model"} if name == "sequence" else rules), {}


def sizes_of(args: Any) -> dict[str, int]:
    """Returns the sizes of the dims of a program's arguments, by name."""
    tensors = [leaf for leaf in jax.tree.leaves(args, is_leaf=is_tensor) if is_tensor(leaf)]
    return {dim.name: dim.size for x in tensors for dim in x.dims}


def _for_groups(rules: dict[str, str], mesh: Mesh, sizes: Mapping[str, int]) -> dict[str, str]:
    """Returns rules that split groups of heads instead of the heads of a group, where that leaves less padding."""
    if "heads" not in rules or not {"heads", "kv_heads"} <= set(sizes):
        return rules
    parts = mesh.count(rules["heads"].split("+"))
    padded = {name: block_size(sizes[name], parts) * parts / sizes[name] for name in ("kv_heads", "heads")}
    if padded["kv_heads"] > padded["heads"]:
        return rules
    return {"kv_heads" if dim == "heads" else dim: axes for dim, axes in rules.items()}
