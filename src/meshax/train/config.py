"""What the options of a run of training mean on this machine, and what is wrong with them."""

import dataclasses
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import jax

from ..errors import ArgumentError, TrainingError
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
from .options import AUTO, VIRTUAL, TrainOptions

_ADAFACTOR_RATE = 1e-2  # relative to the size of a parameter, so it suits any model


@dataclass(frozen=True)
class TrainConfig(TrainOptions):
    """A run of training."""

    @classmethod
    def of(cls, options: TrainOptions) -> Self:
        """Returns the run that has these options."""
        return cls(**{f.name: getattr(options, f.name) for f in dataclasses.fields(options)})

    def model(self) -> ModelConfig:
        """Returns the model's configuration: the preset's, with what is asked for instead."""
        model = preset(self.preset).model
        names = [f.name for f in dataclasses.fields(model)]
        changes = self._asked_for(("keep", "vocab", "dtype", "dropout", "layers_as"), names)
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
        self.data.check()
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
