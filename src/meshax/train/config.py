"""What the options of a run of training mean on this machine, and what is wrong with them."""

import dataclasses
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self, cast

import jax

from ..errors import ArgumentError, TrainingError
from ..layout import Layout
from ..mesh import Mesh
from ..models.contract import ModelConfig, Preset
from ..models.fields import with_fields
from ..models.presets import batch_sizes, preset
from ..models.recomputation import KEEP
from ..optim.averaging import averaged
from ..optim.clipping import Clipped, clipped
from ..optim.named_optimizers import by_name
from ..optim.schedules import Schedule
from ..optim.schedules import by_name as schedule_by_name
from ..plan.cost.hardware import parse_bytes
from ..plan.search.named_layouts import find_layout
from ..program import put
from .options import AUTO, CONFIG, SHORT, VIRTUAL, TrainOptions, read_options
from .step import check_compiler_options, compiler_options
from .tracking import check_tracker

_ADAFACTOR_RATE = 1e-2  # relative to the size of a parameter, so it suits any model
_OPTIMIZER = ("weight_decay", "decay_skips", "beta1", "beta2", "epsilon", "momentum", "decay_exponent")


@dataclass(frozen=True)
class TrainConfig(TrainOptions):
    """A run of training."""

    @classmethod
    def of(cls, options: TrainOptions) -> Self:
        """Returns the run that has these options."""
        return cls(**{f.name: getattr(options, f.name) for f in dataclasses.fields(options)})

    def _preset(self) -> Preset:
        """Returns what the run starts from: a preset, or the model and the sizes of another run.

        A run that has begun knows them itself, whatever has become of the other one.
        """
        if not self.from_:
            return preset(self.preset)
        own = self.directory()
        source = run_config(own if (own / CONFIG).exists() else self.from_)
        usual = preset(source.preset)
        batch = {name: getattr(source, name, 0) or size for name, size in usual.batch.items()}
        batch |= source._voxel_sizes(usual)
        o = source.optimizer
        rate = o.rate if o.name in ("", "adamw") and o.rate else usual.rate
        return replace(usual, model=source.model(), batch=batch, rate=rate)

    def model(self) -> ModelConfig:
        """Returns the model's configuration: the preset's, with what is asked for instead."""
        model = with_fields(self._preset().model, self.model_)
        for name in SHORT:
            value = getattr(self, name)
            if value == type(self).__dataclass_fields__[name].default:
                continue
            if name not in model.__dataclass_fields__:
                raise ArgumentError(
                    f"{name} is {value!r}, and the model of the preset {self._preset().name!r} has none.",
                    fix="leave it out, or choose another preset.",
                )
            asked = model if (name, value) == ("keep", AUTO) else with_fields(model, {name: value})
            if name in self.model_ and asked != model:
                raise ArgumentError(
                    f"{name} is {value!r}, and model.{name} is {self.model_[name]!r}.", fix="leave one of them out."
                )
            model = asked
        return self._with_own_words(model)

    def _with_own_words(self, model: ModelConfig) -> ModelConfig:
        """Returns the model with an embedding for the subwords of sources, if they have subwords of their own."""
        name = "source_embedding"
        if not self.data.separate or model.batch_kind != "pairs":
            return model
        asked = with_fields(model, {name: True})
        if name in self.model_ and asked != model:
            raise ArgumentError(
                f"data.separate is True, and model.{name} is {self.model_[name]!r}.",
                rule="subwords of one embedding are of one vocabulary.",
                fix="leave one of them out.",
            )
        return asked

    def sizes(self) -> dict[str, int]:
        """Returns the sizes of the dims of a batch, by name: the preset's, with what is asked for instead."""
        asked = {"batch": self.batch, "length": self.length, "source_length": self.source_length}
        return batch_sizes(self._preset(), asked | self._voxel_sizes(self._preset()))

    def _voxel_sizes(self, chosen: Preset) -> dict[str, int]:
        """Returns the sizes of the sides of an example that are asked for, by name."""
        names = [name for name in chosen.batch if name not in type(self).__dataclass_fields__]
        if self.voxels and (not names or len(self.voxels) not in {1, len(names)}):
            raise ArgumentError(
                f"voxels is {' '.join(map(str, self.voxels))}.",
                rule=f"the sides of an example are {', '.join(names)}." if names else "an example has none.",
                fix="give a number for each, or one for all."
                if names
                else "leave it out, or choose a model of volumes.",
            )
        return dict(zip(names, self.voxels * len(names) if len(self.voxels) == 1 else self.voxels, strict=False))

    def resolved(self) -> Self:
        """Returns the same run with all that follows from the preset and the number of steps written out.

        What this machine decides, such as the mesh where none is named, stays open: a run may go on elsewhere.
        """
        model: Any = self.model()
        fields: dict[str, Any] = {name: type(self).__dataclass_fields__[name].default for name in SHORT}
        if self.keep == AUTO:
            fields["keep"] = AUTO
        options = type(self).__dataclass_fields__
        fields |= {name: size for name, size in self.sizes().items() if name in options}
        fields["voxels"] = tuple(size for name, size in self.sizes().items() if name not in options)
        whole = self.filled()
        optimizer = replace(whole.optimizer, rate=whole._peak())
        return replace(whole, preset=self._preset().name, model_=asdict(model), optimizer=optimizer, **fields)

    def filled(self) -> Self:
        """Returns the same run, with the preset's recipe where nothing else is asked for."""
        recipe, o = self._preset().recipe, self.optimizer
        steps = self.steps or recipe.steps
        optimizer = replace(
            o,
            name=o.name or recipe.optimizer,
            schedule=o.schedule or recipe.schedule,
            warmup=recipe.warmup * steps // recipe.steps if o.warmup < 0 else o.warmup,
            cooldown=recipe.cooldown * steps // recipe.steps if o.cooldown < 0 else o.cooldown,
            clip=recipe.clip if o.clip < 0 else o.clip,
            count_padding=recipe.count_padding if o.count_padding is None else o.count_padding,
        )
        return replace(self, steps=steps, optimizer=optimizer)

    def placed(self) -> tuple[Mesh, Layout]:
        """Returns the mesh on this machine's devices, and the layout."""
        mesh = Mesh(self.mesh or (VIRTUAL if jax.default_backend() == "cpu" else "data:-1 model:1"))
        model = self.model()
        chosen = self._preset()
        # A model whose dims no name knows has rules of its own for the usual mesh.
        is_usual = self.layout == TrainOptions.layout and not chosen.mesh
        rules = chosen.layout if is_usual else self.layout, mesh, self.param_layout, self.optimizer_layout
        return mesh, find_layout(*rules, known=model.glossary, sizes=model.sizes(), rings=self.rings)

    def schedule(self) -> Schedule:
        """Returns the learning rate, a function of the updates made."""
        whole = self.filled()
        o = whole.optimizer
        return schedule_by_name(o.schedule, whole._peak(), whole.steps, o.warmup, o.min_rate, o.cooldown)

    def make_optimizer(self) -> Clipped:
        """Returns the optimizer with its schedule; without a limit it clips nothing, and still knows the norm."""
        o = self.filled().optimizer
        options = {name: getattr(o, name) for name in _OPTIMIZER if getattr(o, name) is not None}
        optimizer = by_name(o.name, self.schedule(), **options)
        return clipped(averaged(optimizer, o.average) if o.average else optimizer, o.clip or math.inf)

    def _peak(self) -> float:
        return self.optimizer.rate or self._usual_rate()

    def _usual_rate(self) -> float:
        usual = {"adamw": self._preset().rate, "adafactor": _ADAFACTOR_RATE}
        if not usual.get(self.optimizer.name):
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
        self._check_source()
        self._check_numbers()
        words = {"on_nan": ("stop", "skip"), "on_damage": ("stop", "previous")}
        for name, known in (*words.items(), ("keep", ("", *KEEP, AUTO))):
            if getattr(self, name) not in known:
                *most, last = (f'"{word}"' for word in known if word)
                raise ArgumentError(f"{name} is {getattr(self, name)!r}.", fix=f"choose {', '.join(most)} or {last}.")
        self.data.check()
        self.data.check_kind(self.model().batch_kind)
        self.make_optimizer()
        self._check_below_one()
        check_tracker(self.track)
        if self.memory:
            parse_bytes(self.memory)
        mesh, layout = self.placed()
        put((), mesh, layout)  # raises if they do not fit each other, or the model
        flags = compiler_options(mesh, self.compiler_options)
        if self.compiler_options:
            check_compiler_options(flags)
        self._check_batch(mesh.count(dict(layout.rules).get("batch", ())))

    def _check_source(self) -> None:
        """Raises unless the run whose weights it starts from is another one, with such a model."""
        if not self.from_:
            return
        if not self.out or self.directory().resolve() == Path(self.from_).expanduser().resolve():
            raise ArgumentError(
                f"a run that starts from {self.from_!r} has no directory of its own.", fix="give another out=."
            )
        named = [n for n in ("vocabulary", "tokenizer", "target_vocabulary") if getattr(self.data, n)]
        if named:
            raise ArgumentError(
                f"the run in {self.from_!r} has a vocabulary already, which its weights are for.",
                fix=f"leave out data.{named[0]}=.",
            )
        chosen = self._preset()
        if self.preset not in (type(self).preset, chosen.name):
            raise ArgumentError(
                f"preset is {self.preset!r}, and the run in {self.from_!r} has the model of {chosen.name!r}.",
                fix="leave out preset=.",
            )
        there, here = (asdict(cast(Any, model)) for model in (chosen.model, self.model()))
        changed = [name for name in there if there[name] != here[name] and name not in chosen.model.may_change]
        if changed:
            raise ArgumentError(
                f"the weights in {self.from_!r} do not fit another model.",
                values="; ".join(f"{name} is {there[name]!r} there, {here[name]!r} here" for name in changed),
                rule="a run that starts from another's weights has its model.",
                fix="leave these fields out.",
            )

    def _check_below_one(self) -> None:
        for name in ("beta1", "beta2", "momentum"):
            if not (getattr(self.optimizer, name) or 0.0) < 1:
                raise ArgumentError(
                    f"optimizer.{name} is {getattr(self.optimizer, name)}.", fix="give a number below 1, as in 0.9."
                )

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
        positive = ("eval_every", "save_every", "log_every", "eval_batches", "keep_last")
        least = dict.fromkeys((*positive, "optimizer.microbatches"), 1)
        least |= dict.fromkeys(("steps", "batch", "length", "source_length", "vocab", "keep_best", "spike", "seed"), 0)
        least |= dict.fromkeys(("translations", "optimizer.rate", "optimizer.min_rate"), 0)
        chosen = [n for n in _OPTIMIZER if n != "decay_skips" and getattr(self.optimizer, n) is not None]
        least |= dict.fromkeys((f"optimizer.{name}" for name in chosen), 0)
        least |= dict.fromkeys(("optimizer.warmup", "optimizer.cooldown", "optimizer.clip"), -1)
        for name, number in least.items():
            if not (numbers[name] >= number and math.isfinite(numbers[name])):
                raise ArgumentError(f"{name} is {numbers[name]}.", fix=f"give a number, {number} or more.")
        if any(side < 1 for side in self.voxels):
            raise ArgumentError(f"voxels is {' '.join(map(str, self.voxels))}.", fix="give numbers, 1 or more.")
        if self.seed >= 2**32:
            raise ArgumentError(f"seed is {self.seed}.", fix="give a number below 2**32.")
        if "://" in self.out:
            raise ArgumentError(
                f"{self.out!r} is not a directory of this machine.", fix="mount it, or choose another out=."
            )


def run_config(directory: str | Path, **changes: str) -> TrainConfig:
    """Returns the configuration of a run in a directory, with what is given (and not empty) instead.

    It says all of its model, so another run that its weights came from is left out.
    """
    path = Path(directory) / CONFIG
    if not path.exists():
        raise TrainingError(
            f"there is no run in {str(directory)!r}.",
            fix="name the directory that meshax train or import wrote (out=).",
        )
    fields: dict[str, Any] = {name: value for name, value in changes.items() if value}
    if fields:  # rules for what is stored name axes of the other mesh
        fields = {"param_layout": "", "optimizer_layout": "", "rings": ""} | fields
    return replace(read_options(path, TrainConfig), out=str(directory), from_="", **fields)
