"""`meshax layout`."""

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import arg

from ..train.options import AUTO
from .model_options import given_fields
from .options import HardwareOption, OnProgram, UsageError, progress_console, usage


@dataclass(kw_only=True)
class FindLayout(OnProgram):
    """Finds layouts for a program, the fastest first, with the reasons.

    Give the mesh, or the number of processors to have its shape chosen too. Example:

    meshax layout examples/transformer.py:lm_1_28b --processors 64 --hardware h200 --memory 80GB --pin batch:data

    meshax layout --decode --preset lm-4.90b --slots 1 --processors 512 --hardware tpu-v2
    """

    processors: Annotated[
        int, arg(metavar="N", help="How many processors, in place of --mesh.", help_behavior_hint="")
    ] = 0
    hardware: HardwareOption = ""
    memory: Annotated[
        str,
        arg(
            metavar="SIZE",
            help="What a processor may use, as in 16GB, 8GiB or 80e9.",
            help_behavior_hint="(default: what the hardware has, if one is named)",
        ),
    ] = ""
    pin: Annotated[
        tuple[str, ...],
        arg(metavar="DIM:AXES", help="Rules that the layout has to have, as in batch:data.", help_behavior_hint=""),
    ] = ()
    exclude: Annotated[tuple[str, ...], arg(metavar="DIM", help="Dims that stay unsplit.", help_behavior_hint="")] = ()

    def run(self) -> None:
        """Searches and prints the best."""
        from ..layout import Layout
        from ..mesh import Mesh
        from ..plan.compile.targets import blamed
        from ..plan.cost.hardware import find, parse_bytes
        from ..plan.explain.text import speed
        from ..plan.printing.terminal import terminal_width
        from ..plan.search.layout_search import search
        from ..plan.search.text import as_dict, as_text

        if self.mesh and self.processors:
            raise UsageError("--mesh or --processors: one of the two.", fix="leave out the other.")
        if self.processors < 0:
            raise UsageError(f"there are no {self.processors} processors.", fix="give a positive number.")
        with usage():
            machine = find(self.hardware or None)
            machine = machine.replaying() if self.decode else machine
            memory = parse_bytes(self.memory) if self.memory else machine.memory if self.hardware else None
            pins = Layout(" ".join(self.pin)).rules
        if given_fields(self.model).get("keep") == AUTO:
            raise UsageError(
                "--model.keep auto is of one layout, and layouts are compared here with one thing kept.",
                fix="name what is kept, as in --model.keep products; explain and plan choose it for a layout.",
            )
        target = self.load(machine)
        if not (self.mesh or self.processors or target.program):
            raise UsageError(
                f"{target.name} has no mesh of its own.", fix='give --mesh "data:2 model:4", or --processors 8.'
            )
        with usage():
            meshes = None if self.processors else [Mesh(target.axes(self.mesh), abstract=True)]
        with (
            progress_console().status("searching") as status,
            blamed(target.name, target.path, "cannot be traced"),
        ):
            candidates = search(
                target.fn,
                target.args,
                meshes,
                processors=self.processors,
                hardware=machine,
                memory=memory,
                pins=dict(pins),
                exclude=(*self.exclude, *target.unsplit),
                donate=target.donate,
                progress=status.update,
            )
            status.update("comparing the best with and without each of their rules")
            data, text = as_dict(candidates, machine), as_text(candidates, machine, terminal_width())
        if self.decode:
            data["tokens_per_second"] = target.tokens / candidates[0].seconds
            text += f"the first: {speed(target.tokens, candidates[0].seconds)}\n"
        self.report(data, text)
