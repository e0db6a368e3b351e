"""Programs measured in turns, each in a process of its own: all meet the machine in the same moods, and alone.

A module that measures programs calls `answer` where it is run as one; whoever wants them measured calls `in_turns`.
What a program is doing is said as it goes: on a machine that is rented by the minute, silence is expensive.
"""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..errors import ArgumentError, MeshaxError
from ..interrupts import undoing

PROGRAMS = ("meshax", "jax", "torch")
Say = Callable[[str], None]  # takes a few words on what is being done


def in_silence(words: str) -> None:
    """Says nothing."""


def in_turns(
    module: str,
    programs: Sequence[str],
    asked: Mapping[str, Any],
    turns: int,
    profile: bool,
    say: Say = in_silence,
    limit: float = 0.0,
) -> Iterator[dict[str, Any]]:
    """Measures programs one after the other, several times, and yields what the processes say.

    What a profile costs is paid in the first turn only. A program that fails has no further turns; it is an error, once
    the others are measured.

    Args:
        module: what the processes run.
        programs: which to measure.
        asked: what else they are told, as JSON has it.
        turns: how often each is measured.
        profile: whether to look where the time goes, too.
        say: hears what the programs are doing.
        limit: the seconds that a process may take; 0: as many as it likes.
    """
    failed: dict[str, tuple[str, str]] = {}  # what went wrong, and what to do about it
    for turn in range(turns):
        for program in (name for name in programs if name not in failed):
            question = {"program": program, "profile": profile and not turn, **asked}
            said, problem, remedy = _ask(module, question, say, limit)
            if problem:
                failed[program] = problem, remedy
                say(f"{program} {problem}")
            else:
                yield said
    if failed:
        raise ArgumentError(
            "not every program could be measured.",
            values="; ".join(f"{program!r} {problem}" for program, (problem, _) in failed.items()),
            fix="; ".join(dict.fromkeys(remedy for _, remedy in failed.values())) + "; or leave it out.",
        )


def _ask(module: str, question: dict[str, Any], say: Say, limit: float) -> tuple[dict[str, Any], str, str]:
    """Asks another process: its answer, what went wrong, and what to do then. Ctrl-C is for this one, and ends both."""
    command, pipe = [sys.executable, "-m", module], subprocess.PIPE
    environment = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "0"}  # how long it compiles is measured
    answer: dict[str, Any] = {}
    late = threading.Event()
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, text=True, start_new_session=True, env=environment
    ) as child:

        def end() -> None:  # with what it has started, and may have left: torch compiles in processes of its own
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)

        def end_late() -> None:
            late.set()
            end()

        def end_the_rest() -> None:  # who is left holds the pipe, and would be waited for
            child.wait()
            end()

        alarm = threading.Timer(limit, end_late)
        threading.Thread(target=end_the_rest, daemon=True).start()
        with undoing(end):
            try:
                if limit:
                    alarm.start()
                child.stdin.write(json.dumps(question))  # type: ignore[union-attr]
                child.stdin.close()  # type: ignore[union-attr]
                for line in child.stdout:  # type: ignore[union-attr]
                    answer = _read(line) or answer
                    if "doing" in answer:
                        say(f"{question['program']}: {answer.pop('doing')}")
                status = child.wait()
            finally:
                alarm.cancel()
                end()
    if answer and (late.is_set() or not status):
        return answer, "", ""
    if late.is_set():
        return {}, f"gave no answer in {limit:g} seconds", "give it a longer --limit"
    if status == -signal.SIGKILL:  # by the system
        remedy = "there was too little memory, most likely: give it fewer examples, or a smaller model"
        return {}, "was ended by SIGKILL", remedy
    problem = f"was ended by {signal.Signals(-status).name}" if status < 0 else "failed"
    return {}, problem, "see its own message above"


def _read(line: str) -> dict[str, Any]:
    """Returns what a line says, if it is one of ours: libraries print, too."""
    try:
        data = json.loads(line)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def answer(measure: Callable[[dict[str, Any], Say], Any]) -> None:
    """Measures what standard input asks for, says what it is doing, and prints the measurement: lines of JSON."""
    try:
        measurement = measure(json.load(sys.stdin), lambda words: print(json.dumps({"doing": words}), flush=True))
    except MeshaxError as error:
        sys.exit(f"meshax: {error}")
    except Exception as error:  # of JAX's or PyTorch's: out of memory, most of all
        sys.exit(f"meshax: {type(error).__name__}: {str(error).partition(chr(10))[0]}")
    print(json.dumps(dataclasses.asdict(measurement)))
