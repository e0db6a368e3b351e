"""The other processes of a run, as one of them sees them.

`Peers` is a process alone: it agrees with itself, and waits for nobody. `Connected` asks the hub. Everything here is
about control: a few bytes beside JAX's collectives, which therefore always find all processes at the same place.
"""

import contextlib
import faulthandler
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .. import interrupts
from ..errors import shortened
from .channel import Awake, Channel, Gone, Message
from .hub import END as _END
from .hub import RUNNING
from .place import ANOTHER_FAILED, HUNG, Limits, ProcessError

FROM_OTHERS = ("JaxRuntimeError", "XlaRuntimeError")  # what JAX raises where another process has left this one alone
COMPARISON = "comparison"  # gathers what has to be the same: where it is not, all know why, and each says so itself
_OWN_CAUSE_AFTER = 3.0  # seconds in which an error of JAX's may turn out to be another process's


class Peers:
    """No others: a process by itself."""

    process, processes = 0, 1

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes and speaks."""
        return self.process == 0

    @property
    def is_over(self) -> bool:
        """Whether this process may end without a word."""
        return True

    def gather(self, name: str, value: Any = None) -> list[tuple[Any, list[int]]]:
        """Waits until all processes have come here, and returns their values, each with the processes it is of."""
        return [(value, [0])]

    def agree(self, facts: Mapping[str, Any]) -> None:
        """Raises, in all processes, if one of these is not the same everywhere."""
        groups = self.gather(COMPARISON, dict(facts))
        if len(groups) > 1:
            names = sorted({name for one, _ in groups for name in one})
            different = [name for name in names if len({repr(one.get(name)) for one, _ in groups}) > 1]
            raise ProcessError(
                "the processes do not agree.",
                values=shortened([_difference(name, groups) for name in different]),
                rule="all processes of a run have the same options, versions, mesh, layout, data and program.",
                fix="start all of them with the same command, in the same environment.",
            )

    @contextlib.contextmanager
    def first(self, name: str) -> Iterator[bool]:
        """Lets the first process do what is inside, then the others; says whether this is the first."""
        if not self.is_first:
            self.gather(name)
        yield self.is_first
        if self.is_first:
            self.gather(name)

    @contextlib.contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Says what this process does inside, which may take any time."""
        yield

    def began(self, step: int) -> None:
        """Takes note of a step that begins."""

    def ask_to_stop(self, number: int) -> None:
        """Asks all to stop at one place because of a signal."""

    def stopped_by(self) -> int:
        """Returns the signal by which all stop here, 0 if they go on. All processes come here equally often."""
        return 0

    def skew(self) -> dict[str, float]:
        """Returns which process was the last to begin a step, and how many seconds after the first; nothing, alone."""
        return {}

    def find_cause(self) -> None:
        """Waits a moment, after an error that only says that a connection broke: another process may be to blame."""

    def fail(self, why: str, status: int = 1) -> None:
        """Tells the others that this process ends, why, and with which exit status."""

    def done(self) -> None:
        """Says goodbye, when all is done."""


def _difference(name: str, groups: list[tuple[Any, list[int]]]) -> str:
    values: dict[str, list[int]] = {}
    for one, processes in groups:
        values.setdefault(repr(one[name]) if name in one else "nothing", []).extend(processes)
    words = [f"{_cut(value)} on {numbered(processes)}" for value, processes in values.items()]
    return f"{name}: {'; '.join(words[:4])}{' ...' if len(words) > 4 else ''}"


def _cut(text: str, most: int = 80) -> str:
    return text if len(text) <= most else f"{text[:most]}..."


def numbered(processes: list[int]) -> str:
    """Returns the numbers of some processes in words."""
    shown = ", ".join(map(str, processes[:8])) + (", ..." if len(processes) > 8 else "")
    return f"process{'es' if len(processes) > 1 else ''} {shown}"


class Connected(Peers):
    """A process among others."""

    def __init__(self, channel: Channel, process: int, processes: int, limits: Limits, secret: str = ""):
        """Says hello, and waits until all have; raises if one is missing."""
        self.process, self.processes, self.limits = process, processes, limits
        self._channel = channel
        self._changed = threading.Condition()
        self._answers: dict[str, list[tuple[Any, list[int]]]] = {}
        self._names: list[str] = []
        self._refused = ""
        self._is_starting, self._is_leaving, self._is_done, self._is_told = True, False, False, False
        self._tick, self._phase = 0, "starting"
        self._is_frozen, self._stop_after, self._signal = False, -1, 0
        self._begun: deque[tuple[int, float]] = deque(maxlen=32)
        self._offset, self._best_trip = 0.0, float("inf")  # between the hub's clock and ours
        self._skew: dict[str, float] = {}
        self._clock = Awake()
        self._heard = 0.0
        self.is_launched = False  # by us: somebody reads the exit statuses who knows what they mean
        self.on_step: Callable[[int], None] = lambda step: None
        self.look: Callable[[], None] = lambda: None  # called with every beat
        hello = {"process": process, "processes": processes, "pid": os.getpid(), "host": socket.gethostname()}
        self._send(kind="hello", secret=secret, **hello)
        threading.Thread(target=self._listen, name="meshax-peers", daemon=True).start()
        threading.Thread(target=self._beat, name="meshax-beats", daemon=True).start()
        with self._changed:
            self._changed.wait_for(lambda: self._names or self._refused)
        if self._refused:
            raise ProcessError(
                "the processes cannot begin together.",
                values=self._refused,
                rule="all processes of a run are there before it begins.",
                fix="see what became of that process, and start all again.",
            )
        self._is_starting = False

    def _send(self, **message: Any) -> None:
        try:
            self._channel.send(**message)
        except Gone:
            self._hub_is_gone()

    def _hub_is_gone(self) -> None:
        if not (self._is_done or self._is_leaving):
            name = self._names[0] if self._names else "process 0"
            self._ended({"why": f"{name} is gone: it was killed, or crashed", "process": 0, "stacks": False})

    def _listen(self) -> None:
        try:
            while True:
                for message in self._channel.arrived():
                    self._heard = self._clock.seconds
                    self._take(message)
        except Gone:
            self._hub_is_gone()

    def _take(self, message: Message) -> None:
        kind = message["kind"]
        if kind == "end":
            return self._ended(message)
        with self._changed:
            if kind == "complete":
                self._names = message["names"]
            elif kind == "gathered":
                self._answers[message["name"]] = [(value, processes) for value, processes in message["groups"]]
                self._is_done = message["name"] == _END  # whoever leaves from now on may
                self._is_leaving |= message["name"] == COMPARISON and len(message["groups"]) > 1  # all know why
            elif kind == "freeze" and not self._is_frozen:
                self._is_frozen = True
                self._send(kind="frozen", tick=self._tick)
            elif kind == "stop":
                self._stop_after, self._signal = message["after"], message["signal"]
            elif kind == "heard":
                self._compare_clocks(message["sent"], message["at"])
                if "step" in message:
                    self._skew = {"slowest_process": message["slowest"], "skew_seconds": message["skew"]}
            self._changed.notify_all()

    def _compare_clocks(self, sent: float, at: float) -> None:
        """Learns the hub's clock from the message that came back soonest."""
        trip = time.monotonic() - sent
        if trip < self._best_trip:
            self._best_trip, self._offset = trip, at + trip / 2 - time.monotonic()

    def _ended(self, message: Message) -> None:
        """Ends this process, because all end."""
        with self._changed:
            self._is_told = True
            self._refused = self._refused or str(message["why"])
            self._changed.notify_all()
            if self._is_starting or self._is_leaving:
                return
            self._is_leaving = True
        if message["stacks"]:
            os.write(2, f"meshax: where process {self.process} is:\n".encode())
            faulthandler.dump_traceback(2)
        why = f"{self._refused}; process {self.process} ends too"
        interrupts.leave(HUNG if message["stacks"] else self._status_after(message.get("status", ANOTHER_FAILED)), why)

    def _status_after(self, status: int) -> int:
        """Returns the exit status when another process ended with one.

        Clusters look at the greatest, or at any: an error, which would happen again, has to look like one everywhere.
        A launcher looks for the process where it was.
        """
        return ANOTHER_FAILED if self.is_launched and status < 128 else status

    def _beat(self) -> None:
        every = min(1.0, self.limits.silence / 5)
        while not self._is_done:
            with self._changed:
                begun = list(self._begun)
            self._send(kind="beat", sent=time.monotonic(), tick=self._tick, phase=self._phase, begun=begun)
            end = time.monotonic() + every
            while time.monotonic() < end:
                time.sleep(min(0.2, every))
                self._clock.look()
            self.look()
            if not self._is_starting and self._clock.seconds - self._heard > self.limits.silence:
                why = f"{self._names[0]} has said nothing for {self.limits.silence:g} seconds: it is stopped, or its "
                self._ended({"why": why + "host is gone", "process": 0, "stacks": False})

    @property
    def is_over(self) -> bool:
        """Whether this process may end without a word: all is done, or all know why it is not."""
        return self._is_done or self._is_leaving

    def gather(self, name: str, value: Any = None) -> list[tuple[Any, list[int]]]:
        """Waits until all processes have come here, and returns their values, each with the processes it is of."""
        self._send(kind="gather", name=name, value=value)
        with self._changed:
            self._changed.wait_for(lambda: name in self._answers)
            return self._answers.pop(name)

    @contextlib.contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Says what this process does inside, which may take any time."""
        before, self._phase = self._phase, phase
        try:
            yield
        finally:
            self._phase = before

    def began(self, step: int) -> None:
        """Takes note of a step that begins."""
        with self._changed:
            self._begun.append((step, time.monotonic() + self._offset))
        self.on_step(step)

    def ask_to_stop(self, number: int) -> None:
        """Asks all to stop at one place because of a signal; in a thread: who handles one may hold any lock."""
        threading.Thread(target=self._send, kwargs={"kind": "stop", "signal": number}, daemon=True).start()

    def stopped_by(self) -> int:
        """Returns the signal by which all stop here, 0 if they go on. All processes come here equally often.

        The hub asks everybody how often it has been here, and the next time after the greatest of these, all stop.
        Meanwhile nobody goes past what it has told; the answers come from another thread, so they always come.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._is_frozen or self._stop_after >= 0)
            self._tick += 1
            self._phase = RUNNING
            return self._signal if self._is_frozen and self._tick == self._stop_after + 1 else 0

    def skew(self) -> dict[str, float]:
        """Returns which process was the last to begin a step, and how many seconds after the first."""
        return dict(self._skew)

    def find_cause(self) -> None:
        """Waits a moment, after an error that only says that a connection broke.

        If another process is to blame, the hub says so, and this call does not return.
        """
        time.sleep(_OWN_CAUSE_AFTER)

    def fail(self, why: str, status: int = 1) -> None:
        """Tells the others that this process ends, why, and with which exit status."""
        if self._is_done or self._is_leaving:
            return
        self._is_leaving = True
        with contextlib.suppress(Gone):
            self._channel.send(kind="failed", why=why, status=status)
            with self._changed:
                self._changed.wait_for(lambda: self._is_told, 2.0)

    def interrupted(self) -> None:
        """Tells the others that a signal ends this process at once."""
        self.fail("a signal told it to end", status=interrupts.ending_status())

    def done(self) -> None:
        """Says goodbye, when all is done."""
        self.gather(_END)


_current: Peers = Peers()


def current() -> Peers:
    """Returns the other processes of this one."""
    return _current


def use(peers: Peers) -> None:
    """Makes these the other processes of this one."""
    global _current
    _current = peers
