"""What commands share: options, and how they read them and print."""

import contextlib
import json
import math
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, cast

from tyro.conf import Positional, arg

from ..errors import MeshaxError
from ..train.options import AUTO
from .model_options import ModelGroup, ModelOptions, given_fields

if TYPE_CHECKING:
    from rich.console import Console

    from ..plan.compile.targets import Target
    from ..plan.cost.hardware import Hardware
    from ..plan.explain.report import Report
    from ..program import Program


class UsageError(MeshaxError):
    """A command line that is wrong in itself: exit status 2."""


def same(name: str, value: str, field: str) -> str:
    """Returns the value of an option that is a field of the model as well, or raises if they contradict each other."""
    if value not in ("", field):
        raise UsageError(f"{name} is {value!r}, and model.{name} is {field!r}.", fix="leave one of them out.")
    return field


@contextlib.contextmanager
def usage() -> Iterator[None]:
    """Makes our errors ones of usage, where options are read."""
    try:
        yield
    except MeshaxError as error:
        raise UsageError(str(error)) from error


@dataclass(kw_only=True)
class Command:
    """What every command has."""

    debug: Annotated[bool, arg(help="Show the whole traceback of an error.", help_behavior_hint="")] = False

    def run(self) -> None:
        """Does it."""
        raise NotImplementedError


@dataclass(kw_only=True)
class Reporting(Command):
    """A command that reports."""

    json: Annotated[
        bool, arg(help="Print one JSON object, and nothing else, on standard output.", help_behavior_hint="")
    ] = False

    def report(self, data: dict[str, Any], text: str, folded: bool = True) -> None:
        """Prints the answer: as JSON, or as text, folded where the terminal ends unless it is to stay as it is."""
        from ..plan.printing.terminal import fitted_lines, terminal_width

        if self.json:
            print(json.dumps(_finite(data), allow_nan=False))
        else:
            print(fitted_lines(text.rstrip("\n"), terminal_width() if folded else None))


@dataclass(kw_only=True)
class OnProgram(Reporting):
    """A command about a program."""

    target: Positional[
        Annotated[
            str,
            arg(
                metavar="FILE.py:FUNCTION",
                help="Which program: a function without arguments that returns (fn, args) or (fn, args, donate) as for "
                "mx.spmd, or (program, args). Arguments may be tensors of jax.ShapeDtypeStruct; nothing runs.",
                help_behavior_hint="",
            ),
        ]
    ] = ""
    preset: Annotated[
        str,
        arg(
            metavar="NAME",
            help="In place of a target: the training step of a preset (see meshax presets).",
            help_behavior_hint="",
        ),
    ] = ""
    run_: Annotated[
        str,
        arg(
            name="run",
            metavar="DIR",
            help="In place of a target: the training step of a run that was trained or imported.",
            help_behavior_hint="",
        ),
    ] = ""
    model: ModelGroup = field(default_factory=ModelOptions)
    batch: Annotated[
        int, arg(metavar="N", help="Examples in a step of a preset.", help_behavior_hint="(default: the preset's)")
    ] = 0
    length: Annotated[
        int, arg(metavar="N", help="Tokens in an example of it.", help_behavior_hint="(default: the preset's)")
    ] = 0
    decode: Annotated[
        bool,
        arg(
            help="Of a preset or a run: not its training step, but writing a token in each of --slots texts.",
            help_behavior_hint="",
        ),
    ] = False
    slots: Annotated[
        int,
        arg(metavar="N", help="With --decode: how many texts are written at once.", help_behavior_hint="(default: 1)"),
    ] = 0
    context: Annotated[
        int,
        arg(
            metavar="N",
            help="With --decode: how many tokens they have, and their sources, if there are any.",
            help_behavior_hint="(default: 1024, or as many as there are learned positions)",
        ),
    ] = 0
    mesh: Annotated[
        str,
        arg(
            metavar="AXES", help='The processors, as in "data:2 model:4".', help_behavior_hint="(default: the target's)"
        ),
    ] = ""

    def __post_init__(self) -> None:
        """Raises unless a program is named, and once."""
        if sum(map(bool, (self.target, self.preset, self.run_))) != 1:
            raise UsageError(
                "a target, a preset or a run: one of the three.",
                fix="write FILE.py:FUNCTION, --preset lm-1.28b, or --run runs/tiny.",
            )

    def preset_step(self) -> dict[str, Any]:
        """Returns what the step of a preset, or of a run, is made from: what `preset_target` takes."""
        sizes, model, name = {"batch": self.batch, "length": self.length}, given_fields(self.model), self.preset
        if self.run_:
            from ..train.config import run_config

            config = run_config(self.run_)
            name, model = config.preset, asdict(cast(Any, config.model())) | model
            sizes = config.sizes() | {one: size for one, size in sizes.items() if size}
        return {"name": name, "model": model, "sizes": sizes}

    def decode_step(self) -> dict[str, Any]:
        """Returns what writing a token with a preset, or a run, is made from: what `decode_target` takes."""
        step, asked = self.preset_step(), given_fields(self.model)
        model = {name: value for name, value in step["model"].items() if name != "layers_as" or name in asked}
        return {"name": step["name"], "model": model, "slots": self.slots or 1, "context": self.context}

    def check_program(self) -> None:
        """Raises if there can be no such program, or mesh."""
        from ..decode.planning import check_decode_step
        from ..mesh import Mesh
        from ..plan.compile.targets import check_target
        from ..train.preset_steps import check_preset_step

        if self.target and (self.batch or self.length or given_fields(self.model)):
            raise UsageError(
                "--model.*, --batch and --length are of a preset's step.", fix="name a --preset, or change the target."
            )
        if self.decode and (self.target or self.batch or self.length):
            raise UsageError(
                "--decode is of a preset or a run, whose texts have --slots and --context.",
                fix="leave out the target, --batch and --length.",
            )
        if not self.decode and (self.slots or self.context):
            raise UsageError("--slots and --context are of texts that are written.", fix="add --decode.")
        with usage():
            if self.target:
                check_target(self.target)
            elif self.decode:
                check_decode_step(**self.decode_step())
            else:
                check_preset_step(**self.preset_step())
            if self.mesh:
                Mesh(self.mesh, abstract=True)

    def load(self, machine: "Hardware") -> "Target":
        """Loads the target, as it is on a machine. Looking at a program takes no accelerator from whoever uses it."""
        import jax

        from ..decode.planning import decode_target
        from ..plan.compile.targets import load_target
        from ..plan.cost.processors import assuming
        from ..train.preset_steps import preset_target

        self.check_program()
        jax.config.update("jax_platforms", "cpu")
        with assuming(machine):
            if self.decode:
                return decode_target(**self.decode_step())
            return load_target(self.target) if self.target else preset_target(**self.preset_step())


@dataclass(kw_only=True)
class OnLaidOut(OnProgram):
    """A command about a program under a layout."""

    layout: Annotated[
        str,
        arg(
            metavar="RULES",
            help='Which dim is split over which axis, as in "batch:data heads:model", or a name: none, data, model, '
            "data+model, fsdp, sequence.",
            help_behavior_hint="(default: the target's, or none)",
        ),
    ] = ""
    param_layout: Annotated[
        str, arg(metavar="RULES", help="Rules added where parameters are stored.", help_behavior_hint="")
    ] = ""
    optimizer_layout: Annotated[
        str, arg(metavar="RULES", help="Rules added where the optimizer's state is stored.", help_behavior_hint="")
    ] = ""
    rings: Annotated[
        str,
        arg(
            metavar="AXES",
            help="Axes around which linear maps send blocks, and stored parameters gradients: model, or rows+cols.",
            help_behavior_hint="",
        ),
    ] = ""
    html: Annotated[
        str, arg(metavar="FILE", help="Write a page to look at, which needs no network.", help_behavior_hint="")
    ] = ""

    def check_layout(self) -> None:
        """Raises if the rules cannot be read; whether they fit the program is seen later."""
        from ..layout import Layout
        from ..mesh import Mesh
        from ..plan.search.named_layouts import NAMES, find_layout

        with usage():
            if self.layout.strip() not in NAMES:
                find_layout(self.layout, Mesh("any:1", abstract=True))
            Layout("", self.param_layout, self.optimizer_layout, self.rings)

    def check_html(self) -> None:
        """Raises if the page could not be written; better now than when everything is done."""
        folder = os.path.dirname(self.html) or "."
        if self.html and (os.path.isdir(self.html) or not os.path.isdir(folder)):
            raise UsageError(f"{self.html!r} cannot be written.", fix="name a file in a folder that exists.")

    def keeps_what_fits(self) -> bool:
        """Whether what the backward pass keeps is still to be chosen: `--model.keep auto`."""
        return given_fields(self.model).get("keep") == AUTO

    def settle_keep(self, machine: "Hardware") -> tuple[dict[str, Any], str]:
        """Puts what fits a machine in the place of `--model.keep auto`, as `train` does.

        Returns:
            What is to be said of it, as data and as text.
        """
        from ..plan.printing.units import show_bytes
        from ..train.step_memory import most_kept

        if not self.keeps_what_fits():
            return {}, ""
        if self.target:
            self.check_program()  # which says that a target has no such option
        if self.decode:  # there is no backward pass
            self.model = replace(self.model, keep=None)
            return {}, ""

        def needs(keep: str) -> int:
            self.model = replace(self.model, keep=keep)
            return int(self.explained(machine).memory["peak"])

        keep, size = most_kept(needs, machine.memory)
        self.model = replace(self.model, keep=keep)
        fits = "" if size <= machine.memory else ", and does not fit"
        line = f"the backward pass keeps {keep}{fits}: {show_bytes(size)} of {show_bytes(machine.memory)} predicted"
        return {"keep": keep}, f"\n{line}"

    def build(self, machine: "Hardware") -> "tuple[Target, Program]":
        """Makes the program of a machine, without devices."""
        self.check_layout()
        self.check_html()
        target = self.load(machine)
        with usage():
            target.axes(self.mesh)
        rules = (self.layout, self.param_layout, self.optimizer_layout)
        return target, target.build(self.mesh, *rules, hardware=machine, rings=self.rings)

    def explained(self, machine: "Hardware") -> "Report":
        """Traces the program as that of a machine."""
        from ..plan.compile.targets import blamed
        from ..plan.explain.report import explain

        target, program = self.build(machine)
        with blamed(target.name, target.path, "cannot be traced"):
            report = explain(program, *target.args)
        report.replays = self.decode
        return report


HardwareOption = Annotated[
    str,
    arg(
        metavar="NAME",
        help="What to trace and predict for: tpu-v2 to tpu-v6e, a100, h100, h200, b200, cpu, this (what bench "
        "calibrate measured), or a .json file it wrote. h100x8@400Gbit/s: hosts of 8, each of which sends so much to "
        "others.",
        help_behavior_hint="(default: this)",
    ),
]


def step_of(text: str) -> Any:
    """Returns the step that `--step` means: a number, latest or best."""
    if text in ("latest", "best"):
        return text
    if not text.isdecimal():
        raise UsageError(f"{text!r} is not a step.", fix="give the number of one, latest or best.")
    return int(text)


def progress_console(quiet: bool = False) -> "Console":
    """Returns where progress is shown: never on standard output; to be quiet, nowhere."""
    from rich.console import Console

    return Console(file=sys.stderr, quiet=quiet)


def _finite(data: Any) -> Any:
    """Replaces what JSON has no word for (an infinite speed) by null."""
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


_VIRTUAL = 8


def use_processors(mesh: str, processes: int = 1, each: int = 0) -> None:
    """Gives JAX virtual CPU processors, where there are no others. Before JAX is first used.

    Args:
        mesh: has so many processors; where a size is -1, each process has those of the other axes; auto: 8 of all.
        processes: share them equally.
        each: how many each process has; 0: its part of the mesh.
    """
    import jax

    sizes = [
        int(size) for _, _, size in (word.partition(":") for word in mesh.replace(",", " ").split()) if size.isdecimal()
    ]
    if not any(os.path.exists(path) for path in ("/dev/nvidia0", "/dev/accel0", "/dev/vfio/0")):
        if ":-1" in mesh:
            each = each or math.prod(sizes)
        elif not sizes:  # any mesh will do
            each = each or max(_VIRTUAL // processes, 1)
        if not each and math.prod(sizes) % processes:
            raise UsageError(
                f"{processes} processes cannot share {math.prod(sizes)} processors equally.",
                fix="choose another number of processes or another mesh, or say how many each has: --local-devices.",
            )
        jax.config.update("jax_num_cpu_devices", each or math.prod(sizes) // processes)
    # JAX takes three quarters of a GPU's memory unless told otherwise; here nobody else needs the rest.
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.95")
