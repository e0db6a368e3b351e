"""What commands share that run as one of several processes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import arg

from ..launch.place import Limits, find_place
from .options import Reporting, UsageError, usage, use_processors

if TYPE_CHECKING:
    from ..launch.peers import Peers


@dataclass(kw_only=True)
class Joining(Reporting):
    """A command that may run as one of several processes."""

    distributed: Annotated[
        bool,
        arg(
            help="Be one of the processes of a job: JAX finds the others under Slurm, Open MPI, Kubernetes and on "
            "Cloud TPU.",
            help_behavior_hint="",
        ),
    ] = False
    coordinator: Annotated[
        str,
        arg(
            metavar="HOST:PORT",
            help="Where process 0 listens, for those who are not found so; it takes the next port too.",
            help_behavior_hint="",
        ),
    ] = ""
    processes: Annotated[int, arg(metavar="N", help="How many processes there are.", help_behavior_hint="")] = 0
    process: Annotated[
        int, arg(metavar="I", help="Which of them this one is, counted from 0.", help_behavior_hint="")
    ] = -1
    local_devices: Annotated[
        int,
        arg(
            metavar="N",
            help="Virtual CPU processors of this process.",
            help_behavior_hint="(default: its part of the mesh; with --distributed, 1)",
        ),
    ] = 0
    arrival_limit: Annotated[float, arg(metavar="SECONDS", help="How long to wait until all processes are there.")] = (
        Limits.arrival
    )
    silence_limit: Annotated[
        float,
        arg(metavar="SECONDS", help="After how long a process that says nothing (stopped, its host gone) ends all."),
    ] = Limits.silence
    step_limit: Annotated[
        float,
        arg(
            metavar="SECONDS",
            help="After how long a step that does not end is taken for hung: all show where they are, and end.",
            help_behavior_hint="(default: 30, or 20 times the slowest step)",
        ),
    ] = Limits.step

    def join(self, mesh: str, facts: Callable[[], dict[str, Any]]) -> "Peers":
        """Makes virtual processors and connects this process with the others, if there are any.

        Args:
            mesh: what processors there are to be.
            facts: returns what has to be the same in all processes.
        """
        with usage():
            place = find_place(self.coordinator, self.processes, self.process)
            limits = Limits(self.arrival_limit, self.silence_limit, self.step_limit)
            limits.check()
        if self.distributed and place is not None:
            raise UsageError("--distributed finds the other processes by itself.", fix="leave out --coordinator.")
        if self.local_devices < 0:
            raise UsageError(f"--local-devices is {self.local_devices}.", fix="give a number, 1 or more.")
        use_processors(mesh, place.processes if place else 1, self.local_devices or int(self.distributed))
        from ..launch.joining import join, join_cluster
        from ..launch.peers import current

        if self.distributed:
            return join_cluster(limits, facts())
        return current() if place is None else join(place, limits, facts())
