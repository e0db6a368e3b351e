"""The run: from a configuration to a trained model, resumable at any step, on any mesh, under any layout.

Everything that can be wrong is looked at before the first step. What a step draws depends on the seed and the step
alone, and the stream of batches is saved with the parameters, so a resumed run goes on exactly where it stopped.
"""

import contextlib
import json
import math
import shlex
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console

from ..data.stream import Batches, evaluation
from ..dims import Dim
from ..errors import DataError, TrainingError
from ..mesh import Mesh
from ..models.decoder import Decoder
from ..plan.cost.hardware import of_device
from ..plan.explain.report import Report, explain
from ..program import spmd
from ..tensor import Tensor, tensor
from .checkpoints import Checkpoints
from .config import CONFIG, TrainConfig, load_config
from .corpus import Prepared, prepare
from .fitting import fitted, step_and_shapes
from .guards import Guard, interruptible
from .metrics import Metrics, bits_per_byte, draw_curve, finite, perplexity, show_number
from .profiling import Profile
from .progress import Display
from .step import TrainState, evaluation_step, init_state, make_train_step

_NOT_PARAMETERS = ("keep", "dtype", "dropout", "label_smoothing", "z_loss")  # a run may go on with others


@dataclass(frozen=True)
class Evaluation:
    """How well a model predicts the held-out text."""

    loss: float  # nats per token
    tokens: int
    bits_per_byte: float

    @property
    def perplexity(self) -> float:
        """The perplexity per token."""
        return perplexity(self.loss)

    def __str__(self) -> str:
        return f"perplexity {show_number(self.perplexity, 2)}, {show_number(self.bits_per_byte, 3)} bits per byte"


class Run:
    """A run of training in its directory; `train` goes on from where it stopped, if it ever did."""

    def __init__(self, config: TrainConfig, console: Console | None = None, *, read_only: bool = False):
        """Checks the configuration and prepares the text; to look only, nothing of the run is changed."""
        config.check()
        self.config, self.read_only = config, read_only
        self.console = console or Console(stderr=True)
        self.directory = config.directory()
        self._check_same_run()
        self.mesh, self.layout = config.placed()
        self.model, note = (config.model(), "") if read_only else fitted(config, self.mesh, self.layout)
        if note:
            self.console.print(note, highlight=False, markup=False)
            self.config = replace(config, keep=self.model.keep)
        batch, length = config.sizes()
        self.dims = (Dim("batch", batch), Dim("length", length))
        self.optimizer = config.make_optimizer()
        if not read_only:
            _ = self.report  # raises if the layout does not fit the model, before the text is read
            self._make_directory()
            self.batches = Batches(self.prepared.train, length=length, batch=batch, seed=config.seed)

    def _check_same_run(self) -> None:
        """Raises if the directory holds a run of another model."""
        path, here = self.directory / CONFIG, _identity(self.config)
        there = _identity(load_config(path)) if path.exists() else here
        changed = [name for name, value in here.items() if name not in _NOT_PARAMETERS and there[name] != value]
        if changed:
            raise TrainingError(
                f"{str(self.directory)!r} holds a run of another model.",
                values="; ".join(f"{name} is {there[name]!r} there, {here[name]!r} here" for name in changed),
                fix="choose another --out, or remove that run.",
            )

    def _make_directory(self) -> None:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self.directory.joinpath("events").mkdir(exist_ok=True)  # what is there may be someone else's
        except OSError as error:
            raise TrainingError(
                "the directory of a run cannot be written to.",
                values=f"{self.directory}: {error.strerror or error}",
                fix="choose another --out.",
            ) from error

    @cached_property
    def prepared(self) -> Prepared:
        """The vocabulary and the tokens."""
        return prepare(self.config, self.console, self.read_only)

    @cached_property
    def checkpoints(self) -> Checkpoints:
        """Where the run saves itself."""
        return Checkpoints(
            self.directory / "checkpoints",
            keep_last=self.config.keep_last,
            keep_best=self.config.keep_best,
            read_only=self.read_only,
        )

    def first_state(self) -> TrainState:
        """Returns the state before the first step, made where it is stored."""
        return spmd(self._init, self.mesh, self.layout)()

    def _init(self) -> TrainState:
        key = jax.random.key(self.config.seed)
        return init_state(lambda key: Decoder.init(key, self.model), self.optimizer, key)

    def restored(self, step: int | str = "latest") -> tuple[TrainState, dict[str, Any]]:
        """Returns the state of a checkpoint, placed as this run's layout says, and what was saved beside it."""
        like = spmd(self._init, Mesh("none:1", abstract=True), "").trace().results
        wanted: Any = step  # a word that it does not know, it explains itself
        return self.checkpoints.restore(wanted, like=like, mesh=self.mesh, layout=self.layout)

    @cached_property
    def step(self) -> Any:
        """The program of one step."""
        o = self.config.optimizer
        parts = o.microbatches if o.microbatches > 1 else None
        return spmd(make_train_step(self.optimizer, parts), self.mesh, self.layout, donate=0)

    @cached_property
    def report(self) -> Report:
        """What a step does on one processor, and what it should take."""
        _, shapes = step_and_shapes(self.model, self.optimizer, self.config.sizes())
        return explain(self.step, *shapes)

    @cached_property
    def evaluate_batch(self) -> Any:
        """The program that evaluates a batch."""
        return spmd(evaluation_step, self.mesh, self.layout)

    def tensors(self, batch: dict[str, np.ndarray]) -> dict[str, Tensor]:
        """Names the dims of a batch."""
        return {name: tensor(array, self.dims) for name, array in batch.items()}

    def evaluate(
        self, model: Decoder, batches: int | None = None, check_interrupt: Callable[[], None] = lambda: None
    ) -> Evaluation:
        """Evaluates on the held-out text, or on its first batches."""
        held_out = self.prepared.held_out
        nats = tokens = 0.0
        for number, batch in enumerate(evaluation(held_out, length=self.dims[1].size, batch=self.dims[0].size)):
            if number == batches:
                break
            total, count = self.evaluate_batch(model, self.tensors(batch))
            nats, tokens = nats + float(total), tokens + float(count)
            check_interrupt()
        size = held_out.num_bytes * tokens / held_out.num_tokens
        return Evaluation(nats / max(tokens, 1.0), round(tokens), bits_per_byte(nats, round(size)))

    def train(self) -> Evaluation:
        """Trains to the last step, and evaluates."""
        with contextlib.closing(self.checkpoints), interruptible() as check_interrupt:
            state, first = self._start()
            fresh = self.directory / f"{CONFIG}.partial"
            fresh.write_text(self.config.to_json(), encoding="utf-8")
            fresh.replace(self.directory / CONFIG)
            with contextlib.closing(Metrics(self.directory, first)) as metrics:
                state = self._go(state, first, metrics, check_interrupt)
                result = self.evaluate(state.model, check_interrupt=check_interrupt)
                if first < self.config.steps:
                    metrics.write(self.config.steps, eval_loss=result.loss, perplexity=result.perplexity)
                    # The best of several checkpoints is that on the same text.
                    self._save(self.config.steps, state, self.evaluate(state.model, self.config.eval_batches))
        bigram = self.prepared.bigram().evaluate(self.prepared.held_out)
        draw_curve(metrics.rows, self.directory / "curve.png", {"bigram": math.log(bigram.perplexity)})
        self._summary(result, bigram)
        return result

    def _start(self) -> tuple[TrainState, int]:
        latest = self.checkpoints.latest()
        if latest is None:
            return self.first_state(), 0
        if latest > self.config.steps:
            raise TrainingError(
                f"the run in {str(self.directory)!r} is at step {latest} already.",
                values=f"steps is {self.config.steps}",
                fix="ask for more steps, or choose another --out.",
            )
        state, extra = self.restored()
        self._continue_stream(extra["data"])
        self.console.print(f"resumed at step {extra['step']}", highlight=False)
        return state, extra["step"]

    def _continue_stream(self, position: dict[str, Any]) -> None:
        try:
            self.batches.restore(position)
        except DataError as error:
            raise TrainingError(
                f"the run in {str(self.directory)!r} cannot go on with other batches.",
                values=str(error).partition("values: ")[2].partition("\n")[0],
                rule="a run goes on with the same text, vocabulary, batch, length and seed.",
                fix="give these as they were, or choose another --out.",
            ) from error

    def _go(self, state: TrainState, first: int, metrics: Metrics, check_interrupt: Callable[[], None]) -> TrainState:
        """Takes the steps from the first to the last."""
        guard = Guard(self.directory, self.config.on_nan, self.config.spike)
        display = Display(self.console, self.config.steps, first)
        key = jax.random.key(self.config.seed + 1)
        profile = Profile(self.directory / "profile" if self.config.profile else None, first, self.config.steps)
        with display.running(), contextlib.closing(profile):
            watch = _Watch(self, display, metrics, guard, first)
            for step in range(first + 1, self.config.steps + 1):
                profile.at(step)
                batch, found = next(self.batches), None
                state, measured = self.step(state, self.tensors(batch), key)
                check_interrupt()
                watch.saw(step, measured, batch)
                if step == self.config.steps:
                    break
                if step % self.config.eval_every == 0:
                    watch.finish()
                    found = self.evaluate(state.model, self.config.eval_batches, check_interrupt)
                    self._evaluated(step, found, metrics, display)
                if step % self.config.save_every == 0:
                    watch.finish()
                    self._save(step, state, found)
            watch.finish()
        return state

    def _save(self, step: int, state: TrainState, found: Evaluation | None = None) -> None:
        extra = {"step": step, "data": self.batches.state(), "vocabulary": self.prepared.vocabulary.fingerprint}
        self.checkpoints.save(step, state, extra, metric=None if found is None else found.loss)

    def _evaluated(self, step: int, found: Evaluation, metrics: Metrics, display: Display) -> None:
        metrics.write(step, eval_loss=found.loss, perplexity=found.perplexity)
        loss, surprise = show_number(found.loss, 3), show_number(found.perplexity, 1)
        display.say(f"step {step}: held-out loss {loss}, perplexity {surprise}")

    def _summary(self, result: Evaluation, bigram: Any) -> None:
        say = lambda text: self.console.print(text, highlight=False, markup=False)  # noqa: E731
        say(f"held-out {result} ({result.tokens:,} tokens)")
        say(f"a bigram model's      {bigram.perplexity:.2f}, {bigram.bits_per_byte:.3f} bits per byte")
        say(f"the run is in {self.directory}: checkpoints, metrics.jsonl, events, curve.png")
        prompt = "..." if self.config.data.text else "def "
        say(f'next: meshax generate --run {shlex.quote(str(self.directory))} --prompt "{prompt}"')
        figures = {"perplexity": result.perplexity, "bits_per_byte": result.bits_per_byte, "tokens": result.tokens}
        figures |= {"bigram_perplexity": bigram.perplexity, "bigram_bits_per_byte": bigram.bits_per_byte}
        figures |= {"vocabulary_size": self.prepared.vocabulary.size}
        (self.directory / "result.json").write_text(json.dumps(finite(figures), indent=2), encoding="utf-8")


def _identity(config: TrainConfig) -> dict[str, Any]:
    """Returns what may not change from one start of a run to the next."""
    return asdict(config.model()) | {"optimizer": config.optimizer.name}


def run_config(directory: str | Path, **changes: str) -> TrainConfig:
    """Returns the configuration of a run in a directory, with what is given (and not empty) instead."""
    path = Path(directory) / CONFIG
    if not path.exists():
        raise TrainingError(
            f"there is no run in {str(directory)!r}.", fix="name the directory that meshax train wrote (--out)."
        )
    given: dict[str, Any] = {name: value for name, value in changes.items() if value}
    if given:  # rules for what is stored name axes of the other mesh
        given = {"param_layout": "", "optimizer_layout": ""} | given
    return replace(load_config(path), out=str(directory), **given)


class _Watch:
    """Reads what a step measured when the next one is already running, so that the processors never wait for us."""

    def __init__(self, run: Run, display: Display, metrics: Metrics, guard: Guard, first: int):
        self.run, self.display, self.metrics, self.guard = run, display, metrics, guard
        self.waiting: Any = None
        self.since, self.last = time.perf_counter(), first
        self.ideal = 0.0  # seconds of a step at the peak

    def saw(self, step: int, measured: dict[str, Tensor], batch: dict[str, np.ndarray]) -> None:
        """Takes note of a step that has begun, and reads the one before it."""
        self.finish()
        self.waiting = step, measured, batch

    def finish(self) -> None:
        """Reads the step that is waiting."""
        if self.waiting is None:
            return
        (step, measured, batch), self.waiting = self.waiting, None
        loss = float(measured["loss"])
        self.guard.check(step, loss, bool(measured["finite"]), batch)
        if step % self.run.config.log_every == 0 or step == self.run.config.steps:
            seconds = (time.perf_counter() - self.since) / max(step - self.last, 1)
            self.since, self.last = time.perf_counter(), step
            rate = float(measured["tokens"]) / seconds
            self.metrics.write(step, loss=loss, norm=float(measured["norm"]), tokens_per_second=rate)
            self.display.update(step, loss, rate, self._utilization(seconds))

    def _utilization(self, seconds: float) -> float:
        if not self.ideal:
            machine = of_device(self.run.mesh.device_kind)
            self.ideal = self.run.report.utilization(machine) * self.run.report.seconds(machine)
        return self.ideal / seconds
