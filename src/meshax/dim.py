"""Dims, and the algebra of named shapes.

A `Dim` is a name and a size. A tensor's shape is a tuple of dims with different names; their order says how the array
is stored and never what an operation means. Dims meet by name: two dims of one name must have one size.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from .errors import DimError, ShapeError, did_you_mean

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_made_names: set[str] = set()
_declared_names: set[str] = set()


@dataclass(frozen=True, slots=True)
class Dim:
    """A named dimension of a tensor.

    >>> Dim("batch", 32)
    batch:32
    """

    name: str
    size: int

    def __post_init__(self) -> None:
        _check_name(self.name)
        if isinstance(self.size, bool) or not hasattr(self.size, "__index__") or self.size < 1:
            raise DimError(
                f"{self.size!r} is not a size for dim {self.name!r}.",
                rule="a size is a positive integer.",
                fix=f'write for example mx.Dim("{self.name}", 32).',
            )
        object.__setattr__(self, "size", int(self.size))
        _made_names.add(self.name)

    def __repr__(self) -> str:
        return f"{self.name}:{self.size}"

    @staticmethod
    def declare(glossary: Mapping[str, str]) -> Mapping[str, str]:
        """Declares the dims of a program by name, with what each counts: layouts may name them before any is made.

        >>> GLOSSARY = Dim.declare({"length": "tokens of an example", "memory": "the tokens attended to"})
        """
        for name in glossary:
            _check_name(name)
        _declared_names.update(glossary)
        return MappingProxyType(dict(glossary))


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or not _NAME.match(name):
        raise DimError(
            f"{name!r} is not a name for a dim.",
            rule="a name is made of letters, digits and _, and does not begin with a digit.",
            fix='write for example mx.Dim("batch", 32).',
        )


Dims = tuple[Dim, ...]
DimLike = Dim | str
DimsLike = str | DimLike | Iterable[DimLike]


def known_names() -> frozenset[str]:
    """Returns the names of all dims made or declared in this process: a layout rule must name one of them."""
    return frozenset(_made_names | _declared_names)


def made_names() -> frozenset[str]:
    """Returns the names of all dims made in this process: what programs have, as far as anyone knows yet."""
    return frozenset(_made_names)


def split_words(text: str) -> list[str]:
    """Splits at spaces, commas and semicolons."""
    return [word for word in re.split(r"[\s,;]+", text) if word]


def parse_pairs(text: str, error: type[DimError] | type[Any], what: str, example: str) -> list[tuple[str, str]]:
    """Parses `"a:1 b:2"` into name and value, both still strings."""
    pairs = []
    for word in split_words(text):
        name, colon, value = word.partition(":")
        if not (name and colon and value) or ":" in value:
            raise error(
                f"{word!r} is not a part of {what}.", values=repr(text), rule="each part is name:value.", fix=example
            )
        pairs.append((name, value))
    return pairs


def dims(text: str = "", /, **sizes: int) -> Dims:
    """Makes several dims at once.

    >>> dims("batch:128 hidden:1024")
    (batch:128, hidden:1024)
    >>> dims(batch=128, hidden=1024)
    (batch:128, hidden:1024)
    """
    shape = []
    for name, size in parse_pairs(
        text, DimError, "a list of dims", 'write for example mx.dims("batch:128 hidden:1024").'
    ):
        if not size.isdecimal():
            raise DimError(
                f"{size!r} is not a size for dim {name!r}.", values=repr(text), rule="a size is a positive integer."
            )
        shape.append(Dim(name, int(size)))
    shape += [Dim(name, size) for name, size in sizes.items()]
    return unique(shape)


def unique(shape: Sequence[Dim]) -> Dims:
    """Returns the dims as a tuple, or raises if a name occurs twice."""
    names = [dim.name for dim in shape]
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise DimError(
            f"one shape has two dims of the name {' and of '.join(map(repr, twice))}.",
            values=show(shape),
            rule="the dims of a tensor have different names.",
            fix='name it once; if another dim is meant, rename that first: x.rename(length="memory_length").',
        )
    return tuple(shape)


def show(shape: Iterable[Dim], placement: Sequence[Sequence[str]] = ()) -> str:
    """Writes dims in our notation, with the mesh axes that split them: `[batch:32/rows, length:128]`."""
    shape = list(shape)
    axes = list(placement) or [()] * len(shape)
    return "[" + ", ".join(f"{d}/{'+'.join(a)}" if a else f"{d}" for d, a in zip(shape, axes, strict=True)) + "]"


def as_list(some: DimsLike) -> list[DimLike]:
    """Reads one dim, one name, names in a string, or an iterable of these."""
    if isinstance(some, str):
        return list(split_words(some))
    listed: list[Any] = [some] if isinstance(some, Dim) or not isinstance(some, Iterable) else list(some)
    wrong = [one for one in listed if not isinstance(one, Dim | str)]
    if wrong:
        raise DimError(
            f"not a dim, nor the name of one: {', '.join(map(repr, wrong))}.",
            rule="dims are named, not numbered.",
            fix='name them, or pass dims made by mx.dims("batch:128 hidden:1024").',
        )
    return listed


def find(shape: Sequence[Dim], some: DimLike) -> Dim:
    """Returns the dim of a shape that is meant by a `Dim` or by a name."""
    if not isinstance(some, str):
        listed = as_list(some)
        if len(listed) != 1:
            raise ShapeError(f"one dim is meant here, not {len(listed)}.", values=show(shape), fix="name one dim.")
        some = listed[0]
    name = some.name if isinstance(some, Dim) else some
    for dim in shape:
        if dim.name == name:
            if isinstance(some, Dim) and some.size != dim.size:
                raise ShapeError(
                    f"dim {name!r} has size {dim.size} here, not {some.size}.",
                    values=show(shape),
                    rule="dims of one name have one size.",
                    fix=f"use the dim's name, or x.dim({name!r}), where the size may vary.",
                )
            return dim
    raise ShapeError(
        f"there is no dim {name!r} here.", values=show(shape), fix=did_you_mean(str(name), [dim.name for dim in shape])
    )


def select(shape: Sequence[Dim], some: DimsLike) -> Dims:
    """Returns the dims of a shape that are meant by `some`, in that order."""
    return unique([find(shape, one) for one in as_list(some)])


def union(*shapes: Sequence[Dim]) -> Dims:
    """Returns the dims of the first shape, then each next one's new dims; one name must have one size."""
    merged: dict[str, Dim] = {}
    for dim in (dim for shape in shapes for dim in shape):
        if merged.setdefault(dim.name, dim).size != dim.size:
            raise ShapeError(
                f"dim {dim.name!r} has size {merged[dim.name].size} in one operand and {dim.size} in another.",
                values=" and ".join(show(shape) for shape in shapes),
                rule="operands meet by name, and dims of one name have one size.",
                fix="rename the dim of one operand if another dim is meant, or slice it to the same size.",
            )
    return tuple(merged.values())


def without(shape: Sequence[Dim], removed: Sequence[Dim]) -> Dims:
    """Returns the dims of a shape that are not among the removed ones."""
    return tuple(dim for dim in shape if dim not in removed)


def sizes(shape: Iterable[Dim]) -> tuple[int, ...]:
    """Returns the sizes: the array's shape."""
    return tuple(dim.size for dim in shape)
