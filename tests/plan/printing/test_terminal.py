"""Tables and lines in terminals of any width: they fit, and nothing is lost."""

import pytest
from rich.table import Table

from meshax.plan.printing.terminal import fitted, fitted_lines, squeezed, terminal_width


def table():
    made = Table(title="a table of things", title_justify="left")
    for column in ("kind", "a long heading", "line"):
        made.add_column(column)
    made.add_row("all-reduce", "float32[1024,1024]", "a_long_name_of_a_file.py:123")
    made.add_row("permute", "", "step.py:7")
    return made


def test_a_table_that_fits():
    shown = fitted(table(), 80)
    assert shown == squeezed(table(), 80) == fitted(table(), None)
    assert "│ all-reduce │ float32[1024,1024] │ a_long_name_of_a_file.py:123 │" in shown


def test_a_table_that_does_not_fit_becomes_records():
    assert fitted(table(), 60).splitlines() == [
        "a table of things",
        "kind all-reduce: a long heading float32[1024,1024], line",
        "    a_long_name_of_a_file.py:123",
        "kind permute: line step.py:7",
    ]


@pytest.mark.parametrize("width", range(10, 80, 7))
def test_nothing_is_lost(width):
    shown = fitted(table(), width)
    assert max(map(len, shown.splitlines())) <= width
    letters = "".join(shown.split())
    assert all(cell in letters for cell in ("all-reduce", "float32[1024,1024]", "a_long_name_of_a_file.py:123"))


def test_lines():
    assert fitted_lines("one two three\nfour", 9) == "one two\n    three\nfour"
    assert fitted_lines("one two three\n\nfour", None) == "one two three\n\nfour"
    assert fitted_lines("one two three\n\nfour", 9) == "one two\n    three\n\nfour"


def test_the_width_of_the_terminal(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert terminal_width() is None  # what tests print is kept in a file
    monkeypatch.setenv("COLUMNS", "60")
    assert terminal_width() == 60
    for wrong in ("0", "wide", ""):
        monkeypatch.setenv("COLUMNS", wrong)
        assert terminal_width() is None
