"""The command `meshax`.

Each command is a dataclass in a module of its own: its fields are the options, its docstring the help, `run` does it.
Standard output has the answer and nothing else; progress, warnings and errors go to standard error. The exit status is
0 when done, 2 for a command line that is wrong in itself, 130 after Ctrl-C, 1 for anything else that failed.
"""

import contextlib
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import tyro

from ..errors import MeshaxError
from ..plan.worker import user_notes
from .calibrate import Calibrate
from .evaluate import Evaluate
from .explain import Explain
from .generate import Generate
from .layout import FindLayout
from .options import Command, UsageError
from .plan import MakePlan
from .presets import Presets
from .train import Train, train_command

_BENCH = {"calibrate": Calibrate}
_COMMANDS = {
    "train": Train,
    "eval": Evaluate,
    "generate": Generate,
    "presets": Presets,
    "explain": Explain,
    "plan": MakePlan,
    "layout": FindLayout,
}
_ABOUT = """One tensor program, one layout line, every collective visible before any hardware is rented.

meshax COMMAND --help explains a command, with an example.
"""


def _application(argv: Sequence[str]) -> tyro.extras.SubcommandApp:
    application, bench = tyro.extras.SubcommandApp(), tyro.extras.SubcommandApp()
    for name, command in {**_COMMANDS, "train": train_command(argv)}.items():
        application.command(name=name)(command)
    for name, command in _BENCH.items():
        bench.command(name=name)(command)
    application.command(bench, name="bench", help="Measures this machine.")
    return application


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line, by default the process's own, and returns its exit status."""
    command: Command | None = None
    argv = sys.argv[1:] if argv is None else list(argv)
    try:
        command = _application(argv).cli(
            prog="meshax",
            description=_ABOUT,
            args=argv,
            config=(tyro.conf.FlagCreatePairsOff,),  # no --no-json beside --json
        )
        command.run()
        sys.stdout.flush()
        return 0
    except SystemExit as done:  # tyro has printed the help, or what is wrong
        return done.code if isinstance(done.code, int) else 2
    except KeyboardInterrupt:
        return _failed("interrupted", 130)
    except BrokenPipeError:  # whoever reads our output has seen enough
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if command is not None and command.debug:
            traceback.print_exc()
            return 2 if isinstance(error, UsageError) else 1
        return _failed(_words(error), 2 if isinstance(error, UsageError) else 1)


def _failed(words: str, status: int) -> int:
    print(f"meshax: {words}", file=sys.stderr)
    return status


def _words(error: Exception) -> str:
    """Returns what to say of an error: ours as they are, with the user's line; of others their first line."""
    if isinstance(error, MeshaxError):
        return "\n".join([str(error), *user_notes(error, Path(sys.argv[0]).name)])
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first} (--debug shows where)"
