"""Batches of volumes: what they hold is read when it is asked for, and only the block that is asked for.

A batch is a dict of arrays that are not there yet: `image` [batch, dims.., channel], `labels` [batch, dims..] and
`weights`, which is 0 where there is no voxel. Whoever cuts a block out of one has it read or made. So a process that
holds a corner of each volume reads that corner (`meshax.processes.LocalRows` asks for blocks, device by device).

Which case an example shows, and what is changed in it, follows from the seed and from the number of the example in the
stream; so batch n is a function of n.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .augmentation import Augmentation, draw, unchanged
from .blocks import Block, sizes_of, slices_of
from .stream import position_in
from .volumes import Cases

DTYPES = {"image": np.dtype(np.float32), "labels": np.dtype(np.int32), "weights": np.dtype(np.float32)}
Window = tuple[float, float]  # the intensities that become -1 and 1; what is far beyond is cut off
_FAR = 2.0


@dataclass(frozen=True)
class Example:
    """A part of a case, changed at random or not."""

    cases: Cases
    number: int  # of the case
    shape: tuple[int, ...]  # of the example
    change: Augmentation
    window: Window

    def read(self, block: Block) -> dict[str, np.ndarray]:
        """Reads a block of the example."""
        asked = self.change.source(block, self.shape)
        volume = self.cases.shape(self.number)
        there = tuple((min(begin, size), min(end, size)) for (begin, end), size in zip(asked, volume, strict=True))
        image, labels = self.cases.read(self.number, there)
        low, high = self.window
        middle, half = np.float32((low + high) / 2), np.float32((high - low) / 2)
        image = np.clip((image - middle) / half, -np.float32(_FAR), np.float32(_FAR))
        arrays = {"image": image, "labels": labels, "weights": np.ones(labels.shape, np.float32)}
        if there != asked:  # beyond the volume
            before = tuple(begin - first for (begin, _), (first, _) in zip(there, asked, strict=True))
            own = tuple(slice(start, start + size) for start, size in zip(before, sizes_of(there), strict=True))
            for name, array in arrays.items():
                padded = np.full(
                    (*sizes_of(asked), *array.shape[len(asked) :]), -1 if name == "image" else 0, array.dtype
                )
                if array.size:
                    padded[own] = array
                arrays[name] = padded
        arrays = {name: self.change.turned(array) for name, array in arrays.items()}
        return arrays | {"image": self.change.changed(arrays["image"], block, self.shape)}


class LazyArray:
    """One of the arrays of a batch: it has a shape and a dtype, and a block of it is read when it is cut out."""

    def __init__(self, examples: "_Examples", name: str, shape: tuple[int, ...]):
        self.shape, self.dtype = shape, DTYPES[name]
        self._examples, self._name = examples, name

    def __getitem__(self, index: tuple[slice, ...]) -> np.ndarray:
        bounds = tuple(part.indices(size)[:2] for part, size in zip(index, self.shape, strict=True))
        (first, last), *block = bounds[: self._examples.num_dims + 1]
        channels: tuple[Any, ...] = (..., *slices_of(bounds[self._examples.num_dims + 1 :]))
        array = np.empty(sizes_of(bounds), self.dtype)
        for row in range(first, last):
            array[row - first] = self._examples.read(row, tuple(block))[self._name][channels]
        return array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self[tuple(slice(size) for size in self.shape)].astype(dtype or self.dtype, copy=False)


class _Examples:
    """The examples of a batch, and what was read of them: several devices and arrays ask for the same."""

    def __init__(self, examples: Sequence[Example | None], shape: tuple[int, ...], num_channels: int):
        self.num_dims = len(shape)
        self._examples, self._num_channels = examples, num_channels
        self._blocks: dict[tuple[int, Block], dict[str, np.ndarray]] = {}

    def read(self, row: int, block: Block) -> dict[str, np.ndarray]:
        """Returns a block of all arrays of an example; of none, padding."""
        if (row, block) not in self._blocks:
            example = self._examples[row]
            self._blocks[row, block] = self._padding(block) if example is None else example.read(block)
        return self._blocks[row, block]

    def _padding(self, block: Block) -> dict[str, np.ndarray]:
        sizes = sizes_of(block)
        shapes = {"image": (*sizes, self._num_channels), "labels": sizes, "weights": sizes}
        return {name: np.zeros(shape, DTYPES[name]) for name, shape in shapes.items()}


def lazy_batch(examples: Sequence[Example | None], shape: tuple[int, ...], num_channels: int) -> dict[str, LazyArray]:
    """Returns a batch of examples of one shape, read when they are asked for; none are padding."""
    inner, sizes = _Examples(examples, shape, num_channels), (len(examples), *shape)
    shapes = {"image": (*sizes, num_channels), "labels": sizes, "weights": sizes}
    return {name: LazyArray(inner, name, shapes[name]) for name in DTYPES}


class VolumeBatches(Iterator[dict[str, LazyArray]]):
    """An endless stream of batches: each pass goes over all cases, in an order of its own.

    Args:
        cases: what to learn from.
        shape: of an example: a larger volume is cropped, a smaller one padded.
        num_channels: of an image.
        batch: how many examples are in a batch, over all processes.
        window: the intensities that become -1 and 1.
        changes: what is changed at random, of `CHANGES`.
        seed: of the order and the changes.
        rows: which of each batch to read, in order; by default all.
    """

    def __init__(
        self,
        cases: Cases,
        shape: tuple[int, ...],
        num_channels: int,
        batch: int,
        *,
        window: Window,
        changes: Sequence[str] = (),
        seed: int = 0,
        rows: Sequence[int] | None = None,
    ):
        self._cases, self._shape, self._num_channels, self._batch = cases, shape, num_channels, batch
        self._window, self._changes, self._seed = window, tuple(changes), seed
        self._rows = range(batch) if rows is None else rows
        self._identity = {
            "cases": cases.fingerprint, "shape": list(shape), "batch": batch, "seed": seed,
            "window": list(window), "changes": list(changes),
        }  # fmt: skip
        self._step = 0
        self._order: tuple[int, np.ndarray] = (-1, np.empty(0, int))  # of the last pass that was asked for

    def __next__(self) -> dict[str, LazyArray]:
        first = self._step * self._batch
        self._step += 1
        return lazy_batch([self._example(first + row) for row in self._rows], self._shape, self._num_channels)

    def _example(self, number: int) -> Example:
        epoch, place = divmod(number, len(self._cases))
        if self._order[0] != epoch:
            self._order = epoch, np.random.default_rng([self._seed, epoch]).permutation(len(self._cases))
        case = int(self._order[1][place])
        change = draw((self._seed, 1, number), self._changes, self._cases.shape(case), self._shape)
        return Example(self._cases, case, self._shape, change, self._window)

    @property
    def position(self) -> int:
        """How many batches were read, also before the stream was continued."""
        return self._step

    def state(self) -> dict[str, Any]:
        """Returns what `restore` needs to continue here, for JSON: the same in every process."""
        return {**self._identity, "position": self._step}

    def restore(self, state: dict[str, Any]) -> None:
        """Continues where a stream with this state was. The number of processes may be another."""
        same = "cases, shape, batch, seed, window and changes"
        self._step = int(position_in(state, self._identity, same))


def tiles(
    cases: Cases,
    shape: tuple[int, ...],
    num_channels: int,
    batch: int,
    *,
    window: Window,
    rows: Sequence[int] | None = None,
) -> Iterator[dict[str, LazyArray]]:
    """Yields all voxels of all cases once, in order, unchanged: examples side by side, padding beyond a volume.

    Args:
        cases: what to evaluate on.
        shape: of an example.
        num_channels: of an image.
        batch: how many examples are in a batch.
        window: the intensities that become -1 and 1.
        rows: which of each batch to read, in order; by default all.
    """
    places = iter(
        Example(cases, number, shape, unchanged(offset), window)
        for number in range(len(cases))
        for offset in itertools.product(
            *(range(0, whole_size, size) for whole_size, size in zip(cases.shape(number), shape, strict=True))
        )
    )
    while examples := list(itertools.islice(places, batch)):
        padded = [*examples, *[None] * (batch - len(examples))]
        yield lazy_batch([padded[row] for row in (range(batch) if rows is None else rows)], shape, num_channels)
