"""Docstrings as the site shows them: an extension of griffe, which reads them; named in mkdocs.yml."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*\n?(?:.+\n?)*", re.MULTILINE)  # to the next empty line


class Examples(griffe.Extension):
    """Makes examples blocks of code: Markdown takes `>>>` for three quotations in each other."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub(lambda x: f"```pycon\n{x[0].rstrip()}\n```\n", obj.docstring.value)
