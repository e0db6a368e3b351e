"""The fields of a model's configuration as options: which there are, and a configuration with some of them changed.

Which there are is read from the source: a list of options with their explanations, the comments beside the fields,
takes no time and no JAX. Whoever adds a field, or a kind of model, adds its option by that. What a value may be, the
configuration itself knows.
"""

import ast
import dataclasses
import re
import types
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from ..errors import ArgumentError, did_you_mean

if TYPE_CHECKING:
    from .contract import ModelConfig

    Config = TypeVar("Config", bound=ModelConfig)

NONE = "none"  # the word for no value at all
_WORDS = {"true": True, "false": False}
_RETIRED = {"layers_at_once": 1}  # fields that are gone, and their values in runs of before that say nothing


@dataclass(frozen=True)
class Field:
    """A field as it is written: its name, its type, its default, and the comment beside it."""

    name: str
    kind: str
    default: str
    about: str


@cache
def fields_by_kind() -> dict[str, tuple[Field, ...]]:
    """Returns the fields of the configuration of every kind of model: of each folder beside this file."""
    folders = sorted(path.parent for path in Path(__file__).parent.glob("*/__init__.py"))
    return {folder.name: tuple(_written_fields(folder)) for folder in folders}


def _written_fields(folder: Path) -> list[Field]:
    """Returns the fields of the class in a folder that has what only the configuration of a model has.

    Those of a class that it is derived from come first: kinds share them, in a file beside their folders.
    """
    for path in sorted(folder.glob("*.py")):
        for node in _classes(path):
            names = written_fields(path)[node.name]
            if "batch_kind" in names:
                bases = [_shared().get(ast.unparse(base), {}) for base in node.bases]
                every = {name: one for own in (*bases, names) for name, one in own.items()}
                return [one for one in every.values() if "ClassVar" not in one.kind]
    return []


@cache
def _shared() -> dict[str, dict[str, Field]]:
    """Returns the fields of the classes in files beside this one, by name of the class and of the field."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return {name: fields for path in files for name, fields in written_fields(path).items()}


def written_fields(path: Path) -> dict[str, dict[str, Field]]:
    """Returns the fields of the classes in a file, by name of the class and of the field."""
    lines = path.read_text(encoding="utf-8").splitlines()
    written = {node.name: [one for one in node.body if isinstance(one, ast.AnnAssign)] for node in _classes(path)}
    return {name: {f.name: f for f in (_field(one, lines) for one in nodes)} for name, nodes in written.items()}


def _classes(path: Path) -> list[ast.ClassDef]:
    return [node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.ClassDef)]


def _field(node: ast.AnnAssign, lines: list[str]) -> Field:
    default = "" if node.value is None else ast.unparse(node.value)
    return Field(ast.unparse(node.target), ast.unparse(node.annotation), default, _comment(node, lines))


def _comment(node: ast.AnnAssign, lines: list[str]) -> str:
    """Returns the comment beside a field, else that above it."""
    beside = lines[(node.end_lineno or node.lineno) - 1].encode()[node.end_col_offset or 0 :].decode()
    above = list(takewhile(lambda line: line.startswith("#"), map(str.strip, lines[node.lineno - 2 :: -1])))
    return " ".join(line.partition("#")[2].strip() for line in ([beside] if "#" in beside else above[::-1]))


def with_fields(config: "Config", values: Mapping[str, Any]) -> "Config":
    """Returns a configuration with other values of some fields, given as they are or as text.

    >>> from meshax.models.decoder import DecoderConfig
    >>> with_fields(DecoderConfig(), {"d_model": "512", "tied": "true", "kv_heads": 4, "window": "none"}).d_model
    512
    """
    hints = get_type_hints(type(config))
    known = [f.name for f in dataclasses.fields(config)]
    changes = {}
    for name, value in values.items():
        if _RETIRED.get(name) == value:
            continue
        if name not in known:
            raise ArgumentError(f"the model has no field {name!r}.", fix=did_you_mean(name, known))
        try:
            changes[name] = _as(value, hints[name])
        except ValueError as error:
            raise ArgumentError(
                f"the field {name!r} of the model cannot be {value!r}.",
                rule=f"it is {_described(hints[name])}.",
                fix="correct it, or leave it out.",
            ) from error
    return dataclasses.replace(config, **changes)


def _as(value: Any, hint: Any) -> Any:
    """Returns a value as one of a type, or raises ValueError."""
    choices = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if types.NoneType in choices and value in (None, NONE):
        return None
    for choice in choices:
        try:
            return _as_one(value, choice)
        except (ValueError, TypeError):
            continue
    raise ValueError(value)


def _as_one(value: Any, kind: Any) -> Any:
    """Returns a value as one of a type that is no choice of several."""
    if get_origin(kind) is tuple:
        parts = re.split(r"[\s,]+", value.strip("()[] ")) if isinstance(value, str) else list(value)
        inner = get_args(kind)[:1] * len(parts) if get_args(kind)[-1] is Ellipsis else get_args(kind)
        return tuple(_as(part, one) for part, one in zip(parts, inner, strict=True))
    if kind is bool and isinstance(value, str):
        value = _WORDS.get(value.lower(), value)
    elif kind in (int, float) and isinstance(value, str | int) and not isinstance(value, bool):
        value = kind(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(value)
    return value


def _described(hint: Any) -> str:
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a word", types.NoneType: NONE}
    choices = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    return " or ".join(words.get(one, str(one)) for one in choices)
