"""Batches for training: shuffled, endless, the same for every number of processes, and resumable at any step.

The windows of a token file are permuted anew for each pass, by grain's shuffle, which computes where a window goes
instead of storing it: memory does not grow with the text. Batch n is a function of n, the seed and the token file
alone. Each process reads its own rows of it, and the rows of all, in the order of the processes, are the batch.
"""

import sys
from collections.abc import Iterator
from typing import Any

import grain
import numpy as np

from ..errors import ArgumentError, DataError
from .packing import Batch, Windows
from .tokens import TokenFile


class Batches(Iterator[Batch]):
    """An endless stream of batches: dicts of int32 arrays [rows of this process, length].

    Args:
        token_file: the text.
        length: of a sequence, in tokens.
        batch: how many sequences are in a batch, over all processes.
        seed: of the shuffle.
        shuffle: whether each pass has an order of its own; if not, all go from the beginning to the end.
        process_index: which rows to read: the i-th part of each batch.
        process_count: how many parts there are.
    """

    def __init__(
        self,
        token_file: TokenFile,
        length: int,
        batch: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        process_index: int = 0,
        process_count: int = 1,
    ):
        self._windows = Windows(token_file, length)
        self._first, self._rows = _rows(batch, process_index, process_count)
        self._batch = batch
        if len(self._windows) < batch:
            raise DataError(
                "there is less text than one batch.",
                values=f"{len(token_file):,} tokens make {len(self._windows):,} sequences of {length:,}, not {batch:,}",
                fix="choose a smaller batch or shorter sequences, or name more text.",
            )
        self._identity: dict[str, Any] = {
            "tokens": token_file.fingerprint,
            "length": length,
            "batch": batch,
            "seed": seed,
            "shuffle": shuffle,
        }
        order = grain.MapDataset.range(len(self._windows))
        self._order = (order.shuffle(seed=seed) if shuffle else order).repeat()
        steps = grain.MapDataset.range(sys.maxsize // batch).map(self._read)
        # Reading is copying from mapped memory: threads would only cost time.
        self._batches = iter(steps.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)))

    def _read(self, step: int) -> Batch:
        first = int(step) * self._batch + self._first
        return self._windows.read([int(self._order[first + row]) for row in range(self._rows)])

    def __next__(self) -> Batch:
        return next(self._batches)

    @property
    def num_windows(self) -> int:
        """How many sequences one pass over the text has."""
        return len(self._windows)

    def state(self) -> dict[str, Any]:
        """Returns what `restore` needs to continue here, for JSON: the same in every process."""
        return {**self._identity, "position": self._batches.get_state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Continues where a stream with this state was. The number of processes may be another."""
        changed = {name: value for name, value in self._identity.items() if state.get(name) != value}
        if changed or "position" not in state:
            raise DataError(
                "this state is of another stream.",
                values=", ".join(f"{name} was {state.get(name)!r}, is {value!r}" for name, value in changed.items()),
                rule="a stream continues with the same text, vocabulary, length, batch, seed and shuffle.",
                fix="make the stream as it was, or begin a new one.",
            )
        self._batches.set_state(state["position"])


def evaluation(
    token_file: TokenFile, length: int, batch: int, *, process_index: int = 0, process_count: int = 1
) -> Iterator[Batch]:
    """Yields the whole text once, in order, in batches as `Batches` has them.

    The last batch is filled up with rows of weight 0, so that all have one shape and all processes get as many.
    """
    windows = Windows(token_file, length)
    first, rows = _rows(batch, process_index, process_count)
    for begin in range(0, len(windows), batch):
        yield windows.read(np.arange(begin + first, begin + first + rows).tolist())


def _rows(batch: int, process_index: int, process_count: int) -> tuple[int, int]:
    """Returns the first row of a process, and how many it has."""
    if batch < 1 or not 0 <= process_index < process_count or batch % process_count:
        raise ArgumentError(
            f"a batch of {batch} sequences has no part {process_index} of {process_count}.",
            rule="all processes have equally many rows of a batch, and they are counted from 0.",
            fix=f"choose a batch that is a multiple of {process_count}.",
        )
    rows = batch // process_count
    return process_index * rows, rows
