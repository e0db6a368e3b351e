"""The collectives of a program as a list to keep: what changed since it was written down, line by line.

A record names its line by the file and the text of the code, not by its number: what is inserted above does not matter.
"""

import json
import linecache
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp

from ...errors import ArgumentError
from ..reading.communication import Collective
from ..reading.walk import Source
from .report import Report

Record = dict[str, Any]
_FIELDS = ("kind", "axes", "shape", "dtype", "count", "phase", "op", "line")
_Key = tuple[Any, ...]


def records(report: Report) -> list[Record]:
    """Returns the collectives of a program, those alike together, in the order in which they first run."""
    by_key: dict[_Key, Record] = {}
    for c in report.collectives:
        record = _record(c)
        by_key.setdefault(_key(record), {**record, "count": 0})["count"] += c.count
    return list(by_key.values())


def as_json(rows: Sequence[Record]) -> str:
    """Returns records as JSON, one on each line, so that versions of a file can be compared."""
    return "[" + ",".join("\n  " + json.dumps({name: r[name] for name in _FIELDS}) for r in rows) + "\n]\n"


def from_json(text: str) -> list[Record]:
    """Reads what `as_json` wrote; anything else is a ValueError."""
    return checked(json.loads(text))


def checked(rows: Any) -> list[Record]:
    """Returns a list of records, or raises."""
    wrong = [r for r in rows if not isinstance(r, dict) or set(r) != set(_FIELDS)] if isinstance(rows, list) else [rows]
    if wrong:
        raise ArgumentError(
            "this is not a list of collectives.",
            values=repr(wrong[0])[:80],
            rule=f"each is a dict of {', '.join(_FIELDS)}.",
            fix="write it to a file with MESHAX_UPDATE_GOLDEN=1, and take it from there.",
        )
    return rows


def difference(before: Sequence[Record], now: Sequence[Record]) -> str:
    """Returns what is new (+), gone (-) and changed (~), by the lines of the program; "" if nothing is."""
    said: dict[str, list[str]] = defaultdict(list)
    for line, text in _changes({_key(r): r for r in before}, {_key(r): r for r in now}):
        said[line].append(text)
    return "\n".join(f"  {line or 'no line'}\n" + "\n".join(f"    {text}" for text in said[line]) for line in said)


def _changes(before: dict[_Key, Record], now: dict[_Key, Record]) -> Iterator[tuple[str, str]]:
    gone = {key: r for key, r in before.items() if key not in now}
    for key, r in now.items():
        if key in before:
            if before[key]["count"] != r["count"]:
                yield r["line"], f"~ {_show(r)}, before {_amount(before[key])}"
            continue
        resized = [k for k, old in gone.items() if _key_but_size(old) == _key_but_size(r)]
        if not resized:
            yield r["line"], f"+ {_show(r)}"
            continue
        old = gone.pop(min(resized, key=lambda k: gone[k]["dtype"] != r["dtype"]))
        yield r["line"], f"~ {_show(r)}, before {_operand(old)}, {_amount(old)}"
    for r in gone.values():
        yield r["line"], f"- {_show(r)}"


def _record(c: Collective) -> Record:
    values = (c.kind, list(c.axes), list(c.shape), c.dtype, c.count, c.phase, c.op, _code(c.source))
    return dict(zip(_FIELDS, values, strict=True))


def _code(source: Source) -> str:
    text = linecache.getline(source.file, source.number).strip() if source.file else ""
    return ": ".join(part for part in (source.name, text) if part)


def _key(r: Record) -> _Key:
    return (*_key_but_size(r), tuple(r["shape"]), r["dtype"])


def _key_but_size(r: Record) -> _Key:
    return r["kind"], tuple(r["axes"]), r["phase"], r["op"], r["line"]


def _show(r: Record) -> str:
    return f"{r['kind']} over {'+'.join(r['axes'])} of {_operand(r)}, {r['phase']}, {r['op']}: {_amount(r)}"


def _operand(r: Record) -> str:
    return f"{r['dtype']}[{','.join(map(str, r['shape']))}]"


def _amount(r: Record) -> str:
    return f"{r['count']:,} x {math.prod(r['shape']) * jnp.dtype(r['dtype']).itemsize:,} bytes"
