"""What the first process does for all: it knows who is there, and tells everybody what concerns everybody.

Each process, the first one too, has a connection to the hub (`peers.py`). It says hello, and then every second that it
is alive, and where it is. What a process says is answered when all have said it: that is a barrier, a comparison, and
the agreement on the step to stop at. One that is gone, silent, or stands still while the others wait for it, ends all.
"""

import contextlib
import hmac
import selectors
import socket
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from .channel import Awake, Channel, Gone, Message
from .place import ANOTHER_FAILED, Limits

_LOOK_EVERY = 0.2
_SHORTEST_STEP_LIMIT, _TIMES_SLOWEST = 30.0, 20.0
_SAY_WAITING_AFTER = 60.0
END = "end"  # where processes meet when all is done
RUNNING = "running"  # what a process does that takes steps; all else takes as long as it takes


@dataclass
class Member:
    """A process, as the hub knows it."""

    process: int
    channel: Channel
    pid: int
    host: str
    heard: float  # on the hub's clock, as all times here
    tick: int = 0  # programs that all processes run, so far
    phase: str = "starting"
    moved: float = 0.0
    slowest: float = 0.0  # seconds between two ticks
    stops_after: int | None = None  # the tick it was at when it heard that all are to stop
    begun: dict[int, float] = field(default_factory=dict)  # steps, and when

    def __str__(self) -> str:
        return f"process {self.process} (pid {self.pid} on {self.host})"


class Hub:
    """Serves all processes of a run, in a thread of the first one."""

    def __init__(self, listener: socket.socket, processes: int, limits: Limits, secret: str = ""):
        self.processes, self.limits = processes, limits
        self._listener, self._secret = listener, secret
        self._members: dict[int, Member] = {}
        self._gathered: dict[str, dict[int, Any]] = {}
        self._waiting_since: dict[str, float] = {}
        self._signal = 0
        self._is_over = self._is_complete = self._is_done = False
        self._clock = Awake()
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, None)
        threading.Thread(target=self._serve, name="meshax-hub", daemon=True).start()

    def _serve(self) -> None:
        while not self._is_over:
            for key, _ in self._selector.select(_LOOK_EVERY):
                if key.data is None:
                    self._accept()
                else:
                    self._hear(key.data)
            self._look()
        for key in list(self._selector.get_map().values()):
            with contextlib.suppress(OSError):
                key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            self._selector.register(connection, selectors.EVENT_READ, Channel(connection))

    def _hear(self, channel: Channel) -> None:
        member = next((one for one in self._members.values() if one.channel is channel), None)
        try:
            for message in channel.arrived():
                if member is None:
                    member = self._hello(channel, message)
                else:
                    self._take(member, message)
        except (Gone, KeyError, TypeError, ValueError):
            self._selector.unregister(channel.socket)
            channel.close()
            if member is not None and not self._is_done:
                self._end(f"{member} is gone: it was killed, or crashed", member.process)

    def _hello(self, channel: Channel, message: Message) -> Member:
        process, processes = int(message["process"]), int(message["processes"])
        knows = hmac.compare_digest(str(message.get("secret", "")).encode(), self._secret.encode())
        if message["kind"] != "hello" or not knows:
            raise Gone("a stranger")
        member = Member(process, channel, int(message["pid"]), str(message["host"]), self._clock.seconds)
        why = ""
        if processes != self.processes:
            why = f"{member} was told of {processes} processes, process 0 of {self.processes}"
        elif process in self._members or not 0 <= process < processes:
            why = f"{member} has the number of {self._members.get(process, 'nobody')}"
        if why:
            channel.send(kind="end", why=why, process=process, stacks=False)
            self._end(why, process)
            raise Gone(why)
        self._members[process] = member
        if len(self._members) == self.processes:
            self._is_complete = True
            self._tell_all(kind="complete", names=[str(one) for _, one in sorted(self._members.items())])
        return member

    def _take(self, member: Member, message: Message) -> None:
        member.heard = self._clock.seconds
        kind = message["kind"]
        if kind == "beat":
            self._beat(member, message)
        elif kind == "gather":
            self._gather(member, str(message["name"]), message["value"])
        elif kind == "stop":
            self._signal = self._signal or int(message["signal"])
            self._tell_all(kind="freeze")
        elif kind == "frozen":
            member.stops_after = int(message["tick"])
            ticks = [one.stops_after for one in self._members.values()]
            if None not in ticks:
                self._tell_all(kind="stop", after=max(filter(None, ticks), default=0), signal=self._signal)
        elif kind == "failed":
            self._end(f"{member} failed: {message['why']}", member.process, status=int(message["status"]))

    def _beat(self, member: Member, message: Message) -> None:
        tick, now = int(message["tick"]), self._clock.seconds
        if tick != member.tick or message["phase"] != member.phase:
            if tick > member.tick > 0 and message["phase"] == member.phase == RUNNING:
                member.slowest = max(member.slowest, (now - member.moved) / (tick - member.tick))
            member.tick, member.phase, member.moved = tick, str(message["phase"]), now
        member.begun |= {int(step): float(at) for step, at in message["begun"]}
        slow = self._slowest_step()
        with contextlib.suppress(Gone):
            member.channel.send(kind="heard", sent=message["sent"], at=time.monotonic(), **slow)

    def _slowest_step(self) -> dict[str, Any]:
        """Returns who began the last step that all have begun after all others, and how long after the first."""
        common = set.intersection(*(set(one.begun) for one in self._members.values())) if self._is_complete else set()
        if not common:
            return {}
        step = max(common)
        times = {process: one.begun[step] for process, one in self._members.items()}
        for one in self._members.values():
            one.begun = {later: at for later, at in one.begun.items() if later >= step}
        last = max(times, key=lambda process: times[process])
        return {"step": step, "slowest": last, "skew": times[last] - min(times.values())}

    def _gather(self, member: Member, name: str, value: Any) -> None:
        values = self._gathered.setdefault(name, {})
        self._waiting_since.setdefault(name, self._clock.seconds)
        values[member.process] = value
        if len(values) == self.processes:
            del self._gathered[name], self._waiting_since[name]
            self._is_done = name == END
            groups: list[tuple[Any, list[int]]] = []
            for process, one in sorted(values.items()):
                for known, processes in groups:
                    if known == one:
                        processes.append(process)
                        break
                else:
                    groups.append((one, [process]))
            self._tell_all(kind="gathered", name=name, groups=groups)

    def _look(self) -> None:
        now = self._clock.look()
        if not self._is_complete and now > self.limits.arrival:
            missing = [f"{process}" for process in range(self.processes) if process not in self._members]
            self._end(
                f"process{'es' if len(missing) > 1 else ''} {', '.join(missing[:16])} of {self.processes} did not "
                f"arrive within {self.limits.arrival:g} seconds",
                int(missing[0]),
            )
        if not self._is_complete or self._is_done:
            return
        for one in self._members.values():
            if now - one.heard > self.limits.silence:
                return self._end(
                    f"{one} has said nothing for {self.limits.silence:g} seconds: it is stopped, or its host is gone",
                    one.process,
                )
        self._look_for_hung(now)
        for name, since in self._waiting_since.items():
            if now - since > _SAY_WAITING_AFTER:
                missing = [f"{m} ({m.phase})" for m in self._members.values() if m.process not in self._gathered[name]]
                print(f"meshax: at {name!r}, waiting for {', '.join(missing[:4])}", file=sys.stderr, flush=True)
                self._waiting_since[name] = now

    def _look_for_hung(self, now: float) -> None:
        """Ends all if those that the others wait for have stood still for too long within a step."""
        there = list(self._members.values())
        last = min(one.tick for one in there)
        behind = [one for one in there if one.tick == last]
        limit = self.limits.step or max(_SHORTEST_STEP_LIMIT, _TIMES_SLOWEST * max(one.slowest for one in there))
        if all(one.phase == RUNNING and now - one.moved > limit for one in behind):
            who = "all processes" if len(behind) == self.processes else ", ".join(map(str, behind[:4]))
            self._end(f"no step ended within {limit:.3g} seconds: {who} hung", behind[0].process, stacks=True)

    def _tell_all(self, **message: Any) -> None:
        """Tells every process; itself last, because it may end at that."""
        for _, member in sorted(self._members.items(), reverse=True):
            with contextlib.suppress(Gone):
                member.channel.send(**message)

    def _end(self, why: str, process: int, stacks: bool = False, status: int = ANOTHER_FAILED) -> None:
        if not self._is_over:
            self._is_over = True
            self._tell_all(kind="end", why=why, process=process, stacks=stacks, status=status)
