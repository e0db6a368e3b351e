"""A report as one HTML page, which needs nothing but a browser.

The page lies in `page/`: `page.html` with its slots, `page.css`, and scripts that share one scope, in reading order.
`render` puts the pieces and the data together. The data goes in as JSON, and the scripts show it as text only. The
page's own security policy names its style and its script by their hashes and forbids all else, so an open report
loads nothing, and a tensor's name or a line of source cannot run. A notebook shows the `essentials`, without scripts.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .report import Report

_ROWS = 40  # of a table in a notebook
_PAGE = resources.files("meshax.plan.explain") / "page"
_SCRIPTS = (
    "elements.js",
    "state.js",
    "slices.js",
    "mesh.js",
    "tensor.js",
    "collectives.js",
    "costs.js",
    "source.js",
    "warnings.js",
    "main.js",
)


def render(data: Mapping[str, Any]) -> str:
    """Returns a report as the text of one HTML document.

    Args:
        data: what `Report.as_dict` returns; all of it can be written as JSON.
    """
    style = _read("page.css")
    script = "\n".join(_read(name) for name in _SCRIPTS)
    slots = {
        "title": html.escape(str(data["program"])),
        "policy": f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}",
        "style": style,
        "script": script,
        "data": _inert_json(data),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda slot: slots[slot[1]], _read("page.html"))


def essentials(report: "Report") -> str:
    """Returns what a report says in a terminal as a piece of HTML."""
    from .text import COLUMNS, NUMBERS, rows, summary  # rich is slow to import

    def line(tag: str, cells: Iterable[str]) -> str:
        sides = ("right" if column in NUMBERS else "left" for column in COLUMNS)
        pairs = zip(cells, sides, strict=True)
        shown = (f'<{tag} style="text-align: {side}">{html.escape(cell)}</{tag}>' for cell, side in pairs)
        return f"<tr>{''.join(shown)}</tr>"

    every = list(rows(report))
    table = "".join([line("th", COLUMNS), *(line("td", row) for row in every[:_ROWS])])
    parts = [f"<table>{table}</table>" if every else "<p>no communication</p>"]
    parts += [f"<p>and {len(every) - _ROWS} more</p>"] if len(every) > _ROWS else []
    items = "".join(f"<li>{html.escape(words)}</li>" for words in summary(report))
    whole = "<p>the whole page: <code>report.to_html(path)</code></p>"
    return f"<div><p><b>{html.escape(report.program)}</b></p>{''.join(parts)}<ul>{items}</ul>{whole}</div>"


def _read(name: str) -> str:
    return (_PAGE / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Returns how a security policy names an inline style or script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _inert_json(data: Mapping[str, Any]) -> str:
    """Returns JSON without the characters that HTML looks for: no text in it can end the element around it."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
