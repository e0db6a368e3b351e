"""Ctrl-C and SIGTERM: a command ends at once and cleanly; a run of training finishes its step and saves first.

A command never unwinds. Where Python raises a KeyboardInterrupt, C++ may be calling back: there it gets lost, and the
work goes on. And when the interpreter ends while threads of XLA's still compile or run, destructors take away what they
use: "pure virtual method called", a segmentation fault. While XLA compiles, the main thread runs no Python at all. So a
thread waits for the signals; it undoes what is half done, says so, and ends the process without any destructor.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SHOW_CURSOR = b"\x1b[?25h\n"  # a progress bar has hidden it
_OUTPUTS = (1, 2)

_undo: dict[Callable[[], Any], None] = {}


class Stopped(KeyboardInterrupt):
    """A signal has ended the work, at a place that the work chose."""

    def __init__(self, number: int):
        super().__init__()
        self.status = 128 + number


class Together(Protocol):
    """Processes that stop at the same place, whichever of them a signal came to."""

    def ask_to_stop(self, number: int) -> None:
        """Asks all to stop because of a signal."""

    def stopped_by(self) -> int:
        """Returns the signal by which all stop here; 0: they go on."""


class Finishing:
    """Work that wants to come to a good end when a signal comes."""

    def __init__(self, words: str, together: Together | None = None) -> None:
        self.words, self._together = words, together
        self._number = 0
        self._has_begun = False

    def begin(self) -> None:
        """From now on there is something to save: the first signal waits for `check`."""
        self._has_begun = True

    def check(self) -> None:
        """Raises `Stopped` if a signal came; of several processes, all come here equally often."""
        number = self._together.stopped_by() if self._together else self._number
        if number:
            raise Stopped(number)

    def take(self, number: int) -> bool:
        """Takes a signal, and returns whether it is left to `check`."""
        is_first, self._number = not self._number, self._number or number
        is_left = is_first and self._has_begun
        if is_left and self._together:
            self._together.ask_to_stop(number)
        return is_left


class _Command:
    """The process, if it is a command's."""

    is_running = False
    work: Finishing | None = None
    status = 0  # by which it is ending


def end_on_signals() -> None:
    """Makes Ctrl-C and SIGTERM end this process, a command's, unless it was started to ignore them."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    hear_signals()
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=_be_another)
    _Command.is_running = True
    threading.Thread(target=_watch, args=(reading,), name="meshax-interrupts", daemon=True).start()


def hear_signals() -> None:
    """Hears them (again: JAX takes SIGTERM for itself when processes connect), if this is a command's process."""
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as a shell starts what runs in the background
            signal.signal(number, lambda *_: None)


def _be_another() -> None:
    """In a process that was forked: the pipe is its parent's."""
    _Command.is_running = False
    signal.set_wakeup_fd(-1)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)


def _watch(pipe: int) -> None:
    while True:
        for number in os.read(pipe, 64):
            if number not in SIGNALS:
                continue
            work = _Command.work
            if work is None or not work.take(number):
                return leave(128 + number, "interrupted")
            os.write(2, f"meshax: {work.words}; again, and it leaves at once\n".encode())


def leave(status: int, words: str) -> None:
    """Ends the process at once, from any thread: undoes what is half done, says why, and calls no destructor."""
    _Command.status = status
    for undo in list(_undo):
        with contextlib.suppress(Exception):
            undo()
    with contextlib.suppress(OSError):
        _say_last(words)
    os._exit(status)


def _say_last(words: str) -> None:
    """Writes what a terminal shows last: a progress bar has a thread that would draw it once more."""
    errors, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    for output in _OUTPUTS:
        if os.isatty(output):
            os.dup2(nowhere, output)
    # not by sys.stderr: the main thread may hold its lock, and be in C++
    os.write(errors, (_SHOW_CURSOR if os.isatty(errors) else b"") + f"meshax: {words}\n".encode())


def ending_status() -> int:
    """Returns the status by which the process is ending, for whoever undoes something."""
    return _Command.status


def end(status: int) -> int:
    """Ends the process without destructors, if it is a command's; otherwise returns the status."""
    if _Command.is_running:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


def undo_when_ended(undo: Callable[[], Any]) -> None:
    """Calls a function if a signal ends the process, a command's, at once."""
    _undo[undo] = None


@contextlib.contextmanager
def undoing(undo: Callable[[], Any]) -> Iterator[None]:
    """Calls a function if a signal ends the process inside."""
    undo_when_ended(undo)
    try:
        yield
    finally:
        _undo.pop(undo, None)


@contextlib.contextmanager
def finishing(words: str | Finishing, together: Together | None = None) -> Iterator[Finishing]:
    """Gives work the time to come to a good end, which has words, when Ctrl-C or SIGTERM asks it to.

    In a process that is not a command's, a signal that is not waited for does what it did before. What it raises while
    JAX traces can get lost in a call back: `check` raises it again.
    """
    work = Finishing(words, together) if isinstance(words, str) else words

    def handle(number: int, frame: Any) -> None:
        if not work.take(number):
            signal.signal(number, before[number])
            signal.raise_signal(number)

    is_main = threading.current_thread() is threading.main_thread()  # other threads get no signals
    numbers = SIGNALS if is_main and not _Command.is_running else ()
    before: dict[int, Any] = {n: h for n in numbers if (h := signal.getsignal(n)) not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, handle)
    _Command.work = work
    try:
        yield work
        work.check()
    finally:
        _Command.work = None
        for number, handler in before.items():
            signal.signal(number, handler)
