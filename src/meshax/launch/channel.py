"""A connection between two processes: lines of JSON, of a limited length.

Nothing that arrives is run or allocated before it is known to be short and a plain object.
"""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

LONGEST = 1 << 20  # bytes of a message
_SEND_WITHIN = 5.0  # seconds

Message = dict[str, Any]


class Gone(Exception):
    """The other end is not there any more, or does not speak our language."""


class Channel:
    """One end of a connection."""

    def __init__(self, connection: socket.socket):
        connection.settimeout(_SEND_WITHIN)
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connection
        self._half = b""
        self._sending = threading.Lock()

    def send(self, **message: Any) -> None:
        """Sends a message, or raises `Gone`."""
        data = json.dumps(message).encode() + b"\n"
        try:
            with self._sending:
                self.socket.sendall(data)
        except OSError as error:
            raise Gone(str(error)) from None

    def arrived(self) -> Iterator[Message]:
        """Yields the messages that have come; raises `Gone` when there will be no more. Waits for the first bytes."""
        try:
            data = self.socket.recv(1 << 16)
        except TimeoutError:
            return
        except OSError as error:
            raise Gone(str(error)) from None
        if not data:
            raise Gone("closed")
        *lines, self._half = (self._half + data).split(b"\n")
        if len(self._half) > LONGEST:
            raise Gone("a message is too long")
        for line in lines:
            yield _parsed(line)

    def close(self) -> None:
        """Closes the connection."""
        with contextlib.suppress(OSError):
            self.socket.close()


def _parsed(line: bytes) -> Message:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        raise Gone("it speaks another language") from None
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        raise Gone("it speaks another language")
    return message


def connect(host: str, port: int, seconds: float) -> Channel:
    """Connects, as soon as somebody listens there; raises `Gone` after so many seconds."""
    end = time.monotonic() + seconds
    while True:
        try:
            return Channel(socket.create_connection((host, port), timeout=max(0.1, end - time.monotonic())))
        except OSError as error:
            if time.monotonic() + 0.1 > end:
                raise Gone(error.strerror or str(error)) from None
        time.sleep(0.1)


def listen(host: str, port: int = 0) -> socket.socket:
    """Returns a socket that listens at an address of this machine; 0: at any port that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=1024)


class Awake:
    """A clock that stands still while this process is stopped: nobody is to blame for that time."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self.seconds = 0.0

    def look(self) -> float:
        """Returns the seconds that this process was awake; to be called several times a second."""
        now = time.monotonic()
        self.seconds += min(now - self._last, 1.0)
        self._last = now
        return self.seconds
