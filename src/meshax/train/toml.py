"""Options as a TOML file: for people, who change a line and start another run with `--config`."""

import dataclasses
import inspect
import json
from pathlib import Path
from typing import Any

from ..models.fields import NONE, fields_by_kind, written_fields
from .options import TrainOptions

_HEAD = "# Every option of the run, as it was last started: meshax train --config reads this file.\n"


def as_toml(options: TrainOptions) -> str:
    """Returns the options with an explanation each; one that is not set stands there as a comment."""
    plain = options.as_dict()
    groups = {field.name: field.type for field in dataclasses.fields(TrainOptions)}
    tables = {name: value for name, value in plain.items() if isinstance(value, dict)}
    words = {name: _explained(groups[name]) for name in tables if name in groups}
    words["model"] = {field.name: field.about for fields in fields_by_kind().values() for field in fields}
    first = {name: value for name, value in plain.items() if name not in tables}
    parts = [_rows(first, _explained(TrainOptions))]
    parts += [f"[{name}]\n{_rows(values, words[name], name == 'model')}" for name, values in tables.items()]
    return _HEAD + "\n".join(parts)


def _explained(kind: Any) -> dict[str, str]:
    """Returns the comments beside the fields of a class of options, and of those that it extends."""
    words: dict[str, str] = {}
    bases: list[Any] = [base for base in reversed(kind.__mro__) if dataclasses.is_dataclass(base)]
    for one in bases:
        fields = written_fields(Path(inspect.getfile(one)))[one.__name__]
        words |= {name.rstrip("_"): field.about for name, field in fields.items()}
    return words


def _rows(values: dict[str, Any], about: dict[str, str], has_none: bool = False) -> str:
    lines = []
    for name, value in values.items():
        line = f"# {name} =" if value is None and not has_none else f"{name} = {_value(value)}"
        lines.append(f"{line}  # {about[name]}\n" if about.get(name) else f"{line}\n")
    return "".join(lines)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, str) or value is None:
        return json.dumps(NONE if value is None else value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
