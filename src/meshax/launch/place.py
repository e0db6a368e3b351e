"""Which process of how many this one is, where the first one listens, and how long each waits for the others.

A launcher says it in the environment, a user on the command line; on a cluster JAX finds it out (`joining.py`).
"""

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import MeshaxError

COORDINATOR, PROCESSES, PROCESS = "MESHAX_COORDINATOR", "MESHAX_PROCESSES", "MESHAX_PROCESS"
SECRET = "MESHAX_SECRET"  # a word that all processes of a run share: whoever does not know it is not listened to
LISTENER = "MESHAX_LISTENER"  # the descriptor of a socket that listens already, of the first process
LAUNCHER = "MESHAX_LAUNCHER"  # descriptors: one ends when the launcher does, steps are written to the other

ANOTHER_FAILED = 69  # the exit status of a process that ends because another one failed, or is gone
HUNG = 70  # of all processes, when a step takes far too long


class ProcessError(MeshaxError):
    """Processes cannot begin together, or do not agree."""


@dataclass(frozen=True)
class Limits:
    """How long processes wait for each other, in seconds."""

    arrival: float = 120.0  # until all are there
    silence: float = 30.0  # until one that says nothing is taken for dead
    step: float = 0.0  # until a step is taken for hung; 0: 30, or 20 times the slowest step so far

    def check(self) -> None:
        """Raises if nobody could keep to them."""
        for name, least in (("arrival", 1.0), ("silence", 2.0), ("step", 0.0)):
            if not getattr(self, name) >= least:
                raise ProcessError(
                    f"{name} is {getattr(self, name)} seconds.", fix=f"give a number of seconds, {least:g} or more."
                )


@dataclass(frozen=True)
class Place:
    """This process among the others."""

    process: int
    processes: int
    host: str
    port: int

    @property
    def is_local(self) -> bool:
        """Whether nobody outside of this machine has to reach the first process."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def find_place(
    coordinator: str = "", processes: int = 0, process: int = -1, environment: Mapping[str, str] = os.environ
) -> Place | None:
    """Returns the place that was named, or that the launcher has given; None: this process is alone.

    Args:
        coordinator: host and port where the first process listens.
        processes: how many there are.
        process: which this one is, counted from 0.
        environment: where a launcher has said it.
    """
    named = {"coordinator": bool(coordinator), "processes": processes != 0, "process": process != -1}
    if not any(named.values()):
        if COORDINATOR not in environment:
            return None
        coordinator = environment[COORDINATOR]
        try:
            processes, process = int(environment[PROCESSES]), int(environment[PROCESS])
        except (KeyError, ValueError):
            raise ProcessError(
                f"{COORDINATOR} is set, and {PROCESSES} or {PROCESS} is not a number.",
                fix="set all three, or none of them.",
            ) from None
    elif not all(named.values()):
        missing = [f"--{name}" for name, is_named in named.items() if not is_named]
        raise ProcessError(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing.",
            rule="a process needs all three: --coordinator, --processes, --process.",
            fix="for example --coordinator 10.0.0.1:9000 --processes 4 --process 0; on a cluster, --distributed alone.",
        )
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65535:
        raise ProcessError(f"{coordinator!r} is no address.", fix="name a host and a port, as in 10.0.0.1:9000.")
    if processes < 1 or not 0 <= process < processes:
        raise ProcessError(
            f"there is no process {process} of {processes}.", fix="count from 0: the last of 4 is --process 3."
        )
    return Place(process, processes, host.strip("[]"), int(port))
