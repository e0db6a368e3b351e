"""`meshax plan`."""

import json
from dataclasses import dataclass
from typing import Annotated, Any

from tyro.conf import arg

from .options import OnLaidOut, progress_console, usage


@dataclass(kw_only=True)
class MakePlan(OnLaidOut):
    """Compiles a program for TPUs or GPUs that are not there: does it fit, what becomes of it, how fast is it.

    Needs the compiler, but no TPU or GPU: pip install 'meshax[tpu]', or 'meshax[cuda]'; for virtual processors of this
    machine, only what is installed: --topology cpu. The compiler runs in a process of its own. Example:

    meshax plan examples/transformer.py:lm_4_90b --topology "tpu v2:16x16" --mesh "data:32 model:16" --layout data+model
    """

    topology: Annotated[
        str,
        arg(
            metavar="NAME",
            help='The machine, as in "tpu v2:16x16" (512 cores), "gpu h200:8", or cpu.',
            help_behavior_hint="(required)",
        ),
    ]
    hardware: Annotated[
        str,
        arg(
            metavar="NAME",
            help="What to predict the time for, as in h100x8@400Gbit/s: hosts of 8, which send so much to others.",
            help_behavior_hint="(default: the topology's)",
        ),
    ] = ""

    overlap: Annotated[
        bool, arg(help="Ask the compiler to hide collectives behind computation, and say how many it does.")
    ] = False

    def run(self) -> None:
        """Compiles in another process and prints what it says."""
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        from ..mesh import Mesh
        from ..plan.compile.topologies import (
            CPU,
            check_compiler,
            check_size,
            check_topology,
            machine_of,
            plain_topology,
        )
        from ..plan.compile.worker import plan_apart
        from ..plan.cost.hardware import find
        from ..plan.printing.terminal import terminal_width

        self.check_layout()
        self.check_html()
        topology = plain_topology(self.topology)
        if not self.keeps_what_fits():
            self.check_program()
        with usage():
            if topology != CPU:
                check_topology(topology)
            machine = find(self.hardware or (None if topology == CPU else machine_of(topology)))
            if self.mesh:
                check_size(topology, Mesh(self.mesh, abstract=True))
        check_compiler(topology)
        columns = (SpinnerColumn(finished_text="-"), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=progress_console()) as progress:

            def end() -> None:
                for task in progress.tasks:
                    progress.update(task.id, total=1, completed=1)

            def begin(stage: str) -> None:
                end()
                progress.add_task(stage, total=None)

            if self.keeps_what_fits():
                begin("choosing what to keep")
            kept, line = self.settle_keep(machine)
            begin("starting")
            module, target = self._worker()
            request: dict[str, Any] = {"target": target, "topology": topology, "mesh": self.mesh, "layout": self.layout}
            request |= {"params": self.param_layout, "optimizer": self.optimizer_layout, "rings": self.rings}
            request |= {"hardware": self.hardware, "overlap": self.overlap}
            request |= {"html": self.html, "width": terminal_width()}
            answer = plan_apart(request, begin, **module)
            end()
        self.report(answer["plan"] | kept, answer["text"].rstrip("\n") + line)

    def _worker(self) -> tuple[dict[str, str], str]:
        """Returns the module that the other process runs, if not the usual one, and which program it makes."""
        if self.target:
            return {}, self.target
        if self.decode:
            return {"module": "meshax.decode.planning"}, json.dumps(self.decode_step())
        return {"module": "meshax.train.preset_steps"}, json.dumps(self.preset_step())
