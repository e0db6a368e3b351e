"""`meshax train`."""

import argparse
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from ..train.options import VIRTUAL, TrainOptions, read_options
from .compile_cache import keep_compiled_programs
from .options import Reporting, progress_console, usage, use_processors


@dataclass(kw_only=True)
class Train(Reporting):
    """Trains a language model, from text to perplexity; run again, it goes on where it stopped.

    Without any options: the tiny model on the source of Python's standard library, on 8 virtual processors.

    meshax train

    meshax train --preset lm-0.14b --data.text "books/*.txt.gz" --mesh "data:8" --layout fsdp --out runs/books
    """

    config: Annotated[
        str,
        arg(metavar="FILE", help="Read options from a TOML or JSON file; those given here win.", help_behavior_hint=""),
    ] = ""
    run_: Annotated[TrainOptions, arg(name="")] = field(default_factory=TrainOptions)

    def run(self) -> None:
        """Trains."""
        use_processors(self.run_.mesh or VIRTUAL)
        from ..train.config import TrainConfig
        from ..train.evaluation import show_metric
        from ..train.loop import Run

        config = TrainConfig.of(self.run_)
        with usage():
            config.check()
        console = progress_console()
        keep_compiled_programs(console)
        run = Run(config, console)
        result = run.train()
        if run.model.batch_kind == "tokens":
            where, prompt = shlex.quote(str(run.directory)), "..." if self.run_.data.text else "def "
            console.print(f'next: meshax generate --run {where} --prompt "{prompt}"', highlight=False, markup=False)
        data = json.loads((run.directory / "result.json").read_text(encoding="utf-8"))
        self.report(data, show_metric(*next(iter(result.metrics.items()))))


def train_command(argv: Sequence[str]) -> type[Train]:
    """Returns the command with the defaults of the file that `--config` names: so any option given wins over it."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--config", nargs="?", default="")
    path = parser.parse_known_args(list(argv))[0].config
    if argv[:1] != ["train"] or not path:
        return Train
    with usage():
        base = read_options(Path(path), TrainOptions)

    @dataclass(kw_only=True)
    class FromFile(Train):
        __doc__ = Train.__doc__
        run_: Annotated[TrainOptions, arg(name="")] = field(default_factory=lambda: base)

    return FromFile
