"""`meshax launch`."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from tyro.conf import arg

from .options import Command, UsageError

_VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(kw_only=True)
class Launch(Command):
    """Runs a command as several processes of this machine; when one fails, it ends them all, and says which and why.

    On CPUs they share the processors of the mesh between them; with GPUs, each has one. On several machines it is the
    cluster that starts them: meshax train --distributed.

    meshax launch -n 4 -- train --mesh "data:2 model:4" --out runs/four

    meshax launch -n 4 --max-restarts 10 -- train --mesh "data:-1 model:1" --layout fsdp --out runs/flaky
    """

    processes: Annotated[
        int, arg(aliases=("-n",), metavar="N", help="How many processes.", help_behavior_hint="(default: 2)")
    ] = 2
    max_restarts: Annotated[
        int,
        arg(
            metavar="N",
            help="Start again from the last checkpoint when a process fails, so many times at most, after pauses that "
            "grow; not if the same step fails twice.",
            help_behavior_hint="(default: 0)",
        ),
    ] = 0
    min_processes: Annotated[
        int,
        arg(
            metavar="N",
            help="Start again with one process less when one was killed, down to so many. The mesh has to fit them: "
            'one of its sizes is -1, as in "data:-1 model:1", or it is auto.',
            help_behavior_hint="(default: always as many)",
        ),
    ] = 0
    command: tuple[str, ...] = ()  # what stands after --: no field

    def run(self) -> None:
        """Starts them, and exits as the first that failed did."""
        from ..interrupts import finishing, undoing
        from ..launch.local import Outcome, Processes
        from ..launch.restarts import Restarts

        self._check()

        def start(number: int) -> Outcome:
            processes = Processes([sys.executable, "-m", "meshax", *self.command], _environments(number, os.environ))
            with finishing(processes), undoing(processes.kill):
                return processes.wait()

        raise SystemExit(Restarts(self.max_restarts, self.min_processes, _say).run(start, self.processes))

    def _check(self) -> None:
        if not self.command:
            raise UsageError(
                "there is no command to launch.",
                fix="write it after --: meshax launch -n 4 -- train --steps 100.",
            )
        for name, least in (("processes", 1), ("max_restarts", 0), ("min_processes", 0)):
            if getattr(self, name) < least:
                raise UsageError(
                    f"--{name.replace('_', '-')} is {getattr(self, name)}.", fix=f"give a number, {least} or more."
                )


def _say(text: str) -> None:
    print(f"meshax: {text}", file=sys.stderr, flush=True)


def _environments(number: int, environment: Mapping[str, str]) -> list[dict[str, str]]:
    """Returns what each process has in its environment: of several GPUs, one."""
    gpus = _gpus(environment)
    if gpus and number > len(gpus):
        raise UsageError(
            f"{number} processes cannot have a GPU each: there are {len(gpus)}.",
            fix=f"ask for -n {len(gpus)} or fewer.",
        )
    return [{**environment, **({_VISIBLE: gpus[process]} if gpus else {})} for process in range(number)]


def _gpus(environment: Mapping[str, str]) -> list[str]:
    if "cpu" in environment.get("JAX_PLATFORMS", ""):
        return []
    if _VISIBLE in environment:
        return [one for one in environment[_VISIBLE].split(",") if one]
    names = sorted(name.removeprefix("nvidia") for name in os.listdir("/dev") if name.startswith("nvidia"))
    return sorted((name for name in names if name.isdecimal()), key=int)


def split_command(argv: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Returns a command line without what stands after --, and that."""
    if argv[:1] != ["launch"] or "--" not in argv:
        return list(argv), ()
    at = list(argv).index("--")
    return list(argv[:at]), tuple(argv[at + 1 :])
