"""What a run of training is told, and what that means on this machine."""

import dataclasses
import json
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..errors import ArgumentError, TrainingError, did_you_mean
from ..layout import Layout
from ..mesh import Mesh
from ..models.decoder import DecoderConfig
from ..models.presets import preset
from ..plan.named_layouts import find_layout

CONFIG = "config.json"


@dataclass(frozen=True)
class DataOptions:
    """The text to learn from."""

    text: tuple[str, ...] = ()  # files or globs; none: the source of Python's standard library
    held_out: tuple[str, ...] = ()  # files to evaluate on; none: a twentieth of the text
    lines: bool = False  # whether each line is a document, as in LM1B's files
    vocabulary: str = ""  # a vocabulary file; none: one is trained from the text
    cache: str = ""  # where tokens are kept; none: in the run's directory


@dataclass(frozen=True)
class OptimizerOptions:
    """How parameters are changed."""

    name: str = "adamw"
    rate: float = 3e-3
    schedule: str = "cosine"
    warmup: int = -1  # steps of rising rate; -1: a tenth of all
    clip: float = 1.0
    microbatches: int = 1


@dataclass(frozen=True)
class TrainConfig:
    """A run of training."""

    preset: str = "tiny"
    mesh: str = "data:2 model:4"
    layout: str = "data+model"
    param_layout: str = ""
    optimizer_layout: str = ""
    out: str = "runs/tiny"
    steps: int = 600
    seed: int = 0
    batch: int = 0  # examples in a step; 0: the preset's
    length: int = 0  # tokens in an example; 0: the preset's
    dropout: float = 0.0
    keep: str = ""  # what the backward pass keeps; none: the preset's
    vocab: int = 0  # subwords; 0: the preset's
    dtype: str = ""  # of products; none: the preset's
    data: DataOptions = field(default_factory=DataOptions)
    optimizer: OptimizerOptions = field(default_factory=OptimizerOptions)
    eval_every: int = 200
    eval_batches: int = 20  # during the run; the whole of the held-out text at its end
    save_every: int = 200
    keep_last: int = 2
    keep_best: int = 1
    log_every: int = 10
    on_nan: str = "stop"
    spike: float = 0.0
    profile: bool = False

    def model(self) -> DecoderConfig:
        """Returns the model's configuration: the preset's, with what was given instead."""
        given = {"keep": self.keep, "vocab": self.vocab, "dtype": self.dtype, "dropout": self.dropout}
        return replace(preset(self.preset).model, **{name: value for name, value in given.items() if value})

    def sizes(self) -> tuple[int, int]:
        """Returns the examples in a step and the tokens in an example."""
        chosen = preset(self.preset)
        return self.batch or chosen.batch, self.length or chosen.length

    def placed(self) -> tuple[Mesh, Layout]:
        """Returns the mesh on this machine's devices, and the layout."""
        mesh = Mesh(self.mesh)
        self.model().dims()  # a layout may name these
        return mesh, find_layout(self.layout, mesh, self.param_layout, self.optimizer_layout)

    def check(self) -> None:
        """Raises in the first second what would otherwise fail after an hour."""
        batch, _ = self.sizes()
        for name in ("steps", "eval_every", "save_every", "log_every", "eval_batches"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"{name} is {getattr(self, name)}.", fix="give a positive number.")
        if self.on_nan not in ("stop", "skip"):
            raise ArgumentError(f"on_nan is {self.on_nan!r}.", fix='choose "stop" or "skip".')
        mesh, layout = self.placed()
        processors = mesh.count(dict(layout.rules).get("batch", ()))
        parts = self.optimizer.microbatches
        if batch < processors * parts or batch % parts:
            raise TrainingError(
                f"a batch of {batch} is too small for this layout.",
                values=f"{processors} processors split it, into {parts} microbatches each; {layout} on {mesh}",
                rule="every processor has at least one example of each microbatch.",
                fix=f"choose --batch {processors * parts} or a multiple of it.",
            )

    def to_json(self) -> str:
        """Returns the configuration for `load_config`."""
        return json.dumps(dataclasses.asdict(self), indent=2)


def load_config(path: Path) -> TrainConfig:
    """Reads a configuration from a JSON or TOML file."""
    try:
        text = path.read_text(encoding="utf-8")
        data = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (OSError, ValueError) as error:
        raise ArgumentError(f"{path.name!r} cannot be read as a configuration.", values=f"{error}") from error
    return _made(TrainConfig, data, path.name)


def _made(kind: Any, data: dict[str, Any], where: str) -> Any:
    known = {f.name: f for f in dataclasses.fields(kind)}
    for name, value in data.items():
        if name not in known:
            raise ArgumentError(f"{where} has an option {name!r} that there is not.", fix=did_you_mean(name, known))
        if isinstance(value, dict):
            nested = {"data": DataOptions, "optimizer": OptimizerOptions}[name]
            data = {**data, name: _made(nested, value, where)}
        elif isinstance(value, list):
            data = {**data, name: tuple(value)}
    return kind(**data)
