"""Continuous batching: texts wait in a bounded queue, and one thread writes them, as many at once as there are slots.

Whoever asks calls `submit` from any thread. The thread that owns the engine runs `work` again and again: it takes texts
from the queue into free slots, writes a chunk of tokens in each, and tells everybody what is new. A text that nobody
waits for any more is cancelled: its slot is free at the next turn.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..decode import Engine, Request, Written
from .metrics import Metrics
from .refusals import Refusal


@dataclass(frozen=True)
class News:
    """What is new of a text."""

    tokens: list[int] = field(default_factory=list)
    log_probabilities: list[float] = field(default_factory=list)
    ended_by: str = ""  # "stop" or "length", once it has ended
    text: str | None = None  # where a string stopped it: the whole text before
    candidates: list[list[tuple[int, float]]] = field(default_factory=list)  # of each token, as asked for
    refusal: Refusal | None = None  # why it will not end


@dataclass(eq=False)
class Text:
    """A text that somebody waits for."""

    request: Request
    tell: Callable[[News], None]  # called in the thread of the engine
    arrived: float = field(default_factory=time.monotonic)
    began: float = 0.0  # when it got its slot
    count: int = 0  # of tokens that were told


class Batcher:
    """The queue before an engine."""

    def __init__(self, engine: Engine, queue: int, metrics: Metrics):
        """Makes a queue.

        Args:
            engine: writes; of the one thread that calls `work`.
            queue: how many texts may wait for a slot.
            metrics: where everything is counted.
        """
        self.engine, self.limit, self.metrics = engine, queue, metrics
        self._changed = threading.Condition()
        self._waiting: deque[Text] = deque()
        self._running: dict[int, Text] = {}  # by their numbers in the engine
        self._cancelled: set[Text] = set()
        self._stopping = False

    @property
    def slots(self) -> int:
        """How many texts are written at once."""
        return self.engine.batch.size

    @property
    def num_waiting(self) -> int:
        """How many texts have no slot yet."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """How many texts have one."""
        return len(self._running)

    @property
    def is_busy(self) -> bool:
        """Whether there is a text to write."""
        return bool(self._waiting or self._running)

    @property
    def is_stopping(self) -> bool:
        """Whether no text is taken any more."""
        return self._stopping

    def submit(self, texts: Sequence[Text]) -> None:
        """Takes all of some texts, or raises a `Refusal`."""
        with self._changed:
            if self._stopping:
                raise stopping()
            room = self.limit + self.slots - len(self._running) - len(self._waiting)
            if len(texts) > room:
                seconds = math.ceil(self.metrics.mean_seconds * (1 + len(self._waiting) / self.slots))
                raise Refusal(
                    "the queue is full.", status=429, code="queue_full", retry_after=min(max(seconds, 1), 60),
                    values=f"{len(texts)} more, {len(self._waiting)} of {self.limit} waiting", fix="try again later.",
                )  # fmt: skip
            self._waiting.extend(texts)
            self._changed.notify()

    def cancel(self, texts: Sequence[Text]) -> None:
        """Forgets texts; those that have ended are not there any more anyway."""
        with self._changed:
            self._cancelled.update(texts)
            self._changed.notify()

    def refuse_all(self) -> None:
        """Takes no text from now on."""
        with self._changed:
            self._stopping = True

    def work(self, idle: float = 0.1) -> None:
        """Writes a chunk; where there is nothing to write, waits so many seconds for something."""
        with self._changed:
            if not self.is_busy:
                self._changed.wait(idle)
            self._forget()
            while self._waiting and len(self._running) < self.slots:
                text = self._waiting.popleft()
                text.began = time.monotonic()
                self._running[self.engine.submit(text.request)] = text
                self.metrics.add_prompt(len(text.request.prompt))
            is_wanted = bool(self._waiting)  # a slot
        for number, written in self.engine.turn(ahead=not is_wanted):
            self._tell(number, written)

    def fail(self, refusal: Refusal) -> None:
        """Tells everybody who waits that nothing will come."""
        with self._changed:
            texts = [*self._running.values(), *self._waiting]
            for number in self._running:
                self.engine.cancel(number)
            self._running.clear()
            self._waiting.clear()
        for text in texts:
            text.tell(News(refusal=refusal))

    def _forget(self) -> None:
        for number, text in list(self._running.items()):
            if text in self._cancelled:
                self.engine.cancel(number)
                del self._running[number]
        if self._cancelled:
            self._waiting = deque(text for text in self._waiting if text not in self._cancelled)
            self._cancelled.clear()

    def _tell(self, number: int, written: Written) -> None:
        text, now = self._running[number], time.monotonic()
        new = written.tokens[text.count :]
        waited = now - text.arrived if new and not text.count else None
        likely = written.log_probabilities[text.count : len(written.tokens)]
        rivals = written.candidates[text.count :]
        text.count = len(written.tokens)
        self.metrics.add_tokens(len(new), waited)
        if written.ended_by:
            del self._running[number]
            self.metrics.add_text(text.count, now - text.began, now - text.arrived)
        text.tell(News(new, likely, written.ended_by, written.text, rivals))


def stopping() -> Refusal:
    """Returns what is answered while the server stops."""
    return Refusal("the server is stopping.", status=503, code="stopping", retry_after=10, fix="ask another one.")
