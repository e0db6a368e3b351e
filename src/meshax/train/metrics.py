"""What a run writes down: metrics as JSON lines and TensorBoard events, and a picture of the loss at the end.

A disk that is full or away does not end a run: what could not be written is kept, and written when it can be.
"""

import contextlib
import io
import json
import math
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import TrainingError
from ..extras import check_extra, extra
from ..files import append_whole, write_whole
from .tracking import Tracker

_PICTURES = "pictures of the loss"
_BITS = 1 / math.log(2)
_LARGE = 1e6  # shown with an exponent from there


class Metrics:
    """The metrics of a run, appended to as it goes; a resumed run forgets what was written after its checkpoint."""

    def __init__(
        self,
        directory: Path,
        from_step: int = 0,
        trackers: Sequence[Tracker] = (),
        warn: Callable[[str], None] = lambda text: None,
    ):
        """Opens `metrics.jsonl` and `events/` in the run's directory; trackers get the same."""
        check_extra("train", _PICTURES, "matplotlib")  # it is drawn when all is done
        self._trackers, self._warn, self._is_failing = trackers, warn, False
        self._unwritten: list[dict[str, Any]] = []
        self.path = directory / "metrics.jsonl"
        self.rows = [row for row in read_metrics(self.path) if row["step"] <= from_step]
        with _told(self.path):
            write_whole(self.path, "".join(json.dumps(row) + "\n" for row in self.rows))
        self._events = Events(directory / "events", from_step)

    def write(self, step: int, **values: float) -> None:
        """Writes the values of a step, at once; what is not a number is null, as JSON has no word for it."""
        row = {"step": step, **finite(values)}
        self.rows.append(row)
        self._unwritten.append(row)
        self._try()
        for tracker in self._trackers:
            tracker.write(step, _numbers(row))

    def _try(self) -> None:
        """Writes what is not written yet, if the disk lets it."""
        try:
            append_whole(self.path, "".join(json.dumps(row) + "\n" for row in self._unwritten))
            waiting, self._unwritten = self._unwritten, []
            for row in waiting:
                self._events.add(row["step"], _numbers(row))
            self._events.flush()
            self._is_failing = False
        except OSError as error:
            if not self._is_failing:
                said = error.strerror or error
                self._warn(f"what a run measures cannot be written to {self.path}: {said}; it is kept until it can be")
            self._is_failing = True

    def show(self, step: int, name: str, picture: np.ndarray) -> None:
        """Writes a picture, colours [height, width, 3], over the one before it, and as an event."""
        with extra("train", _PICTURES):
            from matplotlib import image

        content, path = io.BytesIO(), self.path.with_name(f"{name}.png")
        image.imsave(content, picture, format="png")
        try:
            write_whole(path, content.getvalue())
        except OSError as error:
            self._warn(f"{path} cannot be written: {error.strerror or error}")
        self._events.add(step, {name: picture})
        self._try()

    def close(self) -> None:
        """Closes the events file, and what else gets the metrics."""
        self._try()
        self._events.close()
        for tracker in self._trackers:
            tracker.close()
        if self._unwritten:
            self._warn(f"{len(self._unwritten)} rows of {self.path} could not be written")


class Events:
    """Scalars and pictures for TensorBoard.

    Of a disk that was full, half a record may be left: what follows goes to a new file.
    """

    def __init__(self, folder: Path, from_step: int = 0):
        """Opens a file; of an earlier one, TensorBoard forgets what came after a step."""
        self._folder, self._number = folder, 0
        self._waiting: list[tuple[int, Mapping[str, float | np.ndarray]]] = []
        self._purge = from_step + 1 if from_step else None
        with extra("train", "events for TensorBoard"):
            from tensorboardX import record_writer, summary
            from tensorboardX.proto import event_pb2

        self._writer, self._summary, self._proto = record_writer.RecordWriter, summary, event_pb2
        self._file: Any = None

    def add(self, step: int, values: Mapping[str, float | np.ndarray]) -> None:
        """Takes the values of a step, numbers and pictures; `flush` writes them."""
        self._waiting.append((step, values))

    def flush(self) -> None:
        """Writes what was added, or raises an OSError and keeps it."""
        try:
            if self._file is None:
                self._open()
            for step, values in self._waiting:
                for name, value in values.items():
                    is_picture = isinstance(value, np.ndarray)
                    add = partial(self._summary.image, dataformats="HWC") if is_picture else self._summary.scalar
                    self._write(step, summary=add(name, value))
            self._file.flush()
            self._waiting = []
        except OSError:
            self.close()
            raise

    def _open(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}"
        self._number += 1
        self._file = self._writer(str(self._folder / (f"{name}.{self._number}" if self._number > 1 else name)))
        self._write(0, file_version="brain.Event:2")
        if self._purge is not None:
            self._write(self._purge, session_log=self._proto.SessionLog(status=self._proto.SessionLog.START))
            self._purge = None

    def _write(self, step: int, **content: Any) -> None:
        self._file.write(self._proto.Event(wall_time=time.time(), step=step, **content).SerializeToString())

    def close(self) -> None:
        """Closes the file, as far as the disk lets it; what comes after that goes to another one."""
        file, self._file = self._file, None
        with contextlib.suppress(OSError):
            if file is not None:
                file.close()


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in row.items() if value is not None and name != "step"}


class Unwritten(Metrics):
    """The metrics of a process that leaves the writing to another."""

    def __init__(self) -> None:
        self.rows = []

    def write(self, step: int, **values: float) -> None:
        """Does nothing."""

    def show(self, step: int, name: str, picture: np.ndarray) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """Says what to do when a file cannot be written."""
    try:
        yield
    except OSError as error:
        raise TrainingError(
            "what a run measures cannot be written.",
            values=f"{path}: {error.strerror or error}",
            rule="the run stops; its last checkpoint stays.",
            fix="make room, and start the run again: it goes on from there.",
        ) from error


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Reads the rows that were written whole: a run that was killed may have left half of one."""
    rows = []
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                rows.append(json.loads(line))
            except ValueError:
                break
    return rows


def show_number(value: float, digits: int) -> str:
    """Returns a number for reading: `34.18`, and of a run that blew up `1.2e+130`, not its 131 digits."""
    return f"{value:.{digits}f}" if not abs(value) >= _LARGE else f"{value:.2g}"


def finite(values: Mapping[str, float]) -> dict[str, float | None]:
    """Replaces what is not a number, or infinite, by None: JSON has no word for it."""
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def bits_per_byte(nats: float, size: int) -> float:
    """Returns how many bits each byte of a text takes, which compares vocabularies."""
    return nats * _BITS / max(size, 1)


def draw_curve(rows: list[dict[str, Any]], path: Path, lines: dict[str, float], unit: str) -> None:
    """Draws the loss of training and evaluation, and lines to compare with, such as a bigram model's.

    Args:
        rows: what was measured.
        path: of the picture.
        lines: losses to compare with, by name.
        unit: what the loss is a mean over, one of it.
    """
    with extra("train", _PICTURES):
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.2), dpi=130, layout="constrained")
    for name, label in (("loss", "training"), ("eval_loss", "held out")):
        points = [(row["step"], row[name]) for row in rows if row.get(name) is not None]
        if points:
            axes.plot(*zip(*points, strict=True), label=label, marker="o" if name == "eval_loss" else "", linewidth=1.4)
    for label, value in lines.items():
        axes.axhline(value, color="gray", linestyle="--", linewidth=1, label=label)
    axes.set(xlabel="step", ylabel=f"loss (nats per {unit})")
    axes.grid(alpha=0.25)
    axes.legend()
    figure.savefig(path)
    pyplot.close(figure)
