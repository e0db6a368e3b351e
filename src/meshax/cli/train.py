"""`meshax train`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from ..train.config import DataOptions, OptimizerOptions, TrainConfig
from .options import Reporting, progress_console, usage, use_processors


@dataclass(kw_only=True)
class Train(Reporting):
    """Trains a language model, from text to perplexity; run again, it goes on where it stopped.

    Without any options: the tiny model on the source of Python's standard library, on 8 virtual processors. Examples:

    meshax train
    meshax train --preset lm-0.14b --data.text "books/*.txt.gz" --mesh "data:8" --layout fsdp --out runs/books
    """

    config: Annotated[
        str, arg(metavar="FILE", help="Read options from a TOML or JSON file; others given here win.")
    ] = ""
    run_: Annotated[TrainConfig, arg(name="")] = field(default_factory=TrainConfig)

    def run(self) -> None:
        """Trains."""
        from dataclasses import fields, replace

        from ..train.config import load_config

        config = self.run_
        if self.config:
            with usage():
                base, default = load_config(Path(self.config)), TrainConfig()
            given = {f.name: getattr(config, f.name) for f in fields(config) if getattr(config, f.name) != getattr(default, f.name)}
            config = replace(base, **given)
        use_processors(config.mesh)
        from ..train.loop import Run

        run = Run(config, progress_console())
        result = run.train()
        import json

        self.report(json.loads((run.directory / "result.json").read_text()), f"perplexity {result.perplexity:.2f}")


__all__ = ["DataOptions", "OptimizerOptions", "Train"]
