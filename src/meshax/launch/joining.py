"""How a process joins the others: it is heard of, its options are compared, and only then JAX connects it.

JAX ends a process without an exception when another does not come, and lets processes that disagree hang or be silently
wrong. So here everybody is there, and of one mind, before the first collective.
"""

import atexit
import contextlib
import os
import secrets
import select
import socket
import sys
import traceback
from collections.abc import Mapping
from typing import Any

from .. import interrupts
from .channel import Gone, connect, listen
from .hub import Hub
from .peers import FROM_OTHERS, Connected, current, use
from .place import LAUNCHER, LISTENER, SECRET, Limits, Place, ProcessError

_SHUTDOWN_WITHIN = 60  # seconds, when all is done
_ADDRESS_BYTES = 256


def join(place: Place, limits: Limits, facts: Mapping[str, Any]) -> Connected:
    """Connects this process with the others. To be called before JAX is used.

    Args:
        place: which process this is, and where the first one listens.
        limits: how long to wait.
        facts: what has to be the same in all processes.
    """
    limits.check()
    keep_standard_output()
    secret = os.environ.get(SECRET, "")
    if place.process == 0:
        Hub(_listener(place), place.processes, limits, secret)
    peers = _connected(place, limits, secret)
    peers.agree(facts)
    address = _address_for_jax(place) if place.process == 0 else None
    address = next(value for value, _ in peers.gather("address", address) if value)
    _initialize(
        coordinator_address=address,
        num_processes=place.processes,
        process_id=place.process,
        cluster_detection_method="deactivate",
        initialization_timeout=int(limits.arrival),
        **({"coordinator_bind_address": address} if place.is_local else {}),
    )
    return peers


def join_cluster(limits: Limits, facts: Mapping[str, Any]) -> Connected:
    """Connects this process with the others of a job, which JAX finds: of Slurm, Open MPI, Kubernetes or Cloud TPU."""
    limits.check()
    keep_standard_output()
    try:
        _initialize(initialization_timeout=int(limits.arrival))
    except (ValueError, RuntimeError) as error:
        raise ProcessError(
            "JAX finds no cluster here.",
            values=str(error).partition("\n")[0],
            rule="it knows Slurm, Open MPI, Kubernetes and Cloud TPU by what they set in the environment.",
            fix="start it by srun, mpirun or a Job with an index, or give --coordinator, --processes and --process.",
        ) from error
    import jax

    process, processes = jax.process_index(), jax.process_count()
    secret, listener = "", None
    host = "" if process else _own_address()
    if process == 0:
        secret, listener = secrets.token_hex(16), listen(host)
    port = listener.getsockname()[1] if listener is not None else 0
    secret, host, port = _told_by_first(secret, host, port)
    if listener is not None:
        Hub(listener, processes, limits, secret)
    peers = _connected(Place(process, processes, host, int(port)), limits, secret)
    peers.agree(facts)
    return peers


def _connected(place: Place, limits: Limits, secret: str) -> Connected:
    try:
        channel = connect(place.host, place.port, limits.arrival)
    except Gone as gone:
        raise ProcessError(
            f"process 0 did not arrive within {limits.arrival:g} seconds.",
            values=f"process {place.process} of {place.processes} asks for it at {place.host}:{place.port}: {gone}",
            rule="process 0 listens at the coordinator's address.",
            fix="see whether it has started, and whether its host can be reached there.",
        ) from None
    peers = Connected(channel, place.process, place.processes, limits, secret)
    use(peers)
    interrupts.undo_when_ended(peers.interrupted)
    sys.excepthook = _end_with_an_error
    atexit.register(_end_early)
    _follow_launcher(peers)
    return peers


def _listener(place: Place) -> socket.socket:
    if LISTENER in os.environ:
        return socket.socket(fileno=int(os.environ.pop(LISTENER)))
    try:
        return listen(place.host, place.port)
    except OSError as error:
        raise ProcessError(
            f"process 0 cannot listen at {place.host}:{place.port}.",
            values=error.strerror or str(error),
            rule="the coordinator's address is one of process 0's host, and its port is free.",
            fix="name an address of this host, and another port.",
        ) from error


def _address_for_jax(place: Place) -> str:
    """Returns where JAX's own service listens: on this machine alone at any port, otherwise at the next one."""
    host = f"[{place.host}]" if ":" in place.host else place.host
    if not place.is_local:
        return f"{host}:{place.port + 1}"
    with listen(place.host) as probe:
        return f"{host}:{probe.getsockname()[1]}"


def _initialize(**options: Any) -> None:
    import jax

    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM from us
    # Who is gone we see sooner; JAX need not say it too. When all is done, they end at once.
    jax.distributed.initialize(**options, heartbeat_timeout_seconds=100, shutdown_timeout_seconds=_SHUTDOWN_WITHIN)
    interrupts.hear_signals()


def _own_address() -> str:
    """Returns the address by which other hosts reach this one."""
    with contextlib.suppress(OSError):
        return socket.gethostbyname(socket.gethostname())
    return "127.0.0.1"


def _told_by_first(*words: Any) -> list[str]:
    """Returns what the first process says, in all: by a collective, as nothing else connects them yet."""
    import numpy as np
    from jax.experimental import multihost_utils

    text = " ".join(map(str, words)).encode()
    padded = np.frombuffer(text.ljust(_ADDRESS_BYTES), np.uint8)
    return bytes(np.asarray(multihost_utils.broadcast_one_to_all(padded))).decode().split()


def keep_standard_output() -> None:
    """Keeps what libraries print off standard output, such as Gloo's greetings: it goes to standard error."""
    sys.stdout.flush()
    own = os.dup(1)
    os.dup2(2, 1)
    encoding, errors = sys.stdout.encoding, sys.stdout.errors
    sys.stdout = open(own, "w", encoding=encoding, errors=errors, buffering=1)  # noqa: SIM115


def _end_with_an_error(kind: Any, error: Any, trace: Any) -> None:
    """Ends a process by an error that nobody caught: an orderly end would wait for the others, and they for it."""
    if kind.__name__ in FROM_OTHERS:
        current().find_cause()
    traceback.print_exception(kind, error, trace)
    _end_with(f"{kind.__name__}: {error}".partition("\n")[0])


def _end_with(why: str) -> None:
    current().fail(why)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def _end_early() -> None:
    """Where a program ends without `done`: JAX would wait for the others."""
    if not current().is_over:
        _end_with("it ended before the others")


def _follow_launcher(peers: Connected) -> None:
    """Ends this process when its launcher is gone, and tells the launcher of steps."""
    if LAUNCHER not in os.environ:
        return
    alive, steps = map(int, os.environ.pop(LAUNCHER).split(","))

    def look() -> None:
        if select.select([alive], [], [], 0)[0]:
            interrupts.leave(1, "the launcher is gone")

    def tell(step: int) -> None:
        with contextlib.suppress(OSError):
            os.write(steps, f"{peers.process} {step}\n".encode())

    peers.look, peers.on_step, peers.is_launched = look, tell, True
