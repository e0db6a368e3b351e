"""Writing text, measured: milliseconds a token, beside the least that memory allows.

To write a token, a processor reads all its weights (but for the rows of the embedding that it does not look up) and all
that it keeps of the texts. Few texts at once do little else: the time that this reading takes, at the hardware's
bandwidth, is the bound, and the share of it that is reached is what there is to know.

A round fills all slots with texts of `context` tokens, and then times a turn of the engine, in which `tokens` more are
written in each: the program, and what the engine does around it.
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import jax
import numpy as np

from ..decode import Engine, Request
from ..errors import ArgumentError
from ..mesh import Mesh
from ..models.contract import parameter_count
from ..models.fields import with_fields
from ..models.presets import preset
from ..nn.cache import KeyValues
from ..plan.cost.hardware import bandwidth_of_device
from ..plan.search.named_layouts import find_layout
from ..program import spmd
from .kernel_times import Took, kinds_of, longest, profiled, time_by_kind
from .step import plain
from .turns import Say, in_silence

FORMULA = (
    "the bytes of the weights without the input embedding, and of the keys and values of (context + tokens) positions "
    "for each slot, as stored, / memory bandwidth"
)


@dataclass(frozen=True)
class Decoding:
    """What is measured: a preset's model with random weights, or a run's; empty: as it is."""

    preset: str = "tiny"
    run: str = ""
    slots: int = 1
    context: int = 1024
    tokens: int = 64
    page: int = 64
    mesh: str = ""
    layout: str = "model"
    layers_as: str = ""
    dtype: str = ""
    fields: dict[str, Any] = field(default_factory=dict)  # of the model

    def __post_init__(self) -> None:
        """Raises if there can be no such texts."""
        for name in ("slots", "tokens", "page"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"{name} is {getattr(self, name)}.", fix="give a number, 1 or more.")
        if self.context <= self.tokens:
            raise ArgumentError(
                f"{self.tokens} tokens are written in texts of {self.context}.",
                rule="as many are written before, to warm up.",
                fix="ask for fewer tokens, or more context.",
            )

    def model(self) -> Any:
        """Returns the model's configuration."""
        changes = {name: getattr(self, name) for name in ("layers_as", "dtype") if getattr(self, name)}
        if self.run:
            from ..train.config import run_config

            own: Any = run_config(self.run).model()
        else:
            own = plain(preset(self.preset).model)  # sinusoids reach as far as the context
        chosen: Any = with_fields(own, self.fields | changes)
        if chosen.batch_kind != "tokens":
            raise ArgumentError(f"{self.run or self.preset!r} is no language model.", fix="choose one that is.")
        return chosen

    @property
    def places(self) -> int:
        """How many tokens a text has at most."""
        return self.context + self.tokens


@dataclass(frozen=True)
class Measurement:
    """Writing, measured."""

    program: str
    name: str  # of the preset, or the run
    parameters: int
    slots: int
    context: int
    tokens: int  # in a round, for each slot
    seconds: float  # of a token in all slots, the median of the rounds
    rounds: tuple[float, ...]
    prompt_seconds: float  # to read a prompt of so much context; 0: the program cannot
    start_seconds: float  # until all is compiled and the first round is done
    weight_bytes: float  # that a processor reads for a token
    cache_bytes: float  # likewise
    bandwidth: float  # of a processor, bytes a second; 0: unknown
    peak_bytes: int  # 0: this machine does not say
    device: str
    kernels: dict[str, float] = field(default_factory=dict)  # seconds of a token by kind, under a profiler
    longest: tuple[Took, ...] = ()  # kernels

    @property
    def bound(self) -> float | None:
        """The seconds that reading takes at least, if the bandwidth is known: see `FORMULA`."""
        return (self.weight_bytes + self.cache_bytes) / self.bandwidth if self.bandwidth else None

    @property
    def share(self) -> float | None:
        """What part of the bandwidth is reached, if it is known."""
        return self.bound / self.seconds if self.bound else None

    @property
    def first_token_seconds(self) -> float:
        """How long it takes to read a prompt and write a token; 0: unknown."""
        return self.prompt_seconds and self.prompt_seconds + self.seconds

    def as_dict(self) -> dict[str, Any]:
        """Returns it as plain data."""
        own = {name: getattr(self, name) for name in ("bound", "share", "first_token_seconds")}
        return {**asdict(self), **own, "tokens_per_second": self.slots / self.seconds}


def measure(decoding: Decoding, rounds: int = 5, profile: bool = True, say: Say = in_silence) -> Measurement:
    """Compiles and runs the engine.

    Args:
        decoding: what to measure.
        rounds: of which the median counts.
        profile: whether to look where the time goes, too.
        say: hears what is being done.
    """
    config, tokens = decoding.model(), decoding.tokens
    mesh = Mesh(decoding.mesh or f"model:{len(jax.devices())}")
    rules = decoding.layout if mesh.size > 1 else "none"
    layout = find_layout(rules, mesh, known=config.glossary, sizes=config.sizes())
    begin = time.perf_counter()
    say("reading the weights" if decoding.run else "drawing the weights")
    model = _restored(decoding, mesh, layout) if decoding.run else _random(config, mesh, layout)
    engine = Engine(model, mesh, layout, slots=decoding.slots, places=decoding.places, page=decoding.page, chunk=tokens)
    draw = np.random.default_rng(0)
    prompts = draw.integers(0, config.vocab, (decoding.slots + 1, decoding.context)).tolist()

    def warm_up(ahead: bool) -> None:
        for prompt in prompts[1:]:
            engine.submit(Request(prompt[:-tokens], 2 * tokens, log_probabilities=False))
        engine.turn(ahead)

    def timed_turn() -> float:
        """Measures from the end of a chunk to the end of the next, which is queued by then: as texts are written."""
        warm_up(ahead=True)
        begin = time.perf_counter()
        engine.turn()
        return (time.perf_counter() - begin) / tokens

    say("compiling, and running once")
    timed_turn()
    start = time.perf_counter() - begin
    say(f"ran after {start:.1f} s, measuring")
    reading = [_filled(engine, prompts[0])[0] for _ in range(3)]
    timed = [timed_turn() for _ in range(rounds)]
    weights, cache = _bytes_read(engine, config)
    device = jax.devices()[0]
    measured = Measurement(
        "meshax", decoding.run or decoding.preset, parameter_count(config), decoding.slots, decoding.context, tokens,
        statistics.median(timed), tuple(timed), min(reading), start, weights, cache,
        bandwidth_of_device(device.device_kind), int((device.memory_stats() or {}).get("peak_bytes_in_use", 0)),
        device.device_kind,
    )  # fmt: skip
    if not profile:
        return measured
    warm_up(ahead=False)
    program, arguments = engine.program(decoding.context)
    return with_profile(measured, engine.turn, program.compile(*arguments).as_text())


def _random(config: Any, mesh: Mesh, layout: Any) -> Any:
    return spmd(lambda: config.make(jax.random.key(0)).narrowed(), mesh, layout)()


def _restored(decoding: Decoding, mesh: Mesh, layout: Any) -> Any:
    """Returns the model of a run as it was last saved."""
    from ..train.loop import Run, run_config

    axes = " ".join(f"{axis}:{size}" for axis, size in mesh.axes.items())
    rules = " ".join(f"{dim}:{'+'.join(split)}" for dim, split in layout.rules)
    run = Run(run_config(decoding.run, mesh=axes, layout=rules or "none"), read_only=True)
    return run.restored("latest")[0].model


def _filled(engine: Engine, prompt: Sequence[int]) -> tuple[float, Any]:
    """Returns the seconds it takes to read a prompt, and a cache that holds it."""
    empty = jax.block_until_ready(engine.room.empty())
    begin = time.perf_counter()
    cache = jax.block_until_ready(engine.room.fill(empty, {0: Request(tuple(prompt))}))
    return time.perf_counter() - begin, cache


def _bytes_read(engine: Engine, config: Any) -> tuple[float, float]:
    """Returns the bytes of weights and of keys and values that a processor reads to write a token."""

    def size(tree: Any) -> float:
        return float(sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(tree)))

    model: Any = engine.room.model
    looked_up = [model.learned] if config.tied else [model.embedding, model.learned]
    cache = engine.room.empty()
    first = jax.tree.leaves(cache, is_leaf=lambda x: isinstance(x, KeyValues))[0]
    return size(model) - size(looked_up), size(cache) * min(engine.room.places / first.places, 1.0)


def with_profile(measured: Measurement, turn: Any, text: str) -> Measurement:
    """Returns a measurement with what the time goes into."""
    ran = profiled(turn)
    spent = time_by_kind(ran, kinds_of(text))
    kernels = {kind: seconds / measured.tokens for kind, seconds in spent.items() if seconds}
    return replace(measured, kernels=kernels, longest=tuple(longest(ran, text)))
