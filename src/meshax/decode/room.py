"""Room for texts: a model's cache on a mesh, and the programs that read prompts into it.

The last token of a prompt is not read: it is the first that a step takes, so tokens are chosen in one place only.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..compat import Array
from ..dim import Dim, Dims, without
from ..errors import ArgumentError
from ..layout import Layout, RulesLike
from ..mesh import Mesh
from ..models.contract import Model, shape_of
from ..ops import broadcast, gather, where
from ..ops.operands import compute
from ..plan.cost.limits import memory_there
from ..plan.printing.units import show_bytes
from ..program import Program, put, spmd
from ..tensors import Tensor, is_tensor, tensor
from .requests import Request
from .rereading import caching
from .slots import SMALLEST_BUCKET, power_of_two

_COARSE = 8  # pages: above, three quarters of a power of two have a program too
_NOT_OF_A_STEP = ("length", "positions")  # a step has one token of each text: there is nothing to split


class Room:
    """A model on a mesh, and room for as many texts as there are slots."""

    def __init__(
        self,
        model: Model,
        mesh: Mesh,
        layout: Layout | RulesLike,
        slots: Dims,
        places: int,
        page: int,
        source_places: int = 0,
    ):
        """Places the model.

        Args:
            model: the model.
            mesh: the processors.
            layout: which dims are split over which mesh axes.
            slots: the dims of the texts, `batch` first.
            places: how many tokens a text has at most, its prompt included.
            page: how many tokens a page of the cache holds.
            source_places: how many tokens a source has at most, of a model that reads one; 0: as many as a text.
        """
        self.mesh, self.slots, self.places, self.page = mesh, slots, places, page
        self.layout = layout if isinstance(layout, Layout) else Layout(layout)
        self.model = self._narrowed(put(caching(model), mesh, self.layout))
        rules = {dim: axes for dim, axes in self.layout.rules if dim not in _NOT_OF_A_STEP}
        self.layout_of_a_step = Layout(rules, dict(self.layout.params), dict(self.layout.optimizer))
        split = mesh.count(dict(self.layout.rules).get("batch", ()))
        self._few = min(split, slots[0].size)  # as many prompts are read at once as a batch is split into
        self._reads_sources = getattr(model, "reads_sources", False)
        self.source_places = (source_places or places) if self._reads_sources else 0
        self._check_memory()
        self._emptied = spmd(self._empty, mesh, self.layout_of_a_step)
        self.filling: dict[tuple[int, ...], Program[..., Any]] = {}  # for each number of prompts, and their lengths

    def _check_memory(self) -> None:
        """Raises if all processors together have no room for what is kept of such texts."""
        if self.mesh.is_abstract:
            return
        some = (1,) if self._reads_sources else ()
        few = min(self.page, self.places)  # a page: a text may be shorter, and have no more positions
        page = jax.eval_shape(lambda model: model.empty_cache(self.slots, few, self.page, *some), self.model)
        needs = -(-self.places // self.page) * sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(page))
        there = memory_there(self.mesh) * self.mesh.size
        if needs > there:
            count = math.prod(dim.size for dim in self.slots)
            texts = f"{count:,} texts" if count > 1 else "a text"
            raise ArgumentError(
                f"there is no memory for {texts} of {self.places:,} tokens.",
                values=f"what is kept takes {show_bytes(needs)}, and there are {show_bytes(there)}",
                fix="write fewer tokens, or fewer texts at once.",
            )

    @cached_property
    def vocab(self) -> Dim:
        """The dim of the tokens."""
        one = shape_of(self.slots)
        step = lambda model, token: model.step(token, token, self._empty(model), 1)[0]  # noqa: E731
        return jax.eval_shape(step, self.model, one).dim("vocab")

    def check(self, request: Request) -> None:
        """Raises if there is no room for a text, or no such token."""
        if self.places - len(request.prompt) < request.tokens:
            raise ArgumentError(
                f"a text of {len(request.prompt)} tokens and {request.tokens} more does not fit.",
                values=f"{self.places} places",
                fix="give the engine more places, or ask for fewer tokens.",
            )
        self._check_source(request)
        tokens = (*request.prompt, *request.banned, *request.forced, *request.source)
        if wrong := [token for token in tokens if not 0 <= token < self.vocab.size]:
            raise ArgumentError(
                f"there is no token {wrong[0]}.", values=f"{self.vocab.size} tokens", fix="encode with its vocabulary."
            )

    def _check_source(self, request: Request) -> None:
        if bool(request.source) != self._reads_sources:
            raise ArgumentError(
                "this model writes from a source, and there is none."
                if self._reads_sources
                else "this model reads no source.",
                rule="a model that translates reads a source for each text; a language model reads none.",
                fix="give the request source=." if self._reads_sources else "leave out source=, or make it the prompt.",
            )
        if len(request.source) > self.source_places:
            raise ArgumentError(
                f"a source of {len(request.source)} tokens does not fit.",
                values=f"{self.source_places} places",
                fix="give more source_places, or shorten it.",
            )

    def empty(self) -> Any:
        """Returns a cache that holds nothing."""
        return self._emptied(self.model)

    def fill(self, cache: Any, requests: Mapping[int, Request]) -> Any:
        """Returns the cache, which is donated, with prompts in some slots, by their numbers along the batch."""
        waiting = list(requests.items())
        while waiting:
            # A source is as long as its text: where many are waiting they are read together.
            many = self._reads_sources and 2 * len(waiting) > self.slots[0].size
            batch = Dim("batch", self.slots[0].size if many else self._few)
            group, waiting = waiting[: batch.size], waiting[batch.size :]
            taken = np.full(self.slots[0].size, -1, np.int32)
            for row, (slot, _) in enumerate(group):
                taken[slot] = row
            least = 1 if self._reads_sources else SMALLEST_BUCKET
            read: tuple[Tensor, ...] = _padded(
                batch, "length", [one.prompt[:-1] for _, one in group], least, self.places
            )
            if self._reads_sources:
                sources = [one.source for _, one in group]
                read += _padded(batch, "source_length", sources, SMALLEST_BUCKET, self.source_places)
            key = (batch.size, *(x.dims[1].size for x in read[::2]))
            if key not in self.filling:
                self.filling[key] = spmd(self.filled, self.mesh, self.layout, donate=1)
            cache = self.filling[key](self.model, cache, tensor(taken, self.slots[:1]), *read)
        return cache

    def pages(self, reach: int) -> int:
        """Returns how many pages a program reads where no text has more tokens than this: few numbers, few programs."""
        used, every = (-(-count // self.page) for count in (reach, self.places))
        size = power_of_two(used)
        if size >= _COARSE and used <= size * 3 // 4:
            size = size * 3 // 4
        return min(size, every)

    @property
    def page_counts(self) -> list[int]:
        """All numbers of pages that programs read."""
        return sorted({self.pages(reach) for reach in range(1, self.places + 1, self.page)})

    def _narrowed(self, model: Any) -> Any:
        """Returns the model stored as narrow as it is computed with; the same arrays, if they are already."""
        before, after = (
            [leaf.dtype for leaf in jax.tree.leaves(tree)]
            for tree in (model, jax.eval_shape(lambda model: model.narrowed(), model))
        )
        return model if before == after else spmd(lambda model: model.narrowed(), self.mesh, self.layout)(model)

    def _empty(self, model: Any) -> Any:
        return model.empty_cache(self.slots, self.places, self.page, *self._source_room())

    def _source_room(self) -> tuple[int, ...]:
        return (self.source_places,) if self._reads_sources else ()

    def filled(self, model: Any, cache: Any, taken: Tensor, tokens: Tensor, lengths: Tensor, *sources: Tensor) -> Any:
        """Returns the cache with the beginnings of some texts in some slots: `taken` says which, -1 for none."""
        room = model.empty_cache((tokens.dim("batch"),), self.places, self.page, *self._source_room())
        fresh = model.prefill(tokens, lengths, room, *sources)

        few = tokens.dim("batch").size
        insert = _put_rows if 2 * few <= self.slots[0].size else _replaced
        return jax.tree.map(lambda old, new: insert(old, new, taken), cache, fresh, is_leaf=is_tensor)


def _replaced(old: Tensor, new: Tensor, taken: Tensor) -> Tensor:
    """Returns slots with what is new in some of them: all are written."""
    rows = gather(new.rename(batch="prompts"), taken, "prompts")
    return where(taken >= 0, broadcast(rows, old.dims), old)


def _put_rows(old: Tensor, new: Tensor, taken: Tensor) -> Tensor:
    """Returns the same, but only those few are written: a cache of many long texts is not read and written for one."""
    batch = old.dim("batch")
    position = old.dims.index(batch)
    prompts = Dim("prompts", new.dim("batch").size)
    rows = broadcast(new.rename(batch=prompts.name), (prompts, *without(old.dims, (batch,))))

    def put(old: Array, rows: Array, taken: Array) -> Array:
        for number in range(prompts.size):
            row = jnp.expand_dims(rows[number], position)
            is_here = taken == number  # of a split batch, at most one processor has the slot
            start: list[Any] = [0] * old.ndim
            start[position] = jnp.argmax(is_here)
            before = lax.dynamic_slice(old, start, row.shape)
            old = lax.dynamic_update_slice(old, jnp.where(jnp.any(is_here), row, before), start)
        return old

    return Tensor(compute(put, [old, rows, taken]), old.dims)


def _padded(batch: Dim, name: str, texts: Sequence[Sequence[int]], least: int, most: int) -> tuple[Tensor, Tensor]:
    """Returns texts as one tensor, of few different lengths, so that there are few programs; and how long each is."""
    longest = max(map(len, texts))
    tokens = np.zeros((batch.size, min(max(power_of_two(longest), least), most)), np.int32)
    for row, text in zip(tokens, texts, strict=False):
        row[: len(text)] = text
    lengths = np.array([*map(len, texts), *[0] * (batch.size - len(texts))], np.int32)
    return tensor(tokens, (batch, Dim(name, tokens.shape[1]))), tensor(lengths, (batch,))
