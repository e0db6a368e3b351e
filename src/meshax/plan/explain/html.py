"""A report as one HTML page, which needs nothing but a browser.

The page lies in `page/`: `page.html` with its slots, `page.css`, and scripts that share one scope, in reading order.
`render` puts the pieces and the data together. The data goes in as JSON, and the scripts show it as text only. The
page's own security policy names its style and its script by their hashes and forbids all else, so an open report
loads nothing, and a tensor's name or a line of source cannot run.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any

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


def _read(name: str) -> str:
    return (_PAGE / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Returns how a security policy names an inline style or script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _inert_json(data: Mapping[str, Any]) -> str:
    """Returns JSON without the characters that HTML looks for: no text in it can end the element around it."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
