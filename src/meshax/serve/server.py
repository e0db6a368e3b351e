"""The server: the caller's thread owns the engine and the devices, a thread of its own speaks HTTP.

So the devices are where they are in every command, and a signal comes to the one who can finish what runs: nothing new
is taken, what is there is written to its end if that takes no longer than it may, and everybody gets an answer.
"""

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..decode import Engine, Request
from ..errors import ArgumentError
from ..extras import extra
from ..interrupts import Finishing, Stopped
from .application import Application
from .batching import Batcher, stopping
from .completions import Limits, Words
from .metrics import Metrics
from .refusals import Refusal

with extra("serve", "servers"):
    import uvicorn

_LEAVING = 5  # seconds to send the last answers in


@dataclass(frozen=True)
class ServerOptions:
    """What a server takes at once, and of each request."""

    name: str  # of the model
    queue: int = 64  # texts that wait for a slot
    max_prompt: int = 0  # tokens; 0: as many as there is room for
    max_tokens: int = 0  # likewise
    max_bytes: int = 4 << 20  # of a request
    grace: float = 30.0  # seconds for what runs when it is told to stop

    def __post_init__(self) -> None:
        """Raises if nobody can serve so."""
        for name, least in (("queue", 0), ("max_prompt", 0), ("max_tokens", 0), ("max_bytes", 1), ("grace", 0)):
            if not getattr(self, name) >= least:
                raise ArgumentError(f"{name} is {getattr(self, name)}.", fix=f"give a number, {least} or more.")


def check_port(port: int) -> None:
    """Raises if there can be no such port."""
    if not 0 <= port < 2**16:
        raise ArgumentError(f"port is {port}.", fix="give a number, 0 to 65535.")


def bound(host: str, port: int) -> socket.socket:
    """Returns a socket that has an address, and does not listen yet; port 0: any that is free."""
    check_port(port)
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with contextlib.ExitStack() as closing:
            own = closing.enter_context(socket.socket(family, socket.SOCK_STREAM))
            own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            own.bind(address)
            closing.pop_all()
            return own
    except OSError as error:
        raise ArgumentError(
            "the server cannot be there.", values=f"{host} port {port}: {error.strerror}",
            fix="choose another port, or 0 for one that is free; hosts are this machine's own.",
        ) from None  # fmt: skip


def address_of(own: socket.socket) -> str:
    """Returns the address of a socket, as a browser takes it."""
    host, port = own.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(
    engine: Engine,
    words: Words,
    options: ServerOptions,
    own: socket.socket,
    work: Finishing,
    when_ready: Callable[[], Any],
) -> None:
    """Serves until a signal comes, then finishes what runs and raises `Stopped`.

    Args:
        engine: writes; of this thread from now on.
        words: the vocabulary.
        options: what is taken.
        own: where to listen; from `bound`.
        work: knows of signals.
        when_ready: called when the first request may come.
    """
    places, slots = engine.room.places, engine.batch.size
    limits = Limits(
        options.name, engine.room.vocab.size, places, options.max_prompt or places, options.max_tokens or places,
        options.queue + slots,
    )  # fmt: skip
    batcher = Batcher(engine, options.queue, Metrics())
    speaker = _Speaker(Application(batcher, words, limits, options.max_bytes), own)
    work.begin()
    try:
        speaker.start()
        when_ready()
        while speaker.is_there:
            work.check()
            batcher.work()
        raise ArgumentError("the web server has ended by itself.", fix="look at what it said before.")
    except Stopped:
        _finish(batcher, options.grace)
        raise
    except Exception as error:
        batcher.refuse_all()
        batcher.fail(Refusal("the server has failed.", status=500, values=type(error).__name__, fix="look at its log."))
        raise
    finally:
        speaker.stop()


def warm_up(engine: Engine, everything: bool) -> None:
    """Compiles before somebody waits for it: what short texts need, or what texts of every length do."""
    room, chunk = engine.room, engine.chunk.size
    lengths = {1}
    if everything:
        doubled = [2**i for i in range(room.places.bit_length())]
        lengths |= {size + 1 for size in doubled} | {room.places - 1}  # the longest prompt of each program that reads
        lengths |= {size * room.page + 2 - chunk for size in room.page_counts}  # the shortest text of each that writes
    for length in sorted(length for length in lengths if 1 <= length < max(room.places, 2)):
        tokens = min(chunk, room.places - length)
        list(engine.generate([Request((0,) * length, tokens, temperature=1.0, seed=1)]))


def _finish(batcher: Batcher, grace: float) -> None:
    batcher.refuse_all()
    limit = time.monotonic() + grace
    while batcher.is_busy and time.monotonic() < limit:
        batcher.work()
    batcher.fail(stopping())


class _Speaker:
    """The web server, in a thread."""

    def __init__(self, application: Application, own: socket.socket):
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
        config = uvicorn.Config(
            application.routes(), loop="asyncio", http="h11", ws="none", lifespan="off", log_config=None,
            access_log=False, server_header=False, proxy_headers=False, timeout_graceful_shutdown=_LEAVING,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [own]}, name="meshax-http", daemon=True
        )

    @property
    def is_there(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()
        while not self._server.started and self.is_there:
            time.sleep(0.01)

    def stop(self) -> None:
        """Lets the answers out that are on their way."""
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join(_LEAVING + 2)
