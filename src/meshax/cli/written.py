"""What the commands that write and judge text share: the model of a run, and its words."""

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import arg

from ..interrupts import finishing
from .compile_cache import keep_compiled_programs
from .options import Reporting, UsageError, progress_console, step_of, use_processors

if TYPE_CHECKING:
    from rich.console import Console

    from ..data.vocabulary import Vocabulary
    from ..interrupts import Finishing
    from ..layout import Layout
    from ..mesh import Mesh
    from ..train.loop import Run

_NOT_SO = {"tokens": "writes no text", "pairs": "does not translate", "volumes": "does not segment"}


@dataclass(frozen=True)
class Restored:
    """A trained language model, where it is placed, and its words."""

    model: Any
    mesh: "Mesh"
    layout: "Layout"
    words: "Vocabulary"
    length: int  # of the examples it was trained on
    console: "Console"
    work: "Finishing"


@dataclass(kw_only=True)
class OnTrained(Reporting):
    """A command about a trained language model."""

    run_: Annotated[str, arg(name="run", metavar="DIR", help="The directory that meshax train or import wrote.")] = (
        "runs/tiny"
    )
    step: Annotated[str, arg(metavar="STEP", help="A step, latest or best.")] = "latest"
    average: Annotated[bool, arg(help="The moving average of the weights, if training kept one.")] = False
    mesh: Annotated[str, arg(metavar="AXES", help="Other processors than it was trained on.")] = ""
    layout: Annotated[str, arg(metavar="RULES", help="Another layout than it was trained under.")] = ""

    @contextlib.contextmanager
    def restored(self) -> Iterator[Restored]:
        """Restores a language model, and its words."""
        with self.restored_run("tokens", "name the run of a language model.") as (run, model, work):
            from ..data.vocabulary import Vocabulary
            from ..train.corpus import VOCABULARY

            words = Vocabulary.load(run.directory / VOCABULARY)
            yield Restored(model, run.mesh, run.layout, words, run.sizes["length"], run.console, work)

    @contextlib.contextmanager
    def restored_run(self, kind: str, fix: str) -> Iterator[tuple["Run", Any, "Finishing"]]:
        """Restores the model of a run that learns from a kind of examples; of another kind, it says what to name."""
        step = step_of(self.step)
        from ..train.loop import Run, run_config
        from ..train.options import VIRTUAL

        config = run_config(self.run_, mesh=self.mesh, layout=self.layout)
        use_processors(config.mesh or VIRTUAL)
        console = progress_console()
        keep_compiled_programs(console)
        run = Run(config, console, read_only=True)
        if run.model.batch_kind != kind:
            raise UsageError(f"the model in {self.run_!r} {_NOT_SO[kind]}.", fix=fix)
        with finishing("finishing what is being written") as work:
            state, _ = run.restored(step, self.average)
            yield run, state.model, work


def read_lines(path: str, kind: str) -> list[str]:
    """Returns the lines of a file of UTF-8, or of standard input for "-"; only a line feed ends one."""
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        lines = data.decode().split("\n")
    except OSError as error:
        raise UsageError(
            f"the {kind} cannot be read.", values=f"{path}: {error.strerror}", fix="name a file."
        ) from None
    except UnicodeDecodeError:
        raise UsageError(f"the {kind} are not UTF-8.", values=path, fix="convert them with iconv -t utf-8.") from None
    return lines[:-1] if lines[-1] == "" else lines
