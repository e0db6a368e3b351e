"""`meshax plan`."""

import json
from dataclasses import dataclass
from typing import Annotated

from tyro.conf import arg

from .options import OnLaidOut, progress_console, usage


@dataclass(kw_only=True)
class MakePlan(OnLaidOut):
    """Compiles a program for TPUs that are not there: does it fit, what does the compiler make of it, how fast is it.

    Needs the TPU compiler, but no TPU: pip install 'meshax[tpu]'; for virtual processors of this machine, only what is
    installed: --topology cpu. The compiler runs in a process of its own. Example:

    meshax plan examples/transformer.py:lm_4_90b --topology "tpu v2:16x16" --mesh "data:32 model:16" --layout data+model
    """

    topology: Annotated[
        str,
        arg(
            metavar="NAME",
            help='The machine, as in "tpu v2:16x16" (512 cores), or cpu.',
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
        from ..plan.compile.topologies import CPU, check_compiler, check_size, check_topology, plain_topology
        from ..plan.compile.worker import plan_apart
        from ..plan.cost.hardware import find
        from ..plan.printing.terminal import terminal_width

        self.check_layout()
        self.check_html()
        topology = plain_topology(self.topology)
        self.check_program()
        with usage():
            find(self.hardware or None)
            if topology != CPU:
                check_topology(topology)
            if self.mesh:
                check_size(topology, Mesh(self.mesh, abstract=True))
        if topology != CPU:
            check_compiler()
        module = {} if self.target else {"module": "meshax.train.preset_steps"}
        target = self.target or json.dumps(self.preset_step())
        if self.decode:
            module, target = {"module": "meshax.decode.planning"}, json.dumps(self.decode_step())
        request = {"target": target, "topology": topology, "mesh": self.mesh, "layout": self.layout}
        request |= {"params": self.param_layout, "optimizer": self.optimizer_layout, "html": self.html}
        request["hardware"] = self.hardware
        columns = (SpinnerColumn(finished_text="-"), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=progress_console()) as progress:

            def end() -> None:
                for task in progress.tasks:
                    progress.update(task.id, total=1, completed=1)

            def begin(stage: str) -> None:
                end()
                progress.add_task(stage, total=None)

            begin("starting")
            answer = plan_apart({**request, "overlap": self.overlap, "width": terminal_width()}, begin, **module)
            end()
        self.report(answer["plan"], answer["text"])
