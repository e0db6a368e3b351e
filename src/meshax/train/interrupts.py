"""What to do when someone presses Ctrl-C: a run stops between two steps."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def interruptible() -> Iterator[Callable[[], None]]:
    """Makes Ctrl-C stop a run for certain; gives a function to call between two steps.

    What is raised while JAX traces can get lost in a callback, and the run would go on. So it is noted, and raised
    again by the function.
    """
    noted = []

    def note(number: int, frame: Any) -> None:
        noted.append(number)
        if callable(before):
            before(number, frame)

    def check() -> None:
        if noted:
            raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is signal.SIG_IGN:
        yield check  # other threads get no signals, and who ignores them wants none
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)
