"""Processes of one run on this machine: started together, heard together, ended together.

Their lines come with the number of the process before them; standard output of the first comes as it is, for it has the
answer. When one fails, the others are ended, and what failed first is said again at the end, where it is seen.
"""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from queue import Queue
from typing import IO

from .. import interrupts
from .channel import listen
from .place import ANOTHER_FAILED, COORDINATOR, HUNG, LAUNCHER, LISTENER, PROCESS, PROCESSES, SECRET

_LAST_LINES = 15
_END_WITHIN = 10.0  # seconds for a process to end when told to, before it is killed
_END_BY_ITSELF_WITHIN = 4.0  # seconds, once another has failed
_NOISE = ("[Gloo] Rank ", "connected peer ranks is")  # threads mix the words of one greeting with another's
_HOST = "127.0.0.1"


@dataclass(frozen=True)
class Outcome:
    """How processes ended."""

    status: int  # of the one that failed first, 0 if none did
    process: int = 0  # which that was
    lines: tuple[str, ...] = ()  # the last that it said
    step: int = 0  # the last that it began; 0: none
    begun_after: float = 0.0  # seconds to the first step; 0: there was none

    def describe(self) -> str:
        """Returns what happened to the process that failed first, with its last lines."""
        words = f"process {self.process} {describe_status(self.status)}"
        words += f" in step {self.step}" if self.step else " before its first step"
        return "\n".join([words + (", and said last:" if self.lines else "."), *(f"  {line}" for line in self.lines)])


def describe_status(status: int) -> str:
    """Returns an exit status in words."""
    if status > 128:
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(status - 128).name}"
    named = {ANOTHER_FAILED: "ended because another had", HUNG: "hung", 0: "is done"}
    return named.get(status, f"failed with exit status {status}")


class Processes(interrupts.Finishing):
    """Processes of one run, on this machine."""

    def __init__(self, command: Sequence[str], environments: Sequence[Mapping[str, str]]):
        """Starts a command several times.

        Args:
            command: with its arguments.
            environments: of each process, beside its place among the others.
        """
        super().__init__("told the processes")
        number = len(environments)
        self.begin()
        self._lines: list[deque[str]] = [deque(maxlen=_LAST_LINES) for _ in range(number)]
        self._writing, self._exits = threading.Lock(), Queue[int]()
        self._step, self._begun_after, self._began = [0] * number, 0.0, time.monotonic()
        self._signal = 0
        self._ended_here: set[int] = set()  # which have not ended by themselves
        self._alive = os.pipe()  # its end tells them that this process is gone
        self._steps = os.pipe()
        with listen(_HOST) as listener:
            place = {COORDINATOR: f"{_HOST}:{listener.getsockname()[1]}", SECRET: secrets.token_hex(16)}
            place |= {PROCESSES: str(number), LAUNCHER: f"{self._alive[0]},{self._steps[1]}"}
            self.processes = [
                subprocess.Popen(
                    command,
                    env={**environment, **place, PROCESS: str(process)}
                    | ({LISTENER: str(listener.fileno())} if process == 0 else {}),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    pass_fds=[self._alive[0], self._steps[1], *([listener.fileno()] if process == 0 else [])],
                    start_new_session=True,  # Ctrl-C comes from here, and once
                )
                for process, environment in enumerate(environments)
            ]
        for descriptor in (self._alive[0], self._steps[1]):
            os.close(descriptor)
        self._readers = [self._thread(self._read_steps)]
        for process, started in enumerate(self.processes):
            assert started.stdout is not None and started.stderr is not None
            self._readers += [self._thread(self._read, process, started.stdout, sys.stdout if process == 0 else None)]
            self._readers += [self._thread(self._read, process, started.stderr, None)]
            self._thread(self._await, process)

    @staticmethod
    def _thread(work: object, *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
        thread.start()
        return thread

    def _await(self, process: int) -> None:
        self.processes[process].wait()
        self._exits.put(process)

    def _read(self, process: int, pipe: IO[bytes], plain: IO[str] | None) -> None:
        with pipe:
            for data in pipe:
                line = data.decode(errors="backslashreplace").rstrip("\n")
                with self._writing, contextlib.suppress(OSError, ValueError):
                    if plain is not None:
                        print(line, file=plain, flush=True)
                    elif not any(word in line for word in _NOISE):
                        self._lines[process].append(line)
                        print(f"[{process}] {line}", file=sys.stderr, flush=True)

    def _read_steps(self) -> None:
        with open(self._steps[0], encoding="ascii") as steps:
            for line in steps:
                self._begun_after = self._begun_after or time.monotonic() - self._began
                process, step = map(int, line.split())
                self._step[process] = step

    def take(self, number: int) -> bool:
        """Gives a signal on to all processes: they know what to do at the first, and at the second."""
        self._signal = self._signal or number
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(number)
        return True

    def check(self) -> None:
        """Does nothing: the processes end by the signal, and then this one."""

    def wait(self) -> Outcome:
        """Waits until all have ended, and returns how."""
        ended: list[int] = []
        try:
            while len(ended) < len(self.processes):
                ended.append(self._exits.get())
                if self._status(ended[-1]) and not self._signal:
                    break
            self._end_others(ended)
        finally:
            self.kill()
            os.close(self._alive[1])
        for reader in self._readers:
            reader.join(2.0)
        statuses = {process: self._status(process) for process in ended}
        for process in self._ended_here:  # one that was stopped may wake up, and end as if it had been interrupted
            statuses[process] = 128 + signal.SIGKILL if statuses.get(process) else 0
        failed = [process for process in ended if statuses[process]]
        own = [process for process in failed if statuses[process] != ANOTHER_FAILED]
        first = next(iter(own or failed), 0)
        status = 128 + self._signal if self._signal and failed else statuses.get(first, 0)
        lines = tuple(self._lines[first]) if status else ()
        return Outcome(status, first, lines, self._step[first], self._begun_after)

    def kill(self) -> None:
        """Ends at once what has not ended."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()

    def _end_others(self, ended: list[int]) -> None:
        """Ends the processes that have not ended yet: most do so by themselves."""
        ways = ((_END_BY_ITSELF_WITHIN, 0), (_END_WITHIN, signal.SIGTERM), (_END_WITHIN, signal.SIGKILL))
        for seconds, number in ways:
            for place, process in enumerate(self.processes if number else ()):
                if process.poll() is None:
                    self._ended_here.add(place)
                    process.send_signal(number)
                    process.send_signal(signal.SIGCONT)  # to one that is stopped, too
            end = time.monotonic() + seconds
            while len(ended) < len(self.processes) and time.monotonic() < end:
                with contextlib.suppress(Exception):
                    ended.append(self._exits.get(timeout=0.1))

    def _status(self, process: int) -> int:
        status = self.processes[process].poll()
        return 0 if status is None else status if status >= 0 else 128 - status
