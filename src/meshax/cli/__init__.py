"""The command `meshax`.

Each command is a dataclass in a module of its own: its fields are the options, its docstring the help, `run` does it.
Standard output has the answer and nothing else; progress, warnings and errors go to standard error. The exit status is
0 when done, 2 for a command line that is wrong in itself, 130 after Ctrl-C, 143 after SIGTERM, 1 for anything else that
failed; of several processes, 69 if another one failed, and 70 if a step hung.
"""

import contextlib
import io
import os
import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .. import __version__, interrupts
from ..launch.peers import FROM_OTHERS, current

if TYPE_CHECKING:
    from .options import Command


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line, by default the process's own, and returns its exit status."""
    if argv is None:
        interrupts.end_on_signals()
    argv = sys.argv[1:] if argv is None else list(argv)
    if argv == ["--version"]:
        print(f"meshax {__version__}")
        return 0
    from .commands import parse_command  # not before signals are waited for: it takes a second
    from .options import UsageError
    from .words import words_for

    command: Command | None = None
    _show_everything()
    try:
        command = parse_command(argv)
        command.run()
        sys.stdout.flush()
        return 0
    except SystemExit as done:  # tyro has printed the help, or what is wrong
        return done.code if isinstance(done.code, int) else 2
    except KeyboardInterrupt as interrupt:
        status = interrupt.status if isinstance(interrupt, interrupts.Stopped) else 130
        if isinstance(interrupt, interrupts.Stopped):
            current().done()  # all processes have stopped at the same place
        return interrupts.end(_failed("interrupted", status))
    except BrokenPipeError:  # whoever reads our output has seen enough
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        status, words = 2 if isinstance(error, UsageError) else 1, words_for(error, command)
        if type(error).__name__ in FROM_OTHERS:
            current().find_cause()
        if command is not None and command.debug:
            traceback.print_exc()
        else:
            _failed(words, status)
        current().fail(words.partition("\n")[0], status)
        return status if current().processes == 1 else interrupts.end(status)  # JAX would wait for the others


def _show_everything() -> None:
    """Makes streams escape what their encoding has no character for, where an error would lose the answer."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _failed(words: str, status: int) -> int:
    print(f"meshax: {words}", file=sys.stderr)
    return status
