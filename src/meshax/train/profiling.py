"""A profile of a few steps of a run: of all of them it would fill the disk."""

from pathlib import Path

import jax

_AFTER, _COUNT = 3, 5  # the first steps compile


class Profile:
    """Profiles a few steps, once the first have compiled."""

    def __init__(self, directory: Path | None, first: int, last: int):
        """Profiles a run from its first step to its last into a directory; into none, not at all."""
        self.directory = directory
        self.begin = min(first + _AFTER, last)
        self.end = self.begin + _COUNT
        self._is_on = False

    def at(self, step: int) -> None:
        """Begins or ends the profile, if it is time: before each step."""
        if self.directory is not None and step == self.begin:
            jax.profiler.start_trace(str(self.directory))
            self._is_on = True
        elif step == self.end:
            self.close()

    def close(self) -> None:
        """Ends it, wherever the run is."""
        if self._is_on:
            self._is_on = False
            jax.profiler.stop_trace()
