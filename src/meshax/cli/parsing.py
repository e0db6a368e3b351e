"""From a command line to a command: `tyro` reads it, and where it cannot, we say which option is nearest."""

import contextlib
import difflib
import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

import tyro

from ..errors import did_you_mean
from .options import Command, UsageError

_ABOUT = """One tensor program, one layout line, every collective visible before any hardware is rented.

meshax COMMAND --help explains a command, with an example; meshax --version says which meshax this is.
"""
Commands = Mapping[str, Any]  # a class, or further commands


def parse(commands: Commands, argv: Sequence[str]) -> Command:
    """Returns the command that is meant, or prints help or what is wrong, and raises `SystemExit`."""
    unheard = io.StringIO()
    try:
        with contextlib.redirect_stdout(unheard), contextlib.redirect_stderr(unheard):  # quiet tyro speaks of values
            return _read(commands, argv, quietly=True)
    except SystemExit:
        _check_names(commands, argv)
        return _read(commands, argv)


def _read(commands: Commands, argv: Sequence[str], quietly: bool = False) -> Command:
    return _application(commands).cli(
        prog="meshax",
        description=_ABOUT,
        args=list(argv),
        console_outputs=not quietly,
        config=(tyro.conf.FlagCreatePairsOff,),  # no --no-json beside --json
    )


def _application(commands: Commands) -> tyro.extras.SubcommandApp:
    application = tyro.extras.SubcommandApp()
    for name, command in commands.items():
        if isinstance(command, Mapping):
            application.command(_application(command), name=name, help="Measures a training step, or this machine.")
        else:
            application.command(name=name)(command)
    return application


def _check_names(commands: Commands, argv: Sequence[str]) -> None:
    """Raises if the command, or an option of it, does not exist."""
    path: list[str] = []
    known = commands
    for word in argv:
        if word.startswith("-"):
            return
        if word not in known:
            raise UsageError(f"there is no command {' '.join([*path, word])!r}.", fix=did_you_mean(word, known))
        path.append(word)
        if not isinstance(known[word], Mapping):
            break
        known = known[word]
    else:
        return
    options = _options(commands, path)
    names = [word.partition("=")[0].replace("_", "-") for word in argv if re.match(r"--\w", word)]
    for option in names:
        if option not in options:
            near = _nearest(option, options)
            raise UsageError(
                f"there is no option {option}.",
                fix=(f"did you mean {' or '.join(near)}? " if near else "")
                + f"meshax {' '.join(path)} --help lists them all.",
            )


def _options(commands: Commands, path: Sequence[str]) -> set[str]:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        _read(commands, [*path, "--help"])
    return set(re.findall(r"--[\w.-]*\w", shown.getvalue()))


def _nearest(option: str, options: set[str]) -> list[str]:
    """Returns the options that are spelled nearly so, also without their group: --text for --data.text."""
    forms = {form: one for one in sorted(options) for form in (one, f"--{one.removeprefix('--').rpartition('.')[2]}")}
    return list(dict.fromkeys(forms[form] for form in difflib.get_close_matches(option, forms, n=2, cutoff=0.75)))
