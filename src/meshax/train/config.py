"""What a run of training is told, and what that means on this machine."""

import dataclasses
import json
import math
import tomllib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_origin

import jax

from ..errors import ArgumentError, TrainingError, did_you_mean
from ..layout import Layout
from ..mesh import Mesh
from ..models.contract import ModelConfig
from ..models.presets import preset
from ..models.recomputation import KEEP
from ..optim.clipping import Clipped, clipped
from ..optim.named_optimizers import by_name
from ..optim.schedules import by_name as schedule_by_name
from ..plan.cost.hardware import parse_bytes
from ..plan.search.named_layouts import find_layout
from ..program import put

CONFIG = "config.json"
_ADAFACTOR_RATE = 1e-2  # relative to the size of a parameter, so it suits any model
VIRTUAL = "data:2 model:4"  # the processors of a laptop
AUTO = "auto"  # of what the backward pass keeps: the most that fits


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

    name: str = "adamw"  # adamw, adafactor, momentum or sgd
    rate: float = 0.0  # the highest learning rate; 0: what suits the model
    schedule: str = "cosine"  # of the rate: constant, cosine, linear, rsqrt or slanted_triangular
    warmup: int = -1  # steps of rising rate; -1: a tenth of all
    clip: float = 1.0  # the greatest norm of the gradients; 0: any
    microbatches: int = 1  # parts of a batch, one after the other, to need less memory


@dataclass(frozen=True)
class TrainConfig:
    """A run of training."""

    preset: str = "tiny"  # the model: meshax presets lists them
    mesh: str = ""  # the processors; none: "data:2 model:4" virtual ones, or all accelerators there are
    layout: str = "data+model"  # rules, or a name: none, data, model, data+model, fsdp, sequence
    param_layout: str = ""  # rules added where parameters are stored
    optimizer_layout: str = ""  # rules added where the optimizer's state is stored
    out: str = ""  # the run's directory; none: runs/ and the preset's name
    steps: int = 600  # of the whole run; the learning rate depends on it
    seed: int = 0  # chooses the parameters, the order of the text and what is dropped
    batch: int = 0  # examples in a step; 0: the preset's
    length: int = 0  # tokens in an example; 0: the preset's
    dropout: float = 0.0  # the share of activations that are dropped
    # what the backward pass keeps: nothing, collectives, products, "all products", everything, or auto: what fits;
    # none: the preset's
    keep: str = ""
    memory: str = ""  # the bytes a processor may use, as in 16GB; none: what it has
    vocab: int = 0  # subwords at most, fewer if the text has no more; 0: the preset's
    dtype: str = ""  # of products: bfloat16, float16 or float32; none: the preset's
    data: DataOptions = field(default_factory=DataOptions)
    optimizer: OptimizerOptions = field(default_factory=OptimizerOptions)
    eval_every: int = 200  # steps
    eval_batches: int = 20  # during the run; the whole of the held-out text at its end
    save_every: int = 200  # steps
    keep_last: int = 2  # checkpoints
    keep_best: int = 1  # checkpoints beside them
    log_every: int = 10  # steps
    on_nan: str = "stop"  # or skip: what happens at a loss that is not a number
    spike: float = 0.0  # stop at a loss so many times the median of the last 50, once there are 10; 0: never
    profile: bool = False  # write a profile of a few steps for TensorBoard

    def model(self) -> ModelConfig:
        """Returns the model's configuration: the preset's, with what is asked for instead."""
        model = preset(self.preset).model
        names = [f.name for f in dataclasses.fields(model)]
        changes = self._asked_for(("keep", "vocab", "dtype", "dropout"), names)
        return replace(model, **{name: value for name, value in changes.items() if value != AUTO})

    def sizes(self) -> dict[str, int]:
        """Returns the sizes of the dims of a batch, by name: the preset's, with what is asked for instead."""
        sizes = preset(self.preset).batch
        return {**sizes, **self._asked_for(("batch", "length"), sizes)}

    def _asked_for(self, names: Sequence[str], known: Collection[str]) -> dict[str, Any]:
        """Returns the options among some that are not left to the preset, or raises if its model has no such thing."""
        options = {name: getattr(self, name) for name in names if getattr(self, name)}
        for name, value in options.items():
            if name not in known:
                raise ArgumentError(
                    f"{name} is {value!r}, and the model of the preset {self.preset!r} has none.",
                    fix="leave it out, or choose another preset.",
                )
        return options

    def placed(self) -> tuple[Mesh, Layout]:
        """Returns the mesh on this machine's devices, and the layout."""
        mesh = Mesh(self.mesh or (VIRTUAL if jax.default_backend() == "cpu" else "data:-1 model:1"))
        model = self.model()
        rules = self.layout, mesh, self.param_layout, self.optimizer_layout
        return mesh, find_layout(*rules, known=model.glossary, sizes=model.sizes())

    def make_optimizer(self) -> Clipped:
        """Returns the optimizer with its schedule; without a limit it clips nothing, and still knows the norm."""
        o = self.optimizer
        warmup = self.steps // 10 if o.warmup < 0 else o.warmup
        rate = schedule_by_name(o.schedule, o.rate or self._usual_rate(), self.steps, warmup)
        return clipped(by_name(o.name, rate), o.clip or math.inf)

    def _usual_rate(self) -> float:
        usual = {"adamw": preset(self.preset).rate, "adafactor": _ADAFACTOR_RATE}
        if self.optimizer.name not in usual:
            by_name(self.optimizer.name, 1.0)  # raises if there is no such optimizer
            raise ArgumentError(
                f"no learning rate suits the optimizer {self.optimizer.name!r} always.", fix="give optimizer.rate=."
            )
        return usual[self.optimizer.name]

    def directory(self) -> Path:
        """Returns the run's directory."""
        return Path(self.out or f"runs/{self.preset}").expanduser()

    def check(self) -> None:
        """Raises in the first second what would otherwise fail after an hour."""
        self._check_numbers()
        for name, known in (("on_nan", ("stop", "skip")), ("keep", ("", *KEEP, AUTO))):
            if getattr(self, name) not in known:
                *most, last = (f'"{word}"' for word in known if word)
                raise ArgumentError(f"{name} is {getattr(self, name)!r}.", fix=f"choose {', '.join(most)} or {last}.")
        self.make_optimizer()
        if self.memory:
            parse_bytes(self.memory)
        mesh, layout = self.placed()
        put((), mesh, layout)  # raises if they do not fit each other, or the model
        self._check_batch(mesh.count(dict(layout.rules).get("batch", ())))

    def _check_batch(self, processors: int) -> None:
        """Raises if a batch cannot be cut as the microbatches and the processors that split it ask."""
        batch, parts = self.sizes()["batch"], self.optimizer.microbatches
        if batch % parts:
            near = [n for n in range(1, batch + 1) if batch % n == 0]
            below, above = [n for n in near if n < parts], [n for n in near if n > parts]
            raise TrainingError(
                f"a batch of {batch} cannot be cut into {parts} microbatches.",
                rule="microbatches have one size.",
                fix=f"choose optimizer.microbatches={' or '.join(map(str, below[-1:] + above[:1]))}, "
                f"or batch={max(-(-batch // parts), processors) * parts}.",
            )
        if batch < processors * parts:
            raise TrainingError(
                f"a batch of {batch} is too small for this layout.",
                values=f"processors that split it: {processors}; microbatches: {parts}",
                rule="every processor has at least one example of each microbatch.",
                fix=f"choose batch={processors * parts} or a multiple of it.",
            )

    def _check_numbers(self) -> None:
        numbers = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        numbers |= {f"optimizer.{f.name}": getattr(self.optimizer, f.name) for f in dataclasses.fields(self.optimizer)}
        positive = ("steps", "eval_every", "save_every", "log_every", "eval_batches", "keep_last")
        least = dict.fromkeys((*positive, "optimizer.microbatches"), 1)
        least |= dict.fromkeys(("batch", "length", "vocab", "keep_best", "spike", "seed"), 0)
        least |= dict.fromkeys(("optimizer.rate", "optimizer.clip"), 0)
        least["optimizer.warmup"] = -1
        for name, number in least.items():
            if not (numbers[name] >= number and math.isfinite(numbers[name])):
                raise ArgumentError(f"{name} is {numbers[name]}.", fix=f"give a number, {number} or more.")
        if self.seed >= 2**32:
            raise ArgumentError(f"seed is {self.seed}.", fix="give a number below 2**32.")
        if "://" in self.out:
            raise ArgumentError(
                f"{self.out!r} is not a directory of this machine.", fix="mount it, or choose another out=."
            )

    def to_json(self) -> str:
        """Returns the configuration for `load_config`."""
        return json.dumps(dataclasses.asdict(self), indent=2)


def load_config(path: Path) -> TrainConfig:
    """Reads a configuration from a JSON or TOML file."""
    try:
        text = path.read_text(encoding="utf-8")
        data = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
        if not isinstance(data, dict):
            raise ValueError("it has no options")
    except (OSError, ValueError) as error:
        raise ArgumentError(
            f"{path.name!r} cannot be read as a configuration.",
            values=f"{path}: {getattr(error, 'strerror', None) or error}",
            fix="name a TOML or JSON file, such as the config.json of a run.",
        ) from error
    return _parsed(TrainConfig, data, path.name)


def _parsed(kind: Any, data: dict[str, Any], where: str, group: str = "") -> Any:
    known = {f.name: f for f in dataclasses.fields(kind)}
    values = {}
    for name, value in data.items():
        if name not in known:
            raise ArgumentError(
                f"{where} has an option {group + name!r} that there is not.", fix=did_you_mean(name, known)
            )
        wanted = known[name].type
        if dataclasses.is_dataclass(wanted) and isinstance(value, dict):
            value = _parsed(wanted, value, where, f"{name}.")
        if isinstance(value, list) and all(isinstance(one, str) for one in value):
            value = tuple(value)
        if wanted is float and type(value) is int:
            value = float(value)
        if type(value) is not (get_origin(wanted) or wanted):
            raise ArgumentError(
                f"{where} gives the option {group + name!r} a wrong value.",
                values=f"{value!r}",
                rule=f"it is like {getattr(kind(), name)!r}.",
                fix="correct it, or leave it out.",
            )
        values[name] = value
    return kind(**values)
