"""The engine: many texts written at once, each in a slot, each at its own position.

A prompt is read whole (`prefill`) into a free slot. Then all slots go on together, a chunk of tokens in one program; a
text that ends frees its slot at the end of the chunk for the next prompt. There are few programs: one for each size of
prompts (powers of two), and one for each of a few numbers of pages that a step reads.

The next chunk is queued behind the one that runs before anybody has looked at it: the devices go on while Python reads,
cuts and tells. What a text has no use for is thrown away, so nothing that is written depends on it. Only where a text
waits for a slot the chunk is read first: one that ends in it would keep its slot for a chunk longer.

    engine = Engine(model, mesh, layout, slots=8, places=1024)
    for written in engine.generate([Request(prompt) for prompt in prompts]):
        print(written.tokens)
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from ..dim import Dim
from ..errors import ArgumentError
from ..layout import Layout, RulesLike
from ..mesh import Mesh
from ..models.contract import Model
from ..program import Program, spmd
from ..tensors import Tensor
from .requests import Request, Written
from .room import Room
from .slots import Slot, state_of, wishes_of
from .stepping import write_tokens
from .texts import Spelling, cut_at

if TYPE_CHECKING:
    from ..plan.explain.report import Report


class _Chunk(NamedTuple):
    """What was queued: whose texts it writes on, and what comes back."""

    slots: list[Slot | None]
    told: dict[str, Tensor]  # of `write_token`, [chunk, slots..]


class Engine:
    """Writes texts with a model on a mesh under a layout."""

    def __init__(
        self,
        model: Model,
        mesh: Mesh,
        layout: Layout | RulesLike,
        *,
        slots: int = 8,
        places: int = 1024,
        page: int = 128,
        source_places: int = 0,
        chunk: int = 16,
        decode: Callable[[list[int], Sequence[int]], str] | None = None,
    ):
        """Makes room for texts.

        Args:
            model: the model; placed on the mesh if it is not.
            mesh: the processors.
            layout: which dims are split over which mesh axes.
            slots: how many texts are written at once.
            places: how many tokens a text has at most, its prompt included.
            page: how many tokens a page of the cache holds: a step reads the pages that are in use.
            source_places: how many tokens a source has at most, of a model that reads one; 0: as many as a text.
            chunk: how many tokens are written before the engine looks at them.
            decode: makes text of tokens that come after others, where strings may stop a text.
        """
        self.batch, self.chunk, self.decode = Dim("batch", slots), Dim("chunk", chunk), decode
        self.room = Room(model, mesh, layout, (self.batch,), places, page, source_places)
        self._slots: list[Slot | None] = [None] * slots
        self._waiting: deque[Slot] = deque()
        self._count = 0
        self._asked: set[str] = set()  # of wishes, by any request so far: the others cost nothing
        self.steps: dict[int, Program[..., Any]] = {}  # for each number of pages that they read
        self._state: Any = None  # what the slots hold on the devices
        self._cache: Any = None
        self._queued: deque[_Chunk] = deque()  # one that runs, and perhaps one behind it

    @property
    def is_busy(self) -> bool:
        """Whether a text waits or is being written."""
        return bool(self._waiting) or any(self._slots)

    def submit(self, request: Request) -> int:
        """Takes a request, and returns its number."""
        self.room.check(request)
        spelling = None
        if request.stop_strings:
            if self.decode is None:
                raise ArgumentError(
                    "strings can stop a text only where tokens can be read.", fix="give the engine decode=."
                )
            spelling = Spelling(self.decode, request.prompt)
        self._asked |= set(wishes_of(request))
        self._waiting.append(Slot(self._count, request, Written(), spelling))
        self._count += 1
        return self._count - 1

    def turn(self, ahead: bool = True) -> list[tuple[int, Written]]:
        """Fills free slots, writes a chunk of tokens in each, and returns what all the texts are by now.

        Args:
            ahead: whether the next chunk may be queued before this one is read; not where somebody else knows of texts
                that wait for a slot.
        """
        if not any(self._slots):
            self._queued.clear()  # nobody is left to read it
        done = [] if self._queued else self._admit()
        if not any(self._slots):
            return done
        if not self._queued:
            self._queue_chunk()
        if ahead and self._goes_ahead():
            self._queue_chunk()
        return done + self._collect(self._queued.popleft())

    def program(self, length: int = 0) -> tuple[Program[..., Any], tuple[Any, ...]]:
        """Returns the program that writes a chunk of tokens, and its arguments, as shapes where they change.

        Args:
            length: of the longest text; by default the room there is. What requests asked for so far is asked for.
        """
        cache = jax.eval_shape(self.room.empty)
        state = state_of([None] * self.batch.size, self.batch, self.room.vocab, self._asked)
        return self._step(length or self.room.places), (self.room.model, cache, state)

    def explain(self, length: int = 0) -> "Report":
        """Says what that program does and sends."""
        program, arguments = self.program(length)
        return program.explain(*arguments)

    def generate(self, requests: Sequence[Request]) -> Iterator[Written]:
        """Yields what is written for each request, in their order, as soon as it and all before are done."""
        numbers = [self.submit(request) for request in requests]
        done: dict[int, Written] = {}
        for number in numbers:
            while number not in done:
                done |= {n: written for n, written in self.turn() if written.ended_by}
            yield done.pop(number)

    def cancel(self, number: int) -> None:
        """Forgets a request: its slot is free for another."""
        self._waiting = deque(slot for slot in self._waiting if slot.number != number)
        for i, slot in enumerate(self._slots):
            if slot is not None and slot.number == number:
                self._slots[i] = None

    def _admit(self) -> list[tuple[int, Written]]:
        """Reads waiting prompts into free slots."""
        done, prompts = [], {}
        free = deque(i for i, slot in enumerate(self._slots) if slot is None)
        while self._waiting and free:
            slot = self._waiting.popleft()
            if not slot.request.tokens:
                slot.written.ended_by = "length"
                done.append((slot.number, slot.written))
                continue
            self._slots[free[0]] = slot
            prompts[free.popleft()] = slot.request
        if prompts:
            self._cache = self.room.fill(self.room.empty() if self._cache is None else self._cache, prompts)
            # A slot that is free goes on for nobody until then: that costs nothing.
            self._state = state_of(self._slots, self.batch, self.room.vocab, self._asked)
        return done

    def _goes_ahead(self) -> bool:
        """Whether another chunk is queued: somebody has a use for it, nobody waits, and it need not be compiled."""
        written = len(self._queued) * self.chunk.size
        is_wanted = any(slot is not None and slot.left > written for slot in self._slots)
        return is_wanted and not self._waiting and self._pages(self._reach()) in self.steps

    def _queue_chunk(self) -> None:
        """Lets the devices write a chunk, after what they have to write already."""
        step = self._step(self._reach())
        self._cache, self._state, told = step(self.room.model, self._cache, self._state)
        for x in told.values():
            x.array.copy_to_host_async()
        self._queued.append(_Chunk(list(self._slots), told))

    def _reach(self) -> int:
        """Returns how long the longest text may be when all that is queued is written."""
        written = len(self._queued) * self.chunk.size
        return max(slot.length + min(written, slot.left) for slot in self._slots if slot is not None)

    def _collect(self, chunk: _Chunk) -> list[tuple[int, Written]]:
        """Takes in what a chunk has written: [chunk, slots], -1 where a text had ended."""
        news = []
        told = {name: _on_host(x) for name, x in chunk.told.items()}
        for i, slot in enumerate(chunk.slots):
            if slot is None or self._slots[i] is not slot:  # it has ended since
                continue
            request, written = slot.request, slot.written
            before = len(written.tokens)
            _take(slot, {name: x[:, i].tolist() for name, x in told.items()})
            if slot.spelling is not None and cut_at(request.stop_strings, written, slot.spelling, before):
                written.ended_by = "stop"
            elif not written.ended_by and len(written.tokens) == request.tokens:
                written.ended_by = "length"
            if written.ended_by:
                self._slots[i] = None
            news.append((slot.number, written))
        return news

    def _step(self, length: int) -> Program[..., Any]:
        """Returns the program that writes a chunk, where no text is longer than this before it."""
        pages = self._pages(length)
        if pages not in self.steps:
            self.steps[pages] = spmd(self._stepped(pages), self.room.mesh, self.room.layout_of_a_step, donate=(1, 2))
        return self.steps[pages]

    def _pages(self, length: int) -> int:
        return self.room.pages(min(length + self.chunk.size - 1, self.room.places))

    def _stepped(self, num_pages: int) -> Callable[..., Any]:
        def steps(model: Any, cache: Any, state: Any) -> Any:
            return write_tokens(model, cache, state, num_pages, self.chunk)

        return steps


def _take(slot: Slot, told: dict[str, list[Any]]) -> None:
    """Takes the tokens of a chunk into a text, as far as it goes, and what is told of them."""
    request, written = slot.request, slot.written
    for place, token in enumerate(told["token"]):
        if token < 0:
            return
        if request.log_probabilities:
            written.log_probabilities.append(told["likely"][place])
        if token in request.stop:
            written.ended_by = "stop"
            return
        written.tokens.append(token)
        if request.candidates:
            pairs = zip(told["candidates"][place], told["candidates_likely"][place], strict=True)
            written.candidates.append(list(pairs)[: request.candidates])


def _on_host(x: Tensor) -> np.ndarray:
    """Returns a result; a program that cuts its padding off would wait behind the next chunk, so that is done here."""
    return np.asarray(x.array)[tuple(slice(dim.size) for dim in x.dims)]
