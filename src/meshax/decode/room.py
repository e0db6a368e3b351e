"""Room for texts: a model's cache on a mesh, and the programs that read prompts into it.

The last token of a prompt is not read: it is the first that a step takes, so tokens are chosen in one place only.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import jax
import numpy as np

from ..dim import Dim, Dims
from ..errors import ArgumentError
from ..layout import Layout, RulesLike
from ..mesh import Mesh
from ..models.contract import LanguageModel
from ..ops import broadcast, gather, where
from ..program import Program, put, spmd
from ..tensors import Tensor, is_tensor, tensor
from .requests import Request
from .rereading import caching
from .slots import power_of_two

_SMALLEST_BUCKET = 16
_NOT_OF_A_STEP = ("length", "positions")  # a step has one token of each text: there is nothing to split


class Room:
    """A model on a mesh, and room for as many texts as there are slots."""

    def __init__(
        self, model: LanguageModel, mesh: Mesh, layout: Layout | RulesLike, slots: Dims, places: int, page: int
    ):
        """Places the model.

        Args:
            model: the model.
            mesh: the processors.
            layout: which dims are split over which mesh axes.
            slots: the dims of the texts, `batch` first.
            places: how many tokens a text has at most, its prompt included.
            page: how many tokens a page of the cache holds.
        """
        self.mesh, self.slots, self.places, self.page = mesh, slots, places, page
        self.layout = layout if isinstance(layout, Layout) else Layout(layout)
        self.model = self._narrowed(put(caching(model), mesh, self.layout))
        rules = {dim: axes for dim, axes in self.layout.rules if dim not in _NOT_OF_A_STEP}
        self.layout_of_a_step = Layout(rules, dict(self.layout.params), dict(self.layout.optimizer))
        split = mesh.count(dict(self.layout.rules).get("batch", ()))
        self._prompts = Dim("batch", min(split, slots[0].size))  # as many are read at once as a batch is split into
        self._emptied = spmd(self._empty, mesh, self.layout_of_a_step)
        self.filling: dict[int, Program[..., Any]] = {}  # for each length of prompts

    @cached_property
    def vocab(self) -> Dim:
        """The dim of the tokens."""
        one = tensor(np.zeros((1, 1), np.int32), "batch length")
        return jax.eval_shape(lambda model, tokens: model(tokens), self.model, one).dim("vocab")

    def check(self, request: Request) -> None:
        """Raises if there is no room for a text, or no such token."""
        if self.places - len(request.prompt) < request.tokens:
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

    def empty(self) -> Any:
        """Returns a cache that holds nothing."""
        return self._emptied(self.model)

    def fill(self, cache: Any, prompts: Mapping[int, Sequence[int]]) -> Any:
        """Returns the cache, which is donated, with prompts in some slots, by their numbers along the batch."""
        waiting = list(prompts.items())
        while waiting:
            group, waiting = waiting[: self._prompts.size], waiting[self._prompts.size :]
            longest = max(len(prompt) - 1 for _, prompt in group)
            length = min(max(power_of_two(longest), _SMALLEST_BUCKET), self.places)
            tokens = np.zeros((self._prompts.size, length), np.int32)
            lengths = np.zeros(self._prompts.size, np.int32)
            source = np.full(self.slots[0].size, -1, np.int32)
            for row, (slot, prompt) in enumerate(group):
                lengths[row], source[slot] = len(prompt) - 1, row
                tokens[row, : lengths[row]] = prompt[:-1]
            if length not in self.filling:
                self.filling[length] = spmd(self._filled, self.mesh, self.layout, donate=1)
            cache = self.filling[length](
                self.model,
                cache,
                tensor(tokens, (self._prompts, Dim("length", length))),
                tensor(lengths, (self._prompts,)),
                tensor(source, self.slots[:1]),
            )
        return cache

    def pages(self, reach: int) -> int:
        """Returns how many pages a program reads where no text has more tokens than this: few numbers, few programs."""
        return power_of_two(-(-reach // self.page))

    def _narrowed(self, model: Any) -> Any:
        """Returns the model stored as narrow as it is computed with; the same arrays, if they are already."""
        before, after = (
            [leaf.dtype for leaf in jax.tree.leaves(tree)]
            for tree in (model, jax.eval_shape(lambda model: model.narrowed(), model))
        )
        return model if before == after else spmd(lambda model: model.narrowed(), self.mesh, self.layout)(model)

    def _empty(self, model: Any) -> Any:
        return model.empty_cache(self.slots, self.places, self.page)

    def _filled(self, model: Any, cache: Any, tokens: Tensor, lengths: Tensor, source: Tensor) -> Any:
        """Returns the cache with the beginnings of some texts in some slots: `source` says which, -1 for none."""
        fresh = model.prefill(tokens, lengths, model.empty_cache((self._prompts,), self.places, self.page))

        def insert(old: Tensor, new: Tensor) -> Tensor:
            rows = gather(new.rename(batch="prompts"), source, "prompts")
            return where(source >= 0, broadcast(rows, old.dims), old)

        return jax.tree.map(insert, cache, fresh, is_leaf=is_tensor)
