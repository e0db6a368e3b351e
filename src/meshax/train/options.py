"""What a run of training is told: plain values, so that the help of the command line needs no JAX.

A name that Python has taken has an underscore after it, here only: `from_` is `from` in files, and `--from`.
"""

import dataclasses
import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin

from ..errors import ArgumentError, did_you_mean
from ..models.fields import NONE
from .text_options import DataOptions
from .yaml import read_yaml

CONFIG = "config.json"
RECORD = ("run", "versions", "history")  # what the configuration of a run says beside its options
VIRTUAL = "data:2 model:4"  # the processors of a laptop
SHORT = ("keep", "vocab", "dtype", "dropout", "layers_as")  # fields of the model that are options by themselves
AUTO = "auto"  # of what the backward pass keeps: the most that fits
T = TypeVar("T", bound="TrainOptions")
_READ: dict[str, Callable[[str], Any]] = {".toml": tomllib.loads, ".yaml": read_yaml, ".yml": read_yaml}


@dataclass(frozen=True)
class OptimizerOptions:
    """How parameters are changed."""

    name: str = ""  # adamw, adafactor, momentum or sgd; none: the preset's, most have adamw
    rate: float = 0.0  # the highest learning rate; 0: what suits the model
    # of the rate: constant, cosine, linear, paper, rsqrt or slanted_triangular; none: the preset's, most have cosine
    schedule: str = ""
    warmup: int = -1  # steps of rising rate; -1: the preset's share, of most a tenth of all
    cooldown: int = -1  # of the schedule "paper": the last steps, in which the rate falls to 0; -1: the preset's share
    min_rate: float = 0.0  # the lowest rate after the warm-up: what a schedule falls to
    clip: float = -1.0  # the greatest norm of the gradients; 0: any; -1: the preset's, most have 1
    # whether a loss is divided by all places of a batch, padding too, or by those that count; none: the preset's
    count_padding: bool | None = None
    # what a moving average of the weights keeps of itself in a step, as in 0.999; 0: there is none
    average: float = 0.0
    microbatches: int = 1  # parts of a batch, one after the other, to need less memory
    # what an update takes away of a parameter: with adamw, sgd and momentum this times the rate, with adafactor this;
    # none: 1e-4 with adamw, else nothing
    weight_decay: float | None = None
    decay_skips: tuple[str, ...] = ("norm", "bias")  # weight decay leaves parameters alone that are called so
    beta1: float | None = None  # of adamw: the decay of the mean of gradients; none: 0.9
    beta2: float | None = None  # of adamw: the decay of the mean of their squares; none: 0.999
    epsilon: float | None = None  # what divisors are kept from 0 by; none: 1e-8 with adamw, 1e-30 with adafactor
    momentum: float | None = None  # the decay of a mean of updates; none: 0.9 with momentum, else there is none
    decay_exponent: float | None = None  # of adafactor: how slowly it forgets, 1 - step ** -this; none: 0.8


@dataclass(frozen=True)
class TrainOptions:
    """A run of training."""

    preset: str = "tiny"  # the model: meshax presets lists them; or a kind of model, to give it all fields: decoder
    # fields of the model's configuration, instead of the preset's
    model_: dict[str, Any] = field(default_factory=dict)
    # the directory of a run whose weights to start from: its model and vocabulary, with other data, at step 0
    from_: str = ""
    # the processors; none: "data:2 model:4" virtual ones, or all accelerators there are; auto: a search finds mesh and
    # layout for all there are
    mesh: str = ""
    layout: str = "data+model"  # rules, or a name: none, data, model, data+model, fsdp, sequence
    param_layout: str = ""  # rules added where parameters are stored
    optimizer_layout: str = ""  # rules added where the optimizer's state is stored
    rings: str = ""  # axes around which linear maps and stored parameters send blocks, rather than gather them
    out: str = ""  # the run's directory; none: runs/ and the preset's name
    steps: int = 0  # of the whole run; the learning rate depends on it; 0: the preset's, most have 600
    seed: int = 0  # chooses the parameters, the order of the text and what is dropped
    batch: int = 0  # examples in a step; 0: the preset's
    length: int = 0  # tokens in an example; 0: the preset's
    source_length: int = 0  # tokens of the sources in an example, of a model that translates; 0: the preset's
    voxels: tuple[int, ...] = ()  # of an example along each side, or one number for all; none: the preset's
    dropout: float | None = None  # the share of activations that are dropped; none: the preset's
    # what the backward pass keeps: nothing, collectives, products, "all products", everything, or auto: what fits;
    # none: auto on accelerators, on CPUs the preset's
    keep: str = ""
    layers_as: str = ""  # loop, unrolled, or auto: as suits depth and device; none: the preset's
    compiler_options: tuple[str, ...] = ()  # XLA's flags for a step, beside those found fastest: xla_...=true
    overlap: bool = False  # whether collectives run beside computation, where a compiler can: it changes no result
    memory: str = ""  # the bytes a processor may use, as in 16GB; none: what it has
    vocab: int = 0  # subwords at most, fewer if the text has no more; 0: the preset's
    dtype: str = ""  # of products: bfloat16, float16 or float32; none: the preset's
    data: DataOptions = field(default_factory=DataOptions)
    optimizer: OptimizerOptions = field(default_factory=OptimizerOptions)
    eval_every: int = 200  # steps
    eval_batches: int = 20  # during the run; the whole of the held-out text at its end
    translations: int = 500  # of held-out sources, at the end of a run that translates, for BLEU; 0: none
    save_every: int = 200  # steps
    keep_last: int = 2  # checkpoints
    keep_best: int = 1  # checkpoints beside them
    log_every: int = 10  # steps
    track: str = ""  # a service that gets the metrics as well: wandb
    on_nan: str = "stop"  # or skip: what happens at a loss that is not a number
    on_damage: str = "stop"  # or previous: what happens if the newest checkpoint is damaged; the one before is taken
    spike: float = 0.0  # stop at a loss so many times the median of the last 50, once there are 10; 0: never
    profile: bool = False  # write a profile of a few steps for TensorBoard

    def as_dict(self) -> dict[str, Any]:
        """Returns the options as plain data, as files have them."""
        return {name.rstrip("_"): value for name, value in dataclasses.asdict(self).items()}

    def to_json(self, **record: Any) -> str:
        """Returns the configuration for `read_options`, and what else is to be known of a run."""
        return json.dumps(self.as_dict() | record, indent=2)


def flat(options: Mapping[str, Any], group: str = "") -> dict[str, Any]:
    """Returns plain data with the names that options have in messages: `optimizer.rate`."""
    named: dict[str, Any] = {}
    for name, value in options.items():
        named |= flat(value, f"{group}{name}.") if isinstance(value, dict) else {group + name: value}
    return named


def read_options(path: Path, kind: type[T]) -> T:
    """Reads options of some kind from a TOML, YAML or JSON file."""
    try:
        data = _READ.get(path.suffix, json.loads)(path.read_text(encoding="utf-8"))
        if not isinstance(data, dict):
            raise ValueError("it has no options")
    except (OSError, ValueError) as error:
        raise ArgumentError(
            f"{(path.name or str(path))!r} cannot be read as a configuration.",
            values=f"{path}: {getattr(error, 'strerror', None) or error}",
            fix="name a TOML, YAML or JSON file, such as the config.toml of a run.",
        ) from error
    if data.keys() & {*RECORD} and isinstance(data.get("model"), dict):
        # A run wrote it, and its model has all fields; earlier versions wrote others where none were asked for.
        data = {name: value for name, value in data.items() if name not in data["model"] or value == AUTO}
    return _parsed(kind, {name: value for name, value in data.items() if name not in RECORD}, path.name)


def _tuple_of(kinds: tuple[Any, ...], values: list[Any]) -> Any:
    """Returns a list as a tuple of texts or of numbers, or as it is if it holds something else."""
    if kinds == (float,):
        values = [float(value) if type(value) is int else value for value in values]
    return tuple(values) if all(type(value) in kinds for value in values) else values


def _parsed(kind: Any, data: dict[str, Any], where: str, group: str = "") -> Any:
    known = {f.name.rstrip("_"): f for f in dataclasses.fields(kind)}
    values = {}
    for name, value in data.items():
        if name not in known:
            raise ArgumentError(
                f"{where} has an option {group + name!r} that there is not.", fix=did_you_mean(name, known)
            )
        wanted: Any = known[name].type
        if dataclasses.is_dataclass(wanted) and isinstance(value, dict):
            value = _parsed(wanted, value, where, f"{name}.")
        if isinstance(value, list):
            value = _tuple_of(get_args(wanted)[:1], value)
        if value == NONE and isinstance(wanted, UnionType):
            value = None
        kinds = get_args(wanted) if isinstance(wanted, UnionType) else (get_origin(wanted) or wanted,)
        if float in kinds and type(value) is int:
            value = float(value)
        if type(value) not in kinds:
            raise ArgumentError(
                f"{where} gives the option {group + name!r} a wrong value.",
                values=f"{value!r}",
                rule=f"it is {_described(kind, known[name])}.",
                fix="correct it, or leave it out.",
            )
        values[known[name].name] = value
    return kind(**values)


def _described(kind: Any, one: Any) -> str:
    if isinstance(one.type, UnionType):
        return f"a number, or {NONE}"
    if get_origin(one.type) is tuple:
        return "a list of numbers" if {float, int} & {*get_args(one.type)} else 'a list of texts, as in ["a", "b"]'
    if dataclasses.is_dataclass(one.type) or get_origin(one.type) is dict:
        return f"a table, [{one.name.rstrip('_')}]"
    return f"like {getattr(kind(), one.name)!r}"
