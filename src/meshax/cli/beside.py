"""What the commands that measure share: programs by hand beside ours, what is told meanwhile, and tables."""

import importlib.util
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from tyro.conf import arg

from ..errors import MeshaxError
from .options import UsageError, progress_console

if TYPE_CHECKING:
    from ..bench.turns import Say

M = TypeVar("M")

BesideOption = Annotated[
    tuple[str, ...],
    arg(metavar="PROGRAM", help="Measure in turns with the same model by hand: jax, torch, or both."),
]
LimitOption = Annotated[
    float, arg(metavar="SECONDS", help="With --beside: end a program that takes longer in a turn; 0: none.")
]


def listed(words: tuple[str, ...]) -> tuple[str, ...]:
    """Returns words that stand beside each other, or between commas."""
    return tuple(part for word in words for part in word.split(",") if part)


def check_beside(beside: tuple[str, ...], mesh: str, limit: float) -> None:
    """Raises if there are no such programs by hand, or no such meshes for them."""
    if unknown := [name for name in beside if name not in ("jax", "torch")]:
        raise UsageError(f"there is no program {unknown[0]!r}.", fix="choose jax, torch, or both.")
    if "torch" in beside and importlib.util.find_spec("torch") is None:
        raise UsageError("PyTorch is not installed here.", fix="pip install torch, or leave it out.")
    if beside and mesh:
        raise UsageError("programs by hand run on one processor.", fix="leave out --mesh, or --beside.")
    if not limit >= 0 or (limit and not beside):
        why = "a limit is a number of seconds, and of programs in processes of their own."
        raise UsageError(f"--limit is {limit:g}.", rule=why, fix="leave it out, or give seconds, and --beside.")


def measured_beside(
    beside: tuple[str, ...], what: str, alone: "Callable[[Say], M]", in_turns: "Callable[..., Iterator[M]]"
) -> "tuple[dict[str, list[M]], MeshaxError | None]":
    """Measures ours alone, or in turns with others; returns the measurements by program, and what failed.

    Args:
        beside: the others.
        what: is measured, in words.
        alone: measures ours in this process.
        in_turns: yields measurements of several programs; raises at the end if one failed.
    """
    measured: dict[str, list[M]] = {}
    console, failure = progress_console(), None
    with console.status(what) as status:

        def say(words: str) -> None:  # in the one line of a terminal, or in the lines of a file
            if console.is_terminal:
                status.update(f"{what}. {words}")
            else:
                console.print(words, highlight=False, markup=False, soft_wrap=True)

        try:
            for one in in_turns(("meshax", *beside), say) if beside else [alone(say)]:
                ran: Any = one
                measured.setdefault(ran.program, []).append(one)
                say(f"{ran.program}: {ran.seconds * 1e3:.3f} ms")
        except MeshaxError as error:
            failure = error  # what was measured is worth reporting all the same
    return measured, failure


def table(rows: list[list[Any]]) -> list[str]:
    """Returns lines in columns; where the terminal is narrower, a line for each row."""
    from ..plan.printing.terminal import fitted_lines, terminal_width

    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    if (columns := terminal_width()) is not None and sum(widths) + 2 * len(widths[1:]) > columns:
        cells = ((row[0], zip(rows[0][1:], row[1:], strict=True)) for row in rows[1:])
        records = (f"{first}: {', '.join(map(' '.join, pairs))}" for first, pairs in cells)
        return fitted_lines("\n".join(records), columns).splitlines()
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
