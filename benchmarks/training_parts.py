"""Where the time goes between a bare step and `meshax train`: what training adds, one thing after the other.

    python benchmarks/training_parts.py lm-0.14b:256 [lm-1.28b:64] [--rounds 5] [--steps 10] [--save] [--kernels]

All in one process and by turns, so that a processor that gets hot, and slower, is slower for all of them:

    even      one batch again and again, its tokens drawn evenly, its documents packed as those of the text
    text      one batch of the text again and again: some tokens are in it thousands of times
    placed    batches of the text that are on the processors already
    read      batches that are read and placed between the steps
    watched   and the loss of the step before is waited for when a step has begun, as training does it

Beside them, what the host takes for one step: to read a batch, to place it, to begin a step. `--save` saves, then shows
every step until the checkpoint is on the disk, and what the host took for it; `--kernels` those that take longer on
text than on even tokens.
"""

import argparse
import collections
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from meshax.bench.kernel_times import profiled
from meshax.program import put
from meshax.train.checkpoint import arrays, writing
from meshax.train.config import TrainConfig
from meshax.train.loop import Run
from meshax.train.options import DataOptions

_NOTHING_DRAWN = {"dropout": 0.0, "logit_jitter": 0.0}


class Parts:
    """A run that takes its steps in other ways."""

    def __init__(self, run: Run, steps: int):
        self.run, self.steps = run, steps
        self.state, self.key = run.first_state(), put(jax.random.key(1), run.mesh, run.layout)
        text = [next(run.batches) for _ in range(steps)]
        vocab = run.model.sizes()["vocab"]
        even = np.random.default_rng(0).integers(2, vocab, text[0]["tokens"].shape, np.int32)
        self.even = run.tensors({**text[0], "tokens": even, "targets": even})
        self.placed = [run.tensors(batch) for batch in text]
        self.host: dict[str, list[float]] = collections.defaultdict(list)

    def ways(self) -> dict[str, Callable[[], Any]]:
        """Returns what takes the steps of a round, and returns a loss to wait for."""
        return {
            "even": lambda: self.take(itertools.repeat(self.even)),
            "text": lambda: self.take(itertools.repeat(self.placed[0])),
            "placed": lambda: self.take(iter(self.placed)),
            "read": lambda: self.take(self.read()),
            "watched": lambda: self.take(self.read(), is_watched=True),
        }

    def take(self, batches: Iterator[Any], is_watched: bool = False) -> Any:
        """Takes the steps of a round."""
        loss = before = None
        for batch in itertools.islice(batches, self.steps):
            loss = self.step(batch)
            if is_watched and before is not None:
                _value(before)
            before = loss
        return loss

    def step(self, batch: Any) -> Any:
        """Begins a step, and returns its loss."""
        self.state, measured = self.timed("begin", lambda: self.run.step(self.state, batch, self.key))
        return measured["loss"]

    def read(self) -> Iterator[Any]:
        """Reads and places batches."""
        while True:
            batch = self.timed("read", lambda: next(self.run.batches))
            yield self.timed("place", lambda: self.run.tensors(batch))  # noqa: B023

    def timed(self, name: str, work: Callable[[], Any]) -> Any:
        """Does some work of the host, and remembers its time."""
        begin = time.perf_counter()
        result = work()
        self.host[name].append(time.perf_counter() - begin)
        return result

    def save(self) -> dict[str, Any]:
        """Saves, and takes steps until the checkpoint is on the disk; returns the times of these and of its parts."""
        marks: list[tuple[str, float, float]] = []
        for owner, name in ((writing.Saving, "_fetch"), (arrays, "write"), (writing, "hash_files")):
            setattr(owner, name, _marked(getattr(owner, name), name, marks))
        checkpoints, batches = self.run.checkpoints, self.read()
        checkpoints.prepare(self.state)
        float(self.step(next(batches)))
        self.host.clear()
        begin = time.perf_counter()
        checkpoints.save(1, self.state)
        stopped, ends, before = time.perf_counter() - begin, [], self.step(next(batches))
        is_over = 0
        while is_over < 5:  # and some steps beyond
            loss = self.step(next(batches))
            _value(before)
            before, is_over = loss, is_over + (not checkpoints.is_writing())
            ends.append(time.perf_counter() - begin)
        checkpoints.close()
        steps = [1e3 * (b - a) for a, b in itertools.pairwise([stopped, *ends])]
        return {
            "stopped_ms": 1e3 * stopped,
            "steps_ms": [round(one, 1) for one in steps],
            "host_ms": {name: [round(1e3 * one, 1) for one in times] for name, times in self.host.items()},
            "seconds": [(name, round(first - begin, 2), round(last - begin, 2)) for name, first, last in marks],
        }


def _value(loss: Any) -> float:
    loss.array.block_until_ready()  # as `meshax.train.watch` does
    return float(loss)


def _marked(work: Callable[..., Any], name: str, marks: list[tuple[str, float, float]]) -> Callable[..., Any]:
    def marked(*args: Any, **options: Any) -> Any:
        begin = time.perf_counter()
        try:
            return work(*args, **options)
        finally:
            marks.append((name, begin, time.perf_counter()))

    return marked


def measure(preset: str, batch: int, asked: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """Yields what is known of a model, as soon as it is."""
    config = TrainConfig(
        preset=preset, batch=batch, length=asked.length, steps=75, keep="everything", mesh="data:1", layout="none",
        out=str(folder / preset), data=DataOptions(cache=str(folder / "tokens")), model_=_NOTHING_DRAWN,
    )  # fmt: skip
    parts = Parts(Run(config), asked.steps)
    ways = parts.ways()
    jax.block_until_ready(ways["watched"]().array)
    parts.host.clear()
    rounds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(asked.rounds):
        for name, take in ways.items():
            begin = time.perf_counter()
            jax.block_until_ready(take().array)
            rounds[name].append(1e3 * (time.perf_counter() - begin) / asked.steps)
    yield {"median_ms": {name: round(statistics.median(one), 2) for name, one in rounds.items()}, "rounds_ms": rounds}
    yield {"host_ms": {name: round(1e3 * statistics.median(one), 2) for name, one in parts.host.items()}}
    if asked.kernels:
        even, text = (_by_kernel(lambda: ways[name]().array, asked.steps) for name in ("even", "text"))  # noqa: B023
        more = sorted({*even, *text}, key=lambda name: even.get(name, 0.0) - text.get(name, 0.0))[:6]
        yield {"kernels_ms": {name: [round(one.get(name, 0.0), 3) for one in (even, text)] for name in more}}
    if asked.save:
        yield parts.save()


def _by_kernel(run: Callable[[], Any], steps: int) -> dict[str, float]:
    """Returns the milliseconds of each kernel in a step."""
    spent: dict[str, float] = collections.defaultdict(float)
    for one in profiled(run):
        spent[one.kernel] += (one.end - one.begin) / 1e6 / steps
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="PRESET:BATCH")
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10, help="of a round")
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--kernels", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="meshax-training-") as folder:
        for preset, batch in (model.split(":") for model in asked.models):
            for found in measure(preset, int(batch), asked, Path(folder)):
                print(json.dumps({"preset": preset, "batch": int(batch), **found}), flush=True)


if __name__ == "__main__":
    main()
