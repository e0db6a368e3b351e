"""Starting again what failed: from its last checkpoint, after a pause, while it comes further each time."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from .local import Outcome

_LONGEST_PAUSE = 60.0  # seconds
_STARTS_THAT_FAIL = 3  # one after the other, before the first step
_INTERRUPTED = (130, 143)  # by the user, or by the machine: all has been saved
_NOT_AGAIN = (0, 2, *_INTERRUPTED)  # also what is done, and a command that is wrong


@dataclass
class Restarts:
    """How often, and whether at all."""

    most: int = 0
    fewest_processes: int = 0  # a process less each time one is lost, down to these; 0: always as many
    say: Callable[[str], None] = print
    sleep: Callable[[float], None] = time.sleep
    count: int = 0
    seconds_lost: float = 0.0
    _failed_at: list[int] = field(default_factory=list)

    def run(self, start: Callable[[int], Outcome], processes: int) -> int:
        """Starts processes until they are done or there is no hope, and returns the exit status.

        Args:
            start: starts so many processes, and waits for them.
            processes: how many there are at first.
        """
        failed_since: float | None = None
        while True:
            begin = time.monotonic()
            outcome = start(processes)
            if failed_since is not None:
                self.seconds_lost += begin - failed_since + (outcome.begun_after or time.monotonic() - begin)
            if outcome.status in _INTERRUPTED:
                self.say("interrupted")
            elif outcome.status:
                self.say(outcome.describe())
            if outcome.status in _NOT_AGAIN or self.count == self.most or self._is_hopeless(outcome):
                break
            failed_since = time.monotonic()
            pause = min(2.0**self.count, _LONGEST_PAUSE)
            self.count += 1
            if self.fewest_processes and outcome.status > 128:
                processes = max(processes - 1, self.fewest_processes)
            self.say(
                f"restart {self.count} of {self.most} in {pause:g} seconds, from the last checkpoint"
                + (f", with {processes} processes" if self.fewest_processes else "")
            )
            self.sleep(pause)
        if self.count:
            self.say(f"restarts: {self.count}; {self.seconds_lost:.1f} seconds went by until training went on")
        return outcome.status

    def _is_hopeless(self, outcome: Outcome) -> bool:
        self._failed_at.append(outcome.step)
        last = self._failed_at[-2:]
        if outcome.step and len(last) == 2 and last[0] == last[1]:
            self.say(f"step {outcome.step} has failed twice: no restart will help")
            return True
        if self._failed_at[-_STARTS_THAT_FAIL:] == [0] * _STARTS_THAT_FAIL:
            self.say(f"{_STARTS_THAT_FAIL} starts have failed before a step: no restart will help")
            return True
        return False
