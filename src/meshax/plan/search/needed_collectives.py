"""What a layout communicates, for many layouts at once, from one named trace.

An unsplit trace has no collectives. Which a layout needs follows from the names: a sum over a split dim is a pending
sum, which whoever uses it sums up; a rename gathers, scatters or exchanges axes; what goes along a split dim (sorting,
cumulative sums, slices) fetches what it needs from other processors. All rows of the table in the language's design
are here; docs/language.md has them operation by operation.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from ...collectives import summing_dtype
from ...compat import Array
from ...layout import block_size
from ...ops.neighbours import sent_lengths
from ..reading.broadcasting import rounded
from ..reading.walk import Block, Step, Value
from .borders import SLIDING, names_of_taps, whose_border, windows_of
from .graph import Graph, summed_names

Pending = dict[Value, Array]  # for each pending sum a bit mask of the axes, one for each candidate
Send = Callable[[str, Array, Array, Any, Step | None, bool], None]  # kind, axes, bytes, dtype, step, whether it joins


class NeededCollectives:
    """Walks through a named trace once, and sends what each candidate layout needs to."""

    def __init__(
        self,
        graph: Graph,
        masks: Mapping[str, Array],
        processors: Array,
        count: int,
        local: Callable[[Value], Value],
        send: Send,
    ):
        """Prepares the walk.

        Args:
            graph: the trace.
            masks: for each name a bit mask of the axes that split it, one for each candidate.
            processors: how many there are along each set of axes, by its bit mask.
            count: the number of candidates.
            local: what one processor holds of a value.
            send: told of every collective.
        """
        self.graph, self.masks, self.processors, self.local, self.send = graph, masks, processors, local, send
        self.nothing = np.zeros(count, int)
        self._is_sending = True
        self._gathered: set[tuple[Value, int]] = set()  # once, for all who need it
        stored = [frozenset(d.name for d in x.dims) for x in graph.arguments if getattr(x, "role", None) == "param"]
        self._parameters = {*stored, *(names - graph.looped_names() for names in stored)} - {frozenset()}

    def walk(self) -> None:
        """Sends all of it; what the program returns is summed up."""
        pending: Pending = {}
        self._walk(self.graph.block, pending)
        for value in dict.fromkeys(self.graph.block.outputs):
            self._settle(value, pending, None)

    def _walk(self, block: Block, pending: Pending) -> None:
        for step in block.steps:
            if step.blocks:
                self._through_blocks(step, pending)
            elif step.name == "named":
                self._rename(step, pending)
            elif (along := _ALONG.get(step.name)) and not self._keeps_pending(step):
                self._settle_inputs(step, pending)
                along(self, step)
            elif self._keeps_pending(step):
                masks = [pending[v] for v in step.inputs if v in pending]
                pending.update((out, masks[0]) for out in step.outputs if masks)
                if step.name == "reshape":
                    self._reshape(step)
            elif step.traits.linear == "added":
                self._add(step, pending)
            else:
                self._compute(step, pending)

    def _charge(
        self, kind: str, mask: Array, operand: Value, step: Step | None, *, size: Array = None, joins: bool = False
    ) -> None:
        if self._is_sending and mask.any():
            bytes_ = self.local(operand).bytes if size is None else size
            if kind in ("all-reduce", "reduce-scatter"):
                bytes_ = bytes_ // operand.dtype.itemsize * summing_dtype(operand.dtype).itemsize
            self.send(kind, mask, bytes_, operand.dtype, step, joins)

    def _mask(self, names: Sequence[str | None]) -> Array:
        mask = self.nothing
        for name in names:
            if name is not None and name in self.masks:
                mask = mask | self.masks[name]
        return mask

    def _keeps_pending(self, step: Step) -> bool:
        """Whether the result of a step is as pending as its operand; an activation is cast after it is summed."""
        if step.traits.linear == "cast":
            return frozenset(filter(None, self.graph.of(step.inputs[0]))) in self._parameters
        if step.traits.linear == "scaled":
            return any(not v.shape for v in step.inputs)
        if step.name == "slice":
            return not any(step.params["start_indices"]) and not step.params["strides"]
        return step.traits.linear == "moved" and step.name != "pad"

    def _settle_inputs(self, step: Step, pending: Pending) -> None:
        for value in step.inputs:
            self._settle(value, pending, step)

    def _settle(self, value: Value, pending: Pending, step: Step | None) -> None:
        mask = pending.pop(value, None)
        if mask is not None:
            self._charge("all-reduce", mask, value, step, joins=step is not None and step.phase == "update")

    def _compute(self, step: Step, pending: Pending) -> None:
        mask = self._mask(list(summed_names(step, self.graph)))
        if step.traits.reduces == "sum":  # of a pending sum: as pending
            mask = mask | pending.get(step.inputs[0], 0)
        else:
            self._settle_inputs(step, pending)
        if step.name == "gather":
            mask = self.nothing if _is_windowing(step) else self._look_up(step, mask)
            self._cut_windows(step)
        elif step.name.startswith("scatter"):
            mask = self._scatter(step)
        elif step.name in SLIDING:
            self._fetch_borders(step)
        if step.outputs and mask.any():
            pending[step.outputs[0]] = mask
        if step.traits.reduces == "extremum":
            self._compare(step)

    def _compare(self, step: Step) -> None:
        """One all-reduce of the result; two for a place, that of the value as well; products are gathered."""
        value, out = step.inputs[0], step.outputs[0]
        lost = [n for n in self.graph.of(value) if n not in self.graph.of(out)]
        for _ in range(2 if step.name in ("argmax", "argmin") else 1):
            kind = "all-gather" if step.name == "reduce_prod" else "all-reduce"
            self._charge(kind, self._mask(lost), out, step)

    def _look_up(self, step: Step, mask: Array) -> Array:
        """Returns over which axes a lookup is a pending sum.

        Where table and indices share axes, the indices are gathered, and the result is scattered again.
        """
        table, indices, out = step.inputs[0], step.inputs[1], step.outputs[0]
        kept = [n for n in self.graph.of(out) if n not in self.graph.of(table)]
        shared = mask & self._mask(kept)
        self._charge("all-gather", shared, indices, step)
        whole = self.local(out).bytes * self.processors[shared]
        self._charge("reduce-scatter", shared, out, step, size=whole)
        return mask & ~shared

    def _scatter(self, step: Step) -> Array:
        """Returns over which axes what is written is a pending sum: those of the dims that it loses.

        Where they split the written dim too, what is written is gathered first.
        """
        updates, out = step.inputs[2], step.outputs[0]
        lost = [n for n in self.graph.of(updates) if n not in self.graph.of(out)]
        positions = step.params["dimension_numbers"].scatter_dims_to_operand_dims
        written = self._mask([self.graph.of(out)[i] for i in positions])
        mask = self._mask(lost)
        for value in step.inputs[1:]:
            self._charge("all-gather", mask & written, value, step)
        return mask & ~written

    def _add(self, step: Step, pending: Pending) -> None:
        masks = [pending.get(v, self.nothing) for v in step.inputs]
        same = np.logical_and.reduce([m == masks[0] for m in masks])
        for value, mask in zip(step.inputs, masks, strict=True):
            self._charge("all-reduce", np.where(same, 0, mask), value, step, joins=step.phase == "update")
        if (kept := np.where(same, masks[0], 0)).any():
            pending[step.outputs[0]] = kept

    def _rename(self, step: Step, pending: Pending) -> None:
        """An axis that goes from one dim to another is an all-to-all, one that only goes an all-gather.

        One that only comes is a slice, or a reduce-scatter of a pending sum.
        """
        value, out = step.inputs[0], step.outputs[0]
        mask = pending.get(value, self.nothing)
        changed = [(o, n) for o, n in zip(self.graph.of(value), step.params["names"], strict=True) if o and o != n]
        left = [self._mask([old]) & ~self._mask([new]) for old, new in changed]
        gained = [self._mask([new]) & ~self._mask([old]) for old, new in changed]
        for i, j in ((i, j) for i in range(len(changed)) for j in range(len(changed)) if i != j):
            moved = left[i] & gained[j]
            self._charge("all-to-all", moved, value, step)
            left[i], gained[j] = left[i] & ~moved, gained[j] & ~moved
        for some in gained:
            scattered = mask & some
            self._charge("reduce-scatter", scattered, value, step)
            mask = mask & ~scattered
        for some in left:
            self._charge("all-gather", some, value, step)
        if mask.any():
            pending[out] = mask

    def _reshape(self, step: Step) -> None:
        """A group of dims that is merged or taken apart is gathered, unless its first dims are split alike."""
        value, out = step.inputs[0], step.outputs[0]
        namings = [user.params["names"] for user in out.consumers if user.name == "named"]
        before, after = self.graph.of(value), namings[0] if namings else self.graph.of(out)
        for old, new in _groups(value.shape, out.shape):
            if len(old) == len(new) == 1:
                continue
            first, then = self._mask([before[old[0]]]), self._mask([after[new[0]]])
            count = self.processors[first]
            divides = (value.shape[old[0]] % count == 0) & (out.shape[new[0]] % count == 0)
            shared = np.where((first == then) & divides, first, 0)
            self._charge("all-gather", self._mask([before[i] for i in old]) & ~shared, value, step)

    def _through_blocks(self, step: Step, pending: Pending) -> None:
        self._settle_inputs(step, pending)
        if step.name != "scan":
            for block in step.blocks:
                inside: Pending = {}
                self._walk(block, inside)
                for value in dict.fromkeys(block.outputs):
                    self._settle(value, inside, value.maker)
            return
        consts, carry = step.params["num_consts"], step.params["num_carry"]
        for value in step.inputs[consts + carry :]:  # a loop over a split dim gathers what it loops over
            self._charge("all-gather", self._mask(self.graph.of(value)[:1]), value, step)
        body = step.blocks[0]
        inside = {}
        was_sending, self._is_sending = self._is_sending, False
        self._walk(body, inside)  # once without sending: which sums does it carry on?
        sums = {
            into: inside[out]
            for into, out, first in zip(body.inputs[consts:], body.outputs[:carry], step.inputs[consts:], strict=False)
            if out in inside and _is_zero(first)
        }
        self._is_sending, inside = was_sending, dict(sums)
        self._walk(body, inside)
        for into, out in zip(body.inputs[consts:], body.outputs[:carry], strict=False):
            if into not in sums and out in inside:
                self._charge("all-reduce", inside.pop(out), out, out.maker)
        pending.update((v, inside[o]) for v, o in zip(step.outputs, body.outputs, strict=True) if o in inside)

    def _sort(self, step: Step) -> None:
        value, position = step.inputs[0], step.params["dimension"]
        self._charge("all-gather", self._mask([self.graph.of(value)[position]]), value, step)

    def _add_up(self, step: Step) -> None:
        """Cumulative sums: one total from each processor."""
        value, position = step.inputs[0], step.params["axis"]
        totals = self.local(value).bytes // self.local(value).shape[position]
        self._charge("all-gather", self._mask([self.graph.of(value)[position]]), value, step, size=totals)

    def _select(self, step: Step) -> None:
        """The largest: values and places of as many candidates from each processor."""
        value, position = step.inputs[0], step.params.get("axis", -1)
        for out in step.outputs:
            self._charge("all-gather", self._mask([self.graph.of(value)[position]]), out, step)

    def _slice(self, step: Step) -> None:
        value, out = step.inputs[0], step.outputs[0]
        starts, strides = step.params["start_indices"], step.params["strides"] or (1,) * len(out.shape)
        is_taken_apart = any(user.name == "squeeze" for user in out.consumers)  # as `unstack` does: all of it is needed
        for position, (start, stride) in enumerate(zip(starts, strides, strict=True)):
            if not is_taken_apart:
                self._permute(step, value, position, start, stride)
            elif out.shape[position] < value.shape[position] and (value, position) not in self._gathered:
                self._gathered.add((value, position))
                self._charge("all-gather", self._mask([self.graph.of(value)[position]]), value, step)

    def _cut_windows(self, step: Step) -> None:
        """Sends what windows reach of their neighbours; of what was padded for it, what was there before."""
        if not _is_windowing(step):
            return
        value, out, before = step.inputs[0], step.outputs[0], 0
        (position,) = step.params["dimension_numbers"].start_index_map
        padded, new, width = value.shape[position], out.shape[position], out.shape[position + 1]
        if value.maker is not None and value.maker.name == "pad":
            before = value.maker.params["padding_config"][position][0]
            value = value.maker.inputs[0]
        stride = (padded - width) // max(new - 1, 1)
        self._permute(step, value, position, -before, max(stride, 1), width)

    def _fetch_borders(self, step: Step) -> None:
        """Sends the borders that windows reach, dim after dim; a kernel whose taps are split is gathered."""
        self._charge("all-gather", self._mask(names_of_taps(step, self.graph)), step.inputs[-1], step)
        value = whose_border(step)
        local, grown = self.local(value), np.ones(len(self.nothing))
        for position, slide in windows_of(step, self.graph):
            mask, block = self._mask([slide.dim.name]), local.shape[position]
            for number in np.unique(mask[self.processors[mask] > 1]):
                chosen, reads = mask == number, slide.reads(int(self.processors[number]))
                sent = rounded(local.bytes / block * grown * reads.sent)
                self._charge("permute", np.where(chosen, mask, 0), value, step, size=sent)
                grown = np.where(chosen, grown * reads.width / block, grown)

    def _pad(self, step: Step) -> None:
        if any(_is_windowing(user) for user in step.outputs[0].consumers):
            return
        for position, (before, _, _) in enumerate(step.params["padding_config"]):
            self._permute(step, step.inputs[0], position, -before)

    def _join(self, step: Step) -> None:
        position, start = step.params["dimension"], 0
        for value in step.inputs:
            if value.maker is None or value.maker.name != "slice":  # what is cut to be joined has been sent already
                self._permute(step, value, position, -start)
            start += value.shape[position]

    def _flip(self, step: Step) -> None:
        for position in step.params["dimensions"]:
            self._permute(step, step.inputs[0], position, 0, flips=True)

    def _permute(
        self, step: Step, value: Value, position: int, start: int, stride: int = 1, width: int = 1, flips: bool = False
    ) -> None:
        """Sends what each block of the result needs of others' blocks of the operand."""
        size, new, name = value.shape[position], step.outputs[0].shape[position], self.graph.of(value)[position]
        if name is None or name not in self.masks or (size == new and not start and width == 1 and not flips):
            return
        mask, local = self.masks[name], self.local(value)
        for number in np.unique(mask):
            for length in _permutes(size, new, int(self.processors[number]), start, stride, width, flips):
                sent = local.bytes // local.shape[position] * length
                self._charge("permute", np.where(mask == number, mask, 0), value, step, size=sent)


_ALONG: dict[str, Callable[[NeededCollectives, Step], None]] = {
    "sort": NeededCollectives._sort,
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"), NeededCollectives._add_up),
    "top_k": NeededCollectives._select,
    "slice": NeededCollectives._slice,
    "pad": NeededCollectives._pad,
    "concatenate": NeededCollectives._join,
    "rev": NeededCollectives._flip,
}


@cache
def _permutes(size: int, new: int, count: int, start: int, stride: int, width: int, flips: bool) -> tuple[int, ...]:
    """Returns how many elements along a dim each permute sends, where each block of the result is a window."""
    block = block_size(new, count)
    firsts = [size - (p + 1) * block if flips else start + stride * p * block for p in range(count)]
    return tuple(sent_lengths(size, firsts, [(block - 1) * stride + width] * count))


def _groups(before: Sequence[int], after: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Cuts two shapes of one product into the smallest groups of equal product; returns positions, not of size 1."""
    old, new = ([i for i, size in enumerate(shape) if size > 1] for shape in (before, after))
    groups, i, j = [], 0, 0
    while i < len(old) and j < len(new):
        first, then = i, j
        i, j = i + 1, j + 1
        while (gone := math.prod(before[n] for n in old[first:i])) != (
            come := math.prod(after[n] for n in new[then:j])
        ):
            i, j = (i + 1, j) if gone < come else (i, j + 1)
        groups.append((old[first:i], new[then:j]))
    return groups


def _is_windowing(step: Step) -> bool:
    """Whether a step looks up places that are known beforehand: it cuts windows."""
    if step.name != "gather" or len(step.params["dimension_numbers"].start_index_map) != 1:
        return False
    todo, seen = [step.inputs[1]], set()
    if len(todo[0].shape) != 3 or len(step.outputs[0].shape) != len(step.inputs[0].shape) + 1:
        return False
    while todo:
        value = todo.pop()
        is_tensor = value.maker.name == "named" if value.maker is not None else not value.is_constant
        if is_tensor:
            return False
        if value not in seen and value.maker is not None:
            todo.extend(value.maker.inputs)
        seen.add(value)
    return True


def _is_zero(value: Value) -> bool:
    """Whether a value is a constant spread out: the start of a sum."""
    passed = ("broadcast_in_dim", "convert_element_type", "pvary", "named")
    while value.maker is not None and value.maker.name in passed:
        value = value.maker.inputs[0]
    return value.is_constant
