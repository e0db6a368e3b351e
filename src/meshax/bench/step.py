"""The training step of a preset, measured: its time, its memory, how long it compiles, what the time goes into.

Tokens are random, and examples hold one document unless they are to be packed: the text does not matter. Nothing is
dropped, and positions are sinusoids where a preset has learned them, unless somebody asks: so it is in the programs
beside, and examples may have any length.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp

from ..errors import ArgumentError
from ..layout import Layout, Setting
from ..mesh import Mesh
from ..models.contract import ModelConfig, parameter_count
from ..models.fields import with_fields
from ..models.presets import batch_sizes, preset
from ..ops import arange, broadcast, ones, where
from ..ops.randomness import randint
from ..optim import by_name, clipped
from ..optim.clipping import Clipped
from ..plan.cost.hardware import peak_of_device
from ..plan.cost.limits import memory_of_device
from ..plan.explain.report import explain
from ..plan.search.named_layouts import find_layout
from ..program import put, spmd
from ..train.options import AUTO
from ..train.step import compiler_options, init_state, make_train_step
from ..train.step_memory import most_kept, step_and_shapes
from .kernel_times import kinds_of, profiled, time_by_kind
from .turns import Say, in_silence

FORMULA = (
    "6 x (parameters - tables that are only looked up) x tokens "
    "+ 6 x layers x length x heads x d_kv x tokens (attention, causal)"
)


def plain(model: ModelConfig) -> ModelConfig:
    """Returns a model without what training draws at random, and with sinusoids for learned positions."""
    known: Any = model
    usual: dict[str, Any] = {"dropout": 0.0, "logit_jitter": 0.0}
    if getattr(known, "positions", "") == "learned":
        usual["positions"] = "sinusoidal"
    return with_fields(model, {name: value for name, value in usual.items() if name in model.__dataclass_fields__})


@dataclass(frozen=True)
class Step:
    """What is measured: a preset, and what is asked for instead of its own; empty or 0: as it is."""

    preset: str = "tiny"
    batch: int = 0
    length: int = 0
    mesh: str = ""
    layout: str = "none"
    param_layout: str = ""
    optimizer_layout: str = ""
    rings: str = ""
    keep: str = ""
    layers_as: str = ""
    dtype: str = ""
    optimizer: str = "adafactor"
    packed: bool = False
    overlap: bool = False
    compiler_options: tuple[str, ...] = ()
    fields: dict[str, Any] = field(default_factory=dict)  # of the model

    def model(self) -> Any:
        """Returns the model's configuration, as far as it does not depend on the machine: see `fitted`."""
        changes = {name: getattr(self, name) for name in ("keep", "layers_as", "dtype") if getattr(self, name)}
        asked = {name: value for name, value in (self.fields | changes).items() if (name, value) != ("keep", AUTO)}
        chosen: Any = with_fields(plain(preset(self.preset).model), asked)
        if chosen.batch_kind != "tokens":
            raise ArgumentError(f"{self.preset!r} is no language model.", fix="choose a preset that is.")
        return chosen

    def sizes(self) -> dict[str, int]:
        """Returns the examples of a batch, and the tokens of an example."""
        for name in ("batch", "length"):
            if getattr(self, name) < 0:
                raise ArgumentError(f"the {name} is {getattr(self, name)}.", fix="give a number, 1 or more.")
        return batch_sizes(preset(self.preset), {"batch": self.batch, "length": self.length})

    def placed(self, mesh: Mesh) -> Layout:
        """Returns how the model is split over a mesh."""
        config = self.model()
        rules = (self.layout, mesh, self.param_layout, self.optimizer_layout)
        layout = find_layout(*rules, known=config.glossary, sizes=config.sizes(), rings=self.rings)
        Setting(mesh, layout).check()
        return layout

    def make_optimizer(self) -> Clipped:
        """Returns the optimizer, which clips gradients."""
        return clipped(by_name(self.optimizer, 0.01), 1.0)

    def fitted(self, mesh: Mesh, layout: Layout) -> Any:
        """Returns the model with what its backward pass keeps: where nobody asked, as training chooses it."""
        config, asked = self.model(), self.keep or self.fields.get("keep", "")
        if asked != AUTO and (asked or mesh.platform == "cpu"):
            return config

        def needs(keep: str) -> int:
            model, sizes = replace(config, keep=keep), self.sizes()
            shapes = {name: model.batch(sizes)[name] for name in ("tokens", "targets", "weights")}
            step, args = step_and_shapes(model, self.make_optimizer(), shapes)
            return explain(spmd(step, mesh, layout, donate=0), *args).memory["peak"]

        keep, _ = most_kept(needs, memory_of_device(mesh.jax_mesh.local_devices[0]))
        return replace(config, keep=keep)


@dataclass(frozen=True)
class Measurement:
    """A step, measured."""

    program: str
    parameters: int
    tokens: int
    seconds: float  # the median of the rounds
    rounds: tuple[float, ...]
    compile_seconds: float  # lowering included
    trace_seconds: float
    peak_bytes: int  # 0: this machine does not say
    flops: float  # that the model needs, of all processors
    peak_flops: float  # of all processors; 0: unknown
    loss: float
    device: str
    kernels: dict[str, float]  # seconds by kind, under a profiler
    keeps: str = ""  # what the backward pass keeps; empty: what the program likes

    @property
    def utilization(self) -> float | None:
        """What part of the peak the needed FLOPs reach, if the peak is known."""
        return self.flops / self.seconds / self.peak_flops if self.peak_flops else None

    def as_dict(self) -> dict[str, Any]:
        """Returns it as plain data."""
        unknown = {name: None for name in ("peak_bytes", "peak_flops") if not getattr(self, name)}
        more = {"utilization": self.utilization, "tokens_per_second": self.tokens / self.seconds}
        return {**asdict(self), **unknown, **more}


def needed_flops(config: Any, batch: int, length: int) -> float:
    """Returns the FLOPs that a step of a decoder needs: see `FORMULA`. Attention in a window needs less."""
    tokens, window = batch * length, min(config.window or length, length)
    looked_up = 0 if config.tied else config.vocab  # a table that is tied is multiplied, too
    looked_up += config.max_length if config.positions == "learned" else 0
    products = 6 * (parameter_count(config) - looked_up * config.d_model) * tokens
    seen = window * (2 - window / length)  # twice the tokens that one sees
    return products + 6 * config.layers * seen * config.heads * config.d_kv * tokens


def measure(step: Step, rounds: int = 3, steps: int = 5, profile: bool = True, say: Say = in_silence) -> Measurement:
    """Compiles and runs the step.

    Args:
        step: what to measure.
        rounds: of which the median counts.
        steps: of a round.
        profile: whether to look where the time goes, too.
        say: hears what is being done.
    """
    mesh = Mesh(step.mesh or f"data:{len(jax.devices())}")
    layout, optimizer, (batch, length) = step.placed(mesh), step.make_optimizer(), step.sizes().values()
    config = step.fitted(mesh, layout)
    flags = compiler_options(mesh, step.compiler_options, step.overlap)
    program = spmd(make_train_step(optimizer), mesh, layout, 0, flags)
    say("drawing the parameters")
    state = spmd(lambda: init_state(config.make, optimizer, jax.random.key(0)), mesh, layout)()
    data = spmd(lambda: _batch(config, batch, length, step.packed), mesh, layout)()
    key = put(jax.random.key(2), mesh, layout)
    jax.block_until_ready((state, data))  # or compiling, which tries kernels, would wait for them
    say("tracing")
    begin = time.perf_counter()
    traced = program.trace(state, data, key)
    middle = time.perf_counter()
    say(f"traced in {middle - begin:.1f} s, compiling")
    compiled = traced.lower().compile()
    end = time.perf_counter()
    say(f"compiled in {end - middle:.1f} s, running")
    (state, measured), _ = compiled(state, data, key)
    loss = float(measured["loss"])

    def run() -> Any:
        nonlocal state, measured
        for _ in range(steps):
            (state, measured), _ = compiled(state, data, key)
        return measured["loss"].array

    timed, kernels = timed_rounds(run, rounds, steps, compiled.as_text() if profile else "")
    device = jax.devices()[0]
    return Measurement(
        "meshax", parameter_count(config), batch * length, statistics.median(timed), timed,
        end - middle, middle - begin, int((device.memory_stats() or {}).get("peak_bytes_in_use", 0)),
        needed_flops(config, batch, length),
        peak_of_device(device.device_kind, jnp.dtype(config.dtype)) * mesh.size, loss, device.device_kind, kernels,
        config.keep,
    )  # fmt: skip


def _batch(config: ModelConfig, batch: int, length: int, packed: bool) -> dict[str, Any]:
    """Returns random tokens; packed, two documents in each example, as `meshax train` has them."""
    dims = tuple(shape.dims for shape in config.batch({"batch": batch, "length": length}).values())[0]
    tokens = randint(jax.random.key(1), dims, 2, config.sizes()["vocab"])
    data = {"tokens": tokens, "targets": tokens, "weights": ones(dims)}
    if not packed:
        return data
    at, half = arange(dims[-1]), length // 2
    segments, positions = where(at < half, 1, 2), where(at < half, at, at - half)
    return data | {"segments": broadcast(segments, dims), "positions": broadcast(positions, dims)}


def timed_rounds(
    run: Callable[[], Any], rounds: int, steps: int, text: str
) -> tuple[tuple[float, ...], dict[str, float]]:
    """Returns the seconds of a step in each round, and, by kind of kernel, those of a profile.

    Args:
        run: does the steps of a round.
        rounds: how many.
        steps: of a round.
        text: the compiled program's; empty: there is no profile.
    """
    timed = []
    for _ in range(rounds):
        begin = time.perf_counter()
        jax.block_until_ready(run())
        timed.append((time.perf_counter() - begin) / steps)
    if not text:
        return tuple(timed), {}
    spent = time_by_kind(profiled(run), kinds_of(text))
    return tuple(timed), {kind: seconds / steps for kind, seconds in spent.items()}
