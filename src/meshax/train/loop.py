"""The run: from a configuration to a trained model, resumable at any step, on any mesh, under any layout.

Everything that can be wrong is looked at before the first step. What a step draws depends on the seed and the step
alone, and the stream of batches is saved with the parameters, so a resumed run goes on exactly where it stopped.
"""

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import cached_property
from hashlib import sha256
from typing import Any

import jax
from rich.console import Console

from ..errors import DataError, TrainingError
from ..files import write_whole
from ..interrupts import Finishing, Stopped, finishing
from ..launch.peers import current
from ..launch.warming import warm_groups
from ..mesh import Mesh
from ..models.contract import Model
from ..plan.explain.report import Report, explain
from ..processes import LocalRows
from ..program import put, spmd
from ..tensors import Tensor
from .banner import banner
from .checkpoint import Checkpoints, NotSaved
from .config import TrainConfig, run_config
from .evaluation import Evaluation
from .examples import Batch, Examples, batch_shapes, examples_for
from .loss_guard import Guard
from .metrics import Metrics, Unwritten, draw_curve, finite, show_number
from .options import CONFIG, flat, read_options
from .profiling import Profile
from .progress import Display, counting
from .record import check_own, record_start, signature
from .starting import CHECKPOINTS, IMPORTED, Weights, make_directory, restored_or_before, state_from, weights_of
from .step import TrainState, compiler_options, evaluation_step, init_state, make_train_step
from .step_memory import check_memory, fitted, step_and_shapes
from .text_options import TextOptions
from .tracking import open_tracker
from .translations import Judgement
from .watch import Watch, look


class Run:
    """A run of training in its directory; `train` goes on from where it stopped, if it ever did."""

    def __init__(self, config: TrainConfig, console: Console | None = None, *, read_only: bool = False):
        """Checks the configuration and prepares the examples; to look only, nothing of the run is changed."""
        config.check()
        config = config.filled()
        self.config, self.read_only = config, read_only
        self._saved = 0  # the last step that is
        self._beside: dict[str, Any] = {}  # what was saved with the checkpoint that the run goes on from
        self.judgement: Judgement | None = None  # of what the model writes, when it is trained
        self.peers = current()
        self.console = (console or Console(stderr=True)) if self.peers.is_first else Console(quiet=True)
        self.directory = config.directory()
        self._check_same_run()
        self.mesh, self.layout = config.placed()
        self.model, note = (config.model(), "") if read_only else fitted(config, self.mesh, self.layout)
        if note:
            self.console.print(note, highlight=False, markup=False)
            self.config = replace(config, keep=getattr(self.model, "keep", ""))
        self.sizes, self.unit = config.sizes(), examples_for(self.model).unit
        self.shapes = batch_shapes(self.model, self.sizes)
        self.optimizer = config.make_optimizer()
        if not read_only:
            _ = self.report  # raises if the layout does not fit the model, before the text is read
            if not config.memory:
                check_memory(self.report, self.mesh, getattr(self.model, "keep", "everything"))
            make_directory(self.directory, self.peers)
            with self.peers.first("the examples"):  # it prepares them, the others read them
                self.batches = self.examples.stream(self.sizes, config.seed, self.local.rows)
            self._begin_together()

    def _begin_together(self) -> None:
        """Raises if the processes of a run would not run the same program on the same data; otherwise connects them."""
        if self.peers.processes > 1:
            _, shapes = step_and_shapes(self.model, self.optimizer, self.shapes)
            program = self.step.lower(*shapes).as_text()
            here = {"mesh": str(self.mesh), "layout": str(self.layout), "data": flat(self.batches.state())}
            self.peers.agree(here | self.examples.identity() | {"program": sha256(program.encode()).hexdigest()})
            warm_groups(self.mesh)

    def _check_same_run(self) -> None:
        """Raises if the directory holds a run of another model."""
        path, here = self.directory / CONFIG, _identity(self.config)
        there = _identity(run_config(self.directory)) if path.exists() else here
        if path.exists() and not self.read_only:  # what its weights came from
            here["from"], there["from"] = self.config.from_, read_options(path, TrainConfig).from_
        names = [name for name in {**here, **there} if name not in self.config.model().may_change]
        changed = [name for name in names if here.get(name) != there.get(name)]
        if changed:
            raise TrainingError(
                f"{str(self.directory)!r} holds a run of another model.",
                values="; ".join(f"{name} is {there.get(name)!r} there, {here.get(name)!r} here" for name in changed),
                fix="give its options, as its config.toml has them, choose another out=, or remove it.",
            )

    @cached_property
    def examples(self) -> Examples:
        """What the run learns from."""
        is_read = self.read_only or not self.peers.is_first
        return examples_for(self.model).open(self.config, self.console, is_read)

    def use_other_text(self, options: TextOptions) -> None:
        """Evaluates on other text from now on."""
        self.examples = examples_for(self.model).other(self.config, options, self.console)

    @cached_property
    def checkpoints(self) -> Checkpoints:
        """Where the run saves itself."""
        return Checkpoints(
            self.directory / CHECKPOINTS,
            keep_last=self.config.keep_last,
            keep_best=self.config.keep_best,
            read_only=self.read_only,
            on_retry=self._warn,
        )

    @cached_property
    def _signature(self) -> dict[str, Any]:
        """What tells the checkpoints of this run from those of others."""
        return signature(self.config, self._beside)

    def first_state(self) -> TrainState:
        """Returns the state before the first step, made where it is stored."""
        return spmd(self._init, self.mesh, self.layout)()

    def _init(self) -> TrainState:
        return init_state(self.model.make, self.optimizer, jax.random.key(self.config.seed))

    def restored(self, step: int | str = "latest", average: bool = False) -> tuple[Any, dict[str, Any]]:
        """Returns the state of a checkpoint, placed as this run's layout says, and what was saved beside it.

        Of a run that is only looked at, the state is the model alone: its last weights, or their moving average.
        """
        wanted: Any = step  # a word that it does not know, it explains itself
        beside = self.checkpoints.describe(wanted).extra
        if self.read_only or IMPORTED in beside:
            model, extra = weights_of(self.directory, self.model, self.mesh, self.layout, wanted, average)
            state = Weights(model) if self.read_only else state_from(model, self.optimizer, self.mesh, self.layout)
            return state, extra
        check_own(self.directory, beside)
        like = spmd(self._init, Mesh("none:1", abstract=True), "").trace().results
        return self.checkpoints.restore(wanted, like=like, mesh=self.mesh, layout=self.layout)

    @cached_property
    def step(self) -> Any:
        """The program of one step."""
        o = self.config.optimizer
        parts = o.microbatches if o.microbatches > 1 else None
        flags = compiler_options(self.mesh, self.config.compiler_options, self.config.overlap)
        return spmd(make_train_step(self.optimizer, parts, bool(o.count_padding)), self.mesh, self.layout, 0, flags)

    @cached_property
    def report(self) -> Report:
        """What a step does on one processor, and what it should take."""
        _, shapes = step_and_shapes(self.model, self.optimizer, self.shapes)
        return explain(self.step, *shapes)

    @cached_property
    def evaluate_batch(self) -> Any:
        """The program that evaluates a batch."""
        return spmd(evaluation_step, self.mesh, self.layout)

    @cached_property
    def local(self) -> LocalRows:
        """The rows of a batch that this process reads."""
        return LocalRows(self.shapes, self.mesh, self.layout)

    def tensors(self, batch: Batch) -> dict[str, Tensor]:
        """Names the dims of a batch, of which this process has its rows, and places it."""
        return self.local.put(batch)

    def evaluate(
        self, model: Model, batches: int | None = None, check: Callable[[], None] = lambda: None
    ) -> Evaluation:
        """Evaluates on the held-out examples, or on their first batches; `check` is called after each."""
        sums: dict[str, float] = {}
        with self.peers.during("evaluating"):
            for number, batch in enumerate(self.examples.held_out_batches(self.sizes, self.local.rows)):
                if number == batches:
                    break
                for name, value in self.evaluate_batch(model, self.tensors(batch)).items():
                    sums[name] = sums.get(name, 0.0) + float(value)
                check()
        count = sums.pop("count")
        means = {name: value / max(count, 1.0) for name, value in sums.items()}
        data_metrics = self.examples.metrics(sums["loss"], count)
        return Evaluation(means["loss"], round(count), self.model.metrics(means), data_metrics)

    def train(self) -> Evaluation:
        """Trains to the last step, and evaluates; stopped by a signal, it saves, and raises `Stopped`."""
        try:
            with contextlib.closing(self.checkpoints), self._finishing() as work:
                state, first = self._start()
                with contextlib.closing(self._announce(first)) as metrics:
                    if self.config.from_ and not first:  # what there is to be gained on
                        evaluation = self.evaluate(state.model, self.config.eval_batches, work.check)
                        self._evaluated(0, evaluation, metrics, self._say)
                    state = self._go(state, first, metrics, work)
                    result = self._finish(state, first, metrics, work)
        except Stopped:
            self._say(
                f"stopped at step {self._saved}, which is saved; run again, it goes on" if self._saved else "stopped"
            )
            raise
        with self.peers.during("finishing"):
            if self.peers.is_first:
                self._summarize(result, metrics)
            self.peers.gather("the summary")
        return result

    def _finishing(self) -> contextlib.AbstractContextManager[Finishing]:
        """Returns the work that a signal ends: of several processes all, at the same step."""
        return finishing("finishing the step, then saving", self.peers if self.peers.processes > 1 else None)

    def _announce(self, first: int) -> Metrics:
        """Says and writes down what begins after some step, if this is the process that does, and opens the metrics."""
        if not self.peers.is_first:
            return Unwritten()
        for change in record_start(self.config, self.mesh, self.layout, self._signature, self._beside):
            self._say(f"changed: {change}")
        for line in banner(self):
            self._say(line)
        trackers = open_tracker(self.config.track, self.directory, self.config.resolved().as_dict())
        return Metrics(self.directory, first, trackers, self._warn)

    def _finish(self, state: TrainState, first: int, metrics: Metrics, work: Finishing) -> Evaluation:
        """Evaluates and saves after the last step."""
        last = self.config.steps
        with self._saving_when_stopped(last, state):
            result = self.evaluate(state.model, check=work.check)
            if first < last:
                metrics.write(last, eval_loss=result.loss, **result.metrics)
                look(self, last, state.model, metrics)
                # The best of several checkpoints is that on the same examples.
                self._save(last, state, self.evaluate(state.model, self.config.eval_batches, work.check))
            self._judge(state.model, work)
        return result

    def _judge(self, model: Model, work: Finishing) -> None:
        """Lets the model write, if it is judged by that; several processes do not write together."""
        if self.peers.processes > 1:
            return
        with counting(self.console, "translating", self.config.translations) as count:

            def done(number: int) -> None:
                count(number)
                work.check()

            self.judgement = self.examples.judge(model, self.mesh, self.layout, self.config.translations, done)

    @contextlib.contextmanager
    def _saving_when_stopped(
        self, step: int, state: TrainState, finish: Callable[[], None] = lambda: None
    ) -> Iterator[None]:
        try:
            yield
        except Stopped:
            finish()
            if self._saved != step:
                self._save(step, state)
            raise

    def _start(self) -> tuple[TrainState, int]:
        latest = self.checkpoints.latest()
        if latest is None:
            return self._first(), 0
        if latest > self.config.steps:
            raise TrainingError(
                f"the run in {str(self.directory)!r} is at step {latest} already.",
                values=f"steps is {self.config.steps}",
                fix="ask for more steps, or choose another out=.",
            )
        may_go_back = self.config.on_damage == "previous"
        state, extra = restored_or_before(self.checkpoints, self.restored, may_go_back, self._warn)
        self._saved, self._beside = extra["step"], extra
        if IMPORTED in extra:
            self._say("starts from the weights that were imported")
            return state, extra["step"]
        self._continue_stream(extra["data"])
        self.console.print(f"resumed at step {extra['step']}", highlight=False)
        return state, extra["step"]

    def _warn(self, text: str) -> None:
        """Says what has to be looked at."""
        self.console.print(f"warning: {text}", style="bold red", highlight=False, markup=False, soft_wrap=True)

    def _first(self) -> TrainState:
        """Returns the state before the first step: a new model, or another run's."""
        if not self.config.from_:
            return self.first_state()
        model, extra = weights_of(self.config.from_, self.model, self.mesh, self.layout)
        self._say(f"starts from the weights of {self.config.from_} at step {extra['step']}")
        return state_from(model, self.optimizer, self.mesh, self.layout)

    def _say(self, text: str) -> None:
        """Prints a line as it is, however wide the terminal."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _continue_stream(self, position: dict[str, Any]) -> None:
        try:
            self.batches.restore(position)
        except DataError as error:
            raise TrainingError(
                f"the run in {str(self.directory)!r} cannot go on with other batches.",
                values=str(error).partition("values: ")[2].partition("\n")[0],
                rule="a run goes on with the same text, vocabulary, batch, length and seed.",
                fix="give these as they were, or choose another out=.",
            ) from error

    def _go(self, state: TrainState, first: int, metrics: Metrics, work: Finishing) -> TrainState:
        """Takes the steps from the first to the last."""
        guard = Guard(self.directory, self.config.on_nan, self.config.spike, process=self.peers.process)
        display = Display(self.console, self.config.steps, first, self.unit, self._metrics_of_loss)
        key = put(jax.random.key(self.config.seed + 1), self.mesh, self.layout)
        is_profiled = self.config.profile and self.peers.is_first
        profile = Profile(self.directory / "profile" if is_profiled else None, first, self.config.steps)
        self.checkpoints.prepare(state)
        with display.running(), contextlib.closing(profile):
            watch = Watch(self, display, metrics, guard, first)
            for step in range(first + 1, self.config.steps + 1):
                profile.at(step)
                batch, evaluation = next(self.batches), None
                self.peers.began(step)
                state, measured = self.step(state, self.tensors(batch), key)
                work.begin()
                watch.saw(step, measured, batch)
                if step == self.config.steps:
                    break
                with self._saving_when_stopped(step, state, watch.finish):
                    if step % self.config.eval_every == 0:
                        with watch.aside(step, "evaluation"):
                            evaluation = self.evaluate(state.model, self.config.eval_batches, work.check)
                            self._evaluated(step, evaluation, metrics, display.say)
                            look(self, step, state.model, metrics)
                    if step % self.config.save_every == 0:
                        with watch.aside(step, "saving"):
                            self._save(step, state, evaluation)
                    work.check()
            watch.finish()
        return state

    def _metrics_of_loss(self, loss: float) -> dict[str, float]:
        return self.model.metrics({"loss": loss})

    def _save(self, step: int, state: TrainState, evaluation: Evaluation | None = None) -> None:
        """Begins to save a step. If the one before could not be saved, the run says so, and goes on with this one."""
        extra = {"step": step, "data": self.batches.state(), **self.examples.identity(), **self._signature}
        with self.peers.during("saving"):
            if self.checkpoints.is_writing():
                self._say(f"step {step}: waiting for the disk, which still writes the checkpoint before")
            try:
                self.checkpoints.wait()
            except NotSaved as error:
                self._warn(f"{error}\n  the run goes on: step {step} is saved next")
            self.checkpoints.save(step, state, extra, metric=None if evaluation is None else evaluation.loss)
        self._saved = step

    def _evaluated(self, step: int, evaluation: Evaluation, metrics: Metrics, say: Callable[[str], None]) -> None:
        metrics.write(step, eval_loss=evaluation.loss, **evaluation.metrics)
        words = [f"held-out loss {show_number(evaluation.loss, 3)}"]
        words += [f"{name} {show_number(value, 1)}" for name, value in evaluation.metrics.items()]
        say(f"step {step}: {', '.join(words)}")

    def _summarize(self, result: Evaluation, metrics: Metrics) -> None:
        """Says, draws and writes down what has come of the run."""
        say = lambda text: self.console.print(text, highlight=False, markup=False)  # noqa: E731
        figures = {**result.figures(), f"{self.unit}s": result.count, **self.examples.facts()}
        lines = {}
        say(f"held-out {result} ({result.count:,} {self.unit}s)")
        if (baseline := self.examples.baseline()) is not None:
            name, simple = baseline
            lines[name] = simple.loss
            figures |= {f"{name}_{metric}": value for metric, value in simple.figures().items()}
            say(f"a {name} model's      {str(simple).partition(' ')[2]}")  # the line above has said what it is
        if self.judgement is not None:
            figures |= self.judgement.figures()
            for line in (*self.judgement.samples(), *self.judgement.lines()):
                self._say(line)
        draw_curve(metrics.rows, self.directory / "curve.png", lines, self.unit)
        say(f"the run is in {self.directory}: checkpoints, metrics.jsonl, events, curve.png")
        write_whole(self.directory / "result.json", json.dumps(finite(figures), indent=2))


def _identity(config: TrainConfig) -> dict[str, Any]:
    """Returns what may not change from one start of a run to the next."""
    model: Any = config.model()
    return asdict(model) | {"optimizer": config.optimizer.name, "optimizer.average": bool(config.optimizer.average)}
