"""The engine: many texts written at once, each in a slot, each at its own position.

A prompt is read whole (`prefill`) into a free slot. Then all slots go on together, a chunk of tokens in one program; a
text that ends frees its slot at the end of the chunk for the next prompt. There are few programs: one for each size of
prompts (powers of two), and one for each number of pages that a step reads, likewise. The last token of a prompt is not
part of the prefill: it is the first that a step takes, so tokens are chosen in one place only.

    engine = Engine(model, mesh, layout, slots=8, places=1024)
    for written in engine.generate([Request(prompt) for prompt in prompts]):
        print(written.tokens)
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..dim import Dim
from ..errors import ArgumentError
from ..layout import Layout, RulesLike
from ..mesh import Mesh
from ..models.contract import LanguageModel
from ..ops import gather, scan, transpose, where
from ..program import Program, put, spmd
from ..tensors import Tensor, is_tensor, tensor
from .choosing import choose, is_among, log_probability, with_token
from .requests import Request, Written
from .rereading import caching
from .slots import Slot, power_of_two, state_of, wishes_of

_SMALLEST_BUCKET = 16
_NOT_OF_A_STEP = ("length", "positions")  # a step has one token of each text: there is nothing to split


class Engine:
    """Writes texts with a model on a mesh under a layout."""

    def __init__(
        self,
        model: LanguageModel,
        mesh: Mesh,
        layout: Layout | RulesLike,
        *,
        slots: int = 8,
        places: int = 1024,
        page: int = 128,
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
            chunk: how many tokens are written before the engine looks at them.
            decode: makes text of tokens that come after others, where strings may stop a text.
        """
        self.layout = layout if isinstance(layout, Layout) else Layout(layout)
        self.mesh, self.places, self.page, self.chunk, self.decode = mesh, places, page, Dim("chunk", chunk), decode
        self.model = put(caching(model), mesh, self.layout)
        self.batch = Dim("batch", slots)
        self._slots: list[Slot | None] = [None] * slots
        self._waiting: deque[Slot] = deque()
        self._count = 0
        self._asked: set[str] = set()  # of wishes, by any request so far: the others cost nothing
        self._programs: dict[Any, Program[..., Any]] = {}
        self._state: Any = None  # what the slots hold on the devices; None: to be made from what we know of them
        self._cache: Any = None

    @cached_property
    def vocab(self) -> Dim:
        """The dim of the tokens."""
        one = tensor(np.zeros((1, 1), np.int32), "batch length")
        return jax.eval_shape(lambda model, tokens: model(tokens), self.model, one).dim("vocab")

    @property
    def is_busy(self) -> bool:
        """Whether a text waits or is being written."""
        return bool(self._waiting) or any(self._slots)

    def submit(self, request: Request) -> int:
        """Takes a request, and returns its number."""
        room = self.places - len(request.prompt)
        if room < request.tokens:
            raise ArgumentError(
                f"a text of {len(request.prompt)} tokens and {request.tokens} more does not fit.",
                values=f"{self.places} places",
                fix="give the engine more places, or ask for fewer tokens.",
            )
        tokens = (*request.prompt, *request.banned, *request.forced)
        if wrong := [token for token in tokens if not 0 <= token < self.vocab.size]:
            raise ArgumentError(
                f"there is no token {wrong[0]}.", values=f"{self.vocab.size} tokens", fix="encode with its vocabulary."
            )
        if request.stop_strings and self.decode is None:
            raise ArgumentError(
                "strings can stop a text only where tokens can be read.", fix="give the engine decode=."
            )
        self._asked |= set(wishes_of(request))
        self._waiting.append(Slot(self._count, request, Written()))
        self._count += 1
        return self._count - 1

    def turn(self) -> list[tuple[int, Written]]:
        """Fills free slots, writes a chunk of tokens in each, and returns what all the texts are by now."""
        done = self._admit()
        active = [slot for slot in self._slots if slot is not None]
        if not active:
            return done
        reach = max(len(slot.text) for slot in active) + self.chunk.size - 1
        self._cache, self._state, tokens, likely = self._program("step", power_of_two(-(-reach // self.page)))(
            self.model, self._cache, self._state
        )
        return done + self._collect(tokens.numpy(), likely.numpy())

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
                self._slots[i], self._state = None, None

    def _admit(self) -> list[tuple[int, Written]]:
        """Reads waiting prompts into free slots, as many at once as the layout splits a batch into."""
        done, free = [], deque(i for i, slot in enumerate(self._slots) if slot is None)
        while self._waiting and free:
            group: dict[int, Slot] = {}
            while self._waiting and free and len(group) < self._prompts.size:
                slot = self._waiting.popleft()
                if not slot.request.tokens:
                    slot.written.ended_by = "length"
                    done.append((slot.number, slot.written))
                    continue
                group[free.popleft()] = slot
            if group:
                self._fill(group)
        if self._state is None:
            self._state = state_of(self._slots, self.batch, self.vocab, self._asked)
        return done

    @property
    def _prompts(self) -> Dim:
        split = self.mesh.count(dict(self.layout.rules).get("batch", ()))
        return Dim("batch", min(split, self.batch.size))

    def _fill(self, group: dict[int, Slot]) -> None:
        longest = max(len(slot.request.prompt) - 1 for slot in group.values())
        length = min(max(power_of_two(longest), _SMALLEST_BUCKET), self.places)
        tokens = np.zeros((self._prompts.size, length), np.int32)
        lengths = np.zeros(self._prompts.size, np.int32)
        source = np.full(self.batch.size, -1, np.int32)
        for row, (i, slot) in enumerate(group.items()):
            beginning = slot.request.prompt[:-1]
            tokens[row, : len(beginning)], lengths[row], source[i] = beginning, len(beginning), row
            self._slots[i] = slot
        if self._cache is None:
            self._cache = self._program("cache", None)(self.model)
        self._cache = self._program("fill", length)(
            self.model,
            self._cache,
            tensor(tokens, (self._prompts, Dim("length", length))),
            tensor(lengths, (self._prompts,)),
            tensor(source, (self.batch,)),
        )
        self._state = None

    def _collect(self, tokens: np.ndarray, likely: np.ndarray) -> list[tuple[int, Written]]:
        """Takes in what a chunk has written: [chunk, slots], -1 where a text had ended."""
        news = []
        for i, slot in enumerate(self._slots):
            if slot is None:
                continue
            request, written = slot.request, slot.written
            for token, log_p in zip(tokens[:, i].tolist(), likely[:, i].tolist(), strict=True):
                if token < 0:
                    break
                written.log_probabilities.append(log_p)
                if token in request.stop:
                    written.ended_by = "stop"
                    break
                written.tokens.append(token)
            if request.stop_strings and written.cut_at(request.stop_strings, partial(self._text, after=request.prompt)):
                written.ended_by = "stop"
            elif not written.ended_by and len(written.tokens) == request.tokens:
                written.ended_by = "length"
            if written.ended_by:
                self._slots[i], self._state = None, None
            news.append((slot.number, written))
        return news

    def _text(self, tokens: list[int], after: Sequence[int]) -> str:
        assert self.decode is not None
        return self.decode(tokens, after)

    def _program(self, kind: str, size: Any) -> Program[..., Any]:
        """Returns the program of a kind, one for each size."""
        if (kind, size) not in self._programs:
            rules = {dim: axes for dim, axes in self.layout.rules if dim not in _NOT_OF_A_STEP}
            of_a_step = Layout(rules, dict(self.layout.params), dict(self.layout.optimizer))
            program: Program[..., Any]
            if kind == "cache":
                program = spmd(self._emptied, self.mesh, of_a_step)
            elif kind == "fill":
                program = spmd(self._filled, self.mesh, self.layout, donate=1)
            else:
                program = spmd(self._stepped(size), self.mesh, of_a_step, donate=(1, 2))
            self._programs[kind, size] = program
        return self._programs[kind, size]

    def _emptied(self, model: Any) -> Any:
        return model.empty_cache((self.batch,), self.places, self.page)

    def _filled(self, model: Any, cache: Any, tokens: Tensor, lengths: Tensor, source: Tensor) -> Any:
        """Returns the cache with the beginnings of some texts in some slots: `source` says which, -1 for none."""
        fresh = model.prefill(tokens, lengths, model.empty_cache((self._prompts,), self.places, self.page))

        def insert(old: Tensor, new: Tensor) -> Tensor:
            rows = gather(new.rename(batch="prompts"), source, "prompts")
            return where(source >= 0, transpose(rows, old.dims), old)

        return jax.tree.map(insert, cache, fresh, is_leaf=is_tensor)

    def _stepped(self, num_pages: int) -> Callable[..., Any]:
        def steps(model: Any, cache: Any, state: Any) -> Any:
            stop, wishes = state["stop"], state["wishes"]

            def step(carry: Any, _: Any) -> Any:
                cache, token, at, left, made, seen = carry
                logits, cache = model.step(token, at, cache, num_pages)
                logits = logits.astype(jnp.float32)
                chosen = choose(logits, wishes, at + 1, made, seen)
                likely = log_probability(logits, chosen)
                writes = left > 0
                after = where(is_among(chosen, stop, "stop"), 0, left - 1)
                moved = (
                    cache,
                    where(writes, chosen, token),
                    where(writes, at + 1, at),
                    where(writes, after, 0),
                    made + 1,
                    seen if seen is None else with_token(seen, chosen),
                )
                return moved, (where(writes, chosen, -1), likely)

            first = (cache, state["token"], state["at"], state["left"], state["made"], state["seen"])
            (cache, token, at, left, made, seen), (tokens, likely) = scan(step, first, over=self.chunk)
            now = state | {"token": token, "at": at, "left": left, "made": made, "seen": seen}
            return cache, now, tokens, likely

        return steps
