"""`meshax train`."""

import argparse
import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import arg

from ..train.options import AUTO, SHORT, VIRTUAL, TrainOptions, flat, read_options
from .compile_cache import keep_compiled_programs
from .joining import Joining
from .model_options import ModelGroup, ModelOptions, given_fields
from .options import UsageError, progress_console, same, usage


@dataclass(frozen=True)
class Options(TrainOptions):
    """The options of a run, with those names that Python has taken: --from, and --model.* in the place of a table."""

    model_: ModelGroup = field(default_factory=ModelOptions)
    # the directory of a run whose weights to start from: its model and vocabulary, with other data, at step 0
    from_: Annotated[str, arg(name="from")] = ""


@dataclass(kw_only=True)
class Train(Joining):
    """Trains a language model, from text to perplexity; run again, it goes on where it stopped.

    Without any options: the tiny model on the source of Python's standard library, on 8 virtual processors.

    meshax train

    meshax train --preset lm-0.14b --data.text "books/*.txt.gz" --mesh "data:8" --layout fsdp --out runs/books

    meshax train --model.d-model 256 --model.layers 4 --optimizer.weight-decay 0.1 --out runs/wider
    """

    config: Annotated[
        str,
        arg(
            metavar="FILE",
            help="Read options from a TOML, YAML or JSON file; those given here win.",
            help_behavior_hint="",
        ),
    ] = ""
    run_: Annotated[Options, arg(name="")] = field(default_factory=Options)
    from_file = TrainOptions()  # what --config has read: no field

    def options(self) -> TrainOptions:
        """Returns what to train: the file's options, those of the command line in their place."""
        asked, file = self.run_, self.from_file
        if file.model_ and asked.preset != file.preset:
            raise UsageError(
                f"{self.config} has a [model] of its own, for {file.preset!r}, and --preset is {asked.preset!r}.",
                fix="leave out --preset, or the fields of the model in the file.",
            )
        values = {one.name: getattr(asked, one.name) for one in fields(TrainOptions)}
        # What is given here counts, in the place of what the file calls otherwise: --vocab of its field of the model,
        # --model.vocab of its option by itself.
        here = {name for name in SHORT if getattr(asked, name) != getattr(file, name)}
        kept = {name: value for name, value in file.model_.items() if name not in here}
        model = given_fields(asked.model_)
        usual = {name: getattr(TrainOptions, name) for name in SHORT if name in model and name not in here}
        values |= usual | {"model_": kept | model}
        # What to keep may be found by meshax, which a model knows nothing of: --model.keep is --keep.
        if "keep" in model or kept.get("keep") == AUTO:
            values["keep"] = same("keep", values["keep"], values["model_"].pop("keep"))
        return TrainOptions(**values)

    def run(self) -> None:
        """Trains."""
        options = self.options()
        peers = self.join(options.mesh or VIRTUAL, lambda: _facts(options))
        from ..train.adapting import adapted
        from ..train.config import TrainConfig
        from ..train.evaluation import show_metric
        from ..train.loop import Run

        console = progress_console(quiet=not peers.is_first)
        config = adapted(TrainConfig.of(options), peers, console)
        with usage():
            config.check()
        keep_compiled_programs(console)
        run = Run(config, console)
        result = run.train()
        if peers.is_first:
            where, prompt = shlex.quote(str(run.directory)), "..." if options.data.text else "def "
            following = {
                "tokens": f'generate --run {where} --prompt "{prompt}"',
                "pairs": f"translate --run {where} --input FILE",
                "volumes": f"segment --run {where} VOLUME --out LABELS",
            }
            if run.model.batch_kind in following:
                words = f"next: meshax {following[run.model.batch_kind]}"
                console.print(words, highlight=False, markup=False, soft_wrap=True)
            data = json.loads((run.directory / "result.json").read_text(encoding="utf-8"))
            self.report(data, show_metric(*next(iter(result.metrics.items()))))
        peers.done()


def _facts(options: TrainOptions) -> dict[str, Any]:
    """Returns what has to be the same in all processes before they are connected."""
    from ..train.record import versions

    flags = {name: os.environ.get(name, "") for name in ("XLA_FLAGS", "JAX_ENABLE_X64", "JAX_DEFAULT_MATMUL_PRECISION")}
    facts = flat(json.loads(options.to_json())) | flat({"versions": versions()}) | flags
    return {name: value for name, value in facts.items() if value not in ("", None)}


def train_command(argv: Sequence[str]) -> type[Train]:
    """Returns the command with the defaults of the file that `--config` names: so any option given wins over it."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--config", nargs="?", action="append", default=[])
    paths = parser.parse_known_args(list(argv))[0].config
    if argv[:1] != ["train"] or not paths or not paths[-1]:
        return Train
    if len(paths) > 1:
        raise UsageError("--config is given twice.", fix="write all options into one file, or give some of them here.")
    path = paths[0]
    with usage():
        base = read_options(Path(path), TrainOptions)
    values = {one.name: getattr(base, one.name) for one in fields(base) if one.name != "model_"}

    @dataclass(kw_only=True)
    class FromFile(Train):
        __doc__ = Train.__doc__
        run_: Annotated[Options, arg(name="")] = field(default_factory=lambda: Options(**values))
        from_file = base

    return FromFile
