"""`meshax explain`."""

from dataclasses import dataclass
from functools import partial

from .options import HardwareOption, OnLaidOut, usage


@dataclass(kw_only=True)
class Explain(OnLaidOut):
    """Says what a program does under a layout: every collective, its bytes, the line it comes from.

    Nothing runs, and there need be no devices: the mesh can be any size. Example:

    meshax explain examples/transformer.py:tiny --mesh "data:2 model:4" --layout data+model --hardware h200
    """

    hardware: HardwareOption = ""

    def run(self) -> None:
        """Traces the program and prints the report."""
        from ..plan.cost.hardware import find
        from ..plan.explain.text import as_text, predicted
        from ..plan.printing.terminal import fitted, terminal_width

        with usage():
            machine = find(self.hardware or None)
        report = self.explained()
        if self.html:
            report.to_html(self.html, machine)
        data = {"seconds": report.seconds(machine), "utilization": report.utilization(machine)}
        text = as_text(report, partial(fitted, width=terminal_width()))
        self.report(report.as_dict(machine) | data, text + predicted(report, machine))
