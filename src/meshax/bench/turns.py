"""Programs measured in turns, each in a process of its own: all meet the machine in the same moods, and alone.

A module that measures programs calls `answer` where it is run as one; whoever wants them measured calls `in_turns`.
"""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..errors import ArgumentError, MeshaxError
from ..interrupts import undoing

PROGRAMS = ("meshax", "jax", "torch")


def in_turns(
    module: str, programs: Sequence[str], asked: Mapping[str, Any], turns: int, profile: bool
) -> Iterator[dict[str, Any]]:
    """Measures programs one after the other, several times, and yields what the processes say.

    What a profile costs is paid in the first turn only.

    Args:
        module: what the processes run.
        programs: which to measure.
        asked: what else they are told, as JSON has it.
        turns: how often each is measured.
        profile: whether to look where the time goes, too.
    """
    for turn in range(turns):
        for program in programs:
            question = json.dumps({"program": program, "profile": profile and not turn, **asked})
            said, status = _run(module, question)
            if status:
                raise ArgumentError(
                    f"the program {program!r} could not be measured.", fix="see its own message above, or leave it out."
                )
            yield json.loads(said.splitlines()[-1])


def _run(module: str, question: str) -> tuple[str, int]:
    """Asks another process, and returns what it says and its status; Ctrl-C is for this one, and ends both."""
    command, pipe = [sys.executable, "-m", module], subprocess.PIPE
    with (
        subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True) as child,
        undoing(child.kill),
    ):
        try:
            return child.communicate(question)[0], child.wait()
        finally:
            child.kill()


def answer(measure: Callable[[dict[str, Any]], Any]) -> None:
    """Measures what standard input asks for, and prints it."""
    try:
        measurement = measure(json.load(sys.stdin))
    except MeshaxError as error:
        sys.exit(f"meshax: {error}")
    print(json.dumps(dataclasses.asdict(measurement)))
