"""Tables and lines for a terminal of any width.

A table that is too wide is not squeezed: its rows become records, which name each column, so nothing is lost. Where
nobody sees the edge of a terminal, in a file or a pipe, everything is as wide as it is.
"""

import os
import sys
import textwrap
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.table import Table

Render = Callable[[Table | str], str]
_ENDLESS = 100_000  # columns


def terminal_width() -> int | None:
    """Returns the columns of the terminal that standard output is shown in, or that COLUMNS asks for; None: no end."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return int(columns)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    except (OSError, ValueError, AttributeError):
        return None


def squeezed(table: Table | str, width: int) -> str:
    """Returns a table as text of some width, its cells folded where it is too wide."""
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(table, markup=False, highlight=False)
    return captured.get().rstrip()


def fitted(table: Table | str, width: int | None) -> str:
    """Returns a table as text of at most some width, as records where it is too wide."""
    if isinstance(table, str) or width is None:
        return table if isinstance(table, str) else squeezed(table, _ENDLESS)
    natural = Console(width=_ENDLESS, color_system=None).measure(table).maximum
    return squeezed(table, width) if natural <= width else "\n".join(_records(table, width))


def shown(table: Table | str, otherwise: int) -> str:
    """Returns a table as text that fits the terminal; where there is none, of some width."""
    width = terminal_width()
    return squeezed(table, otherwise) if width is None else fitted(table, width)


def _records(table: Table, width: int) -> Iterator[str]:
    yield from _folded(str(table.title or ""), width)
    names = [str(column.header) for column in table.columns]
    for first, *rest in zip(*(column.cells for column in table.columns), strict=True):
        parts = [f"{name} {cell}" for name, cell in zip(names[1:], rest, strict=True) if cell]
        yield from _folded(f"{names[0]} {first}: {', '.join(parts)}".lstrip(), width)


def fitted_lines(text: str, width: int | None) -> str:
    """Returns text whose lines are folded where they are longer than some width."""
    if width is None:
        return text
    end = "\n" if text.endswith("\n") else ""
    return "\n".join(part for line in text.splitlines() for part in _folded(line, width)) + end


def _folded(line: str, width: int) -> list[str]:
    if len(line) <= width:
        return [line]
    return textwrap.wrap(line, width, subsequent_indent="    ", break_on_hyphens=False) or [""]
