"""`--model.*`: every field of a model's configuration, for every command that has a model.

The options are made from the fields as they are written (`models/fields.py`). Values stay text here: what a field may
be, its configuration says.
"""

from dataclasses import asdict, field, make_dataclass
from typing import Annotated, Any

from tyro.conf import arg

from ..models.fields import Field, fields_by_kind

_ABOUT = """The model's configuration, field by field.

What is not given is as in the preset, or in the file that --config names. To start from nothing, name a kind of model
as the preset."""


def given_fields(options: Any) -> dict[str, str]:
    """Returns the fields that a command line gives."""
    return {name: value for name, value in asdict(options).items() if value is not None}


def _options() -> list[Any]:
    """Returns a field for every field of every kind of model: its text, or None."""
    kinds = fields_by_kind()
    owners: dict[str, dict[str, Field]] = {}
    for kind, fields in kinds.items():
        for one in fields:
            owners.setdefault(one.name, {})[kind] = one
    return [_option(name, by_kind, by_kind.keys() == kinds.keys()) for name, by_kind in owners.items()]


def _option(name: str, by_kind: dict[str, Field], is_of_all: bool) -> Any:
    first = next(iter(by_kind.values()))
    about = first.about or name.replace("_", " ")
    about += "" if is_of_all else f"; of {', '.join(by_kind)}"
    shown = arg(metavar=_metavar(first.kind), help=about, help_behavior_hint="")
    return name, Annotated[str | None, shown], field(default=None)


def _metavar(kind: str) -> str:
    """Returns what stands for a value of a type: `INT|none`."""
    words = {"None": "none", "bool": "true|false"}
    return "|".join(words.get(part, part.upper()) for part in kind.split(" | "))


ModelOptions = make_dataclass("ModelOptions", _options(), frozen=True, namespace={"__doc__": _ABOUT})
ModelGroup: Any = Annotated[ModelOptions, arg(name="model")]
