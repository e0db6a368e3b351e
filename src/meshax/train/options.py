"""What a run of training is told: plain values, so that the help of the command line needs no JAX."""

import dataclasses
import json
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

from ..errors import ArgumentError, did_you_mean
from .text_options import DataOptions

CONFIG = "config.json"
VIRTUAL = "data:2 model:4"  # the processors of a laptop
AUTO = "auto"  # of what the backward pass keeps: the most that fits
T = TypeVar("T", bound="TrainOptions")


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
class TrainOptions:
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
    # none: auto on accelerators, on CPUs the preset's
    keep: str = ""
    layers_as: str = ""  # loop, unrolled, or auto: as suits depth and device; none: the preset's
    compiler_options: tuple[str, ...] = ()  # XLA's flags for a step, beside those found fastest: xla_...=true
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

    def to_json(self) -> str:
        """Returns the configuration for `read_options`."""
        return json.dumps(dataclasses.asdict(self), indent=2)


def read_options(path: Path, kind: type[T]) -> T:
    """Reads options of some kind from a JSON or TOML file."""
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
    return _parsed(kind, data, path.name)


def _tuple_of(kinds: tuple[Any, ...], values: list[Any]) -> Any:
    """Returns a list as a tuple of texts or of numbers, or as it is if it holds something else."""
    if kinds == (float,):
        values = [float(value) if type(value) is int else value for value in values]
    return tuple(values) if all(type(value) in kinds for value in values) else values


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
        if isinstance(value, list):
            value = _tuple_of(get_args(wanted)[:1], value)
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
