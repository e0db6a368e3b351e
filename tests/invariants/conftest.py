"""Says at the end of a run how many cases it checked, and whether that was all of them."""

from layouts import WHOLE


def pytest_terminal_summary(terminalreporter):
    passed = terminalreporter.stats.get("passed", [])
    checked = sum(value for report in passed for name, value in report.user_properties if name == "checked")
    if checked:
        extent = "every legal layout" if WHOLE else "a seeded sample of layouts; make invariants checks them all"
        terminalreporter.write_line(f"layout invariance: {checked:,} cases checked, forward and gradient ({extent})")
