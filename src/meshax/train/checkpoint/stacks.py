"""Layers that were saved as one stack and are asked for apart, or the other way.

A stack is one array of the name `a.b`, with the dim of the layers first; apart, there is an array `a[i].b` for each.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...dim import Dims
from ...tensors import is_tensor
from .manifest import Entry

_INDEX = re.compile(r"\[(\d+)\]")


@dataclass(frozen=True)
class Source:
    """Where the values of an array are: in one array, in a part of one, or in those that are to be stacked."""

    names: tuple[str, ...]
    part: int | None = None
    is_stack: bool = False


def sources_of(saved: Mapping[str, Entry], leaves: Mapping[str, Any]) -> tuple[dict[str, Entry], dict[str, Source]]:
    """Finds each array that is asked for, stacked or apart. Only whole stacks are: none has a layer more.

    Returns:
        What is saved, by the names that are asked for (and by its own, if nobody asks), and where that is.
    """
    sources = {name: Source((name,)) for name in leaves if name in saved}
    entries = {name: saved[name] for name in sources}
    missing = {name: leaf for name, leaf in leaves.items() if name not in saved and is_tensor(leaf)}
    for stack, names in _stacks(missing).items():
        if stack in saved and all(_is_part(missing[name].dims, len(names), saved[stack]) for name in names):
            for part, name in enumerate(names):
                entries[name] = replace(saved[stack], dims=_named(missing[name].dims), shape=saved[stack].shape[1:])
                sources[name] = Source((stack,), part)
    apart = _stacks(saved)
    for name, leaf in missing.items():
        parts, dims = apart.get(name, []), _named(leaf.dims)
        if parts and dims and len(parts) == dims[0][1] and all(saved[part].dims == dims[1:] for part in parts):
            first = saved[parts[0]]
            entries[name] = replace(first, dims=dims, shape=(len(parts), *first.shape))
            sources[name] = Source(tuple(parts), is_stack=True)
    used = {name for source in sources.values() for name in source.names}
    return entries | {name: entry for name, entry in saved.items() if name not in used}, sources


def _stacks(names: Iterable[str]) -> dict[str, list[str]]:
    """Returns the names of the parts of each stack that the names would make, numbered from 0 on without a gap."""
    stacks: dict[str, dict[int, str]] = {}
    for name in names:
        for index in _INDEX.finditer(name):
            stacks.setdefault(name[: index.start()] + name[index.end() :], {})[int(index[1])] = name
    return {
        stack: [numbered[i] for i in range(len(numbered))]
        for stack, numbered in stacks.items()
        if sorted(numbered) == list(range(len(numbered)))
    }


def _is_part(dims: Dims, count: int, stack: Entry) -> bool:
    """Whether a stack is of so many arrays of these dims."""
    return bool(stack.dims) and stack.shape[0] == count and (stack.dims or ())[1:] == _named(dims)


def _named(dims: Dims) -> tuple[tuple[str, int], ...]:
    return tuple((dim.name, dim.size) for dim in dims)
