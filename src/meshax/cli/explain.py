"""`meshax explain`."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

from tyro.conf import arg

from .options import HardwareOption, OnLaidOut, usage


@dataclass(kw_only=True)
class Explain(OnLaidOut):
    """Says what a program does under a layout: every collective, its bytes, the line it comes from.

    Nothing runs, and there need be no devices: the mesh can be any size. Example:

    meshax explain examples/transformer.py:tiny --mesh "data:2 model:4" --layout data+model --hardware h200

    meshax explain --decode --preset lm-4.90b --mesh model:8 --layout model --hardware h200
    """

    hardware: HardwareOption = ""
    overlap: Annotated[
        bool, arg(help="Predict with collectives hidden behind computation, where --overlap of train can hide them.")
    ] = False

    def run(self) -> None:
        """Traces the program and prints the report."""
        from ..plan.cost.hardware import find
        from ..plan.explain.text import as_text, predicted, speed
        from ..plan.printing.terminal import fitted, terminal_width
        from ..plan.printing.units import show_bytes, show_seconds

        with usage():
            machine = find(self.hardware or None)
        kept, line = self.settle_keep(machine)
        report = self.explained(machine)
        report.overlap = self.overlap
        if self.html:
            report.to_html(self.html, machine)
        data = kept | {"seconds": report.seconds(machine), "utilization": report.utilization(machine)}
        text = as_text(report, partial(fitted, width=terminal_width()), machine) + predicted(report, machine) + line
        if self.decode:
            slots, weights, cache = self.slots or 1, report.memory["parameters"], report.memory["inputs"]
            least = (weights + cache) / machine.memory_bandwidth
            data |= {"tokens_per_second": slots / data["seconds"], "weight_bytes": weights, "cache_bytes": cache}
            text += (
                f"\n{speed(slots, data['seconds'])}\nweights {show_bytes(weights)}, cache {show_bytes(cache)} on each "
                f"processor: to read them takes {show_seconds(least)} at the peak of its bandwidth"
            )
        self.report(report.as_dict(machine) | data, text)
