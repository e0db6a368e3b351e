"""Batches for training: shuffled, endless, the same for every number of processes, and resumable at any step.

The windows of a token file are permuted anew for each pass, by grain's shuffle, which computes where a window goes
instead of storing it: memory does not grow with the text. Batch n is a function of n, the seed and the token file
alone. Each process reads its own rows of it, and the rows of all, in the order of the processes, are the batch.

Several token files with weights are a mixture (`mixture.py`): each is permuted by itself, as often as its share asks.
"""

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..errors import ArgumentError, DataError
from ..extras import extra
from .mixture import Mixture
from .packing import Batch, Windows
from .tokens import TokenFile, Tokens


class Batches(Iterator[Batch]):
    """An endless stream of batches: dicts of int32 arrays [rows of this process, length].

    Args:
        token_file: the text, or the texts of a mixture.
        length: of a sequence, in tokens.
        batch: how many sequences are in a batch, over all processes.
        seed: of the shuffle.
        weights: of a mixture, one for each text: its share of the examples.
        shuffle: whether each pass has an order of its own; if not, all go from the beginning to the end.
        process_index: which rows to read: the i-th part of each batch.
        process_count: how many parts there are.
    """

    def __init__(
        self,
        token_file: TokenFile | Sequence[TokenFile],
        length: int,
        batch: int,
        *,
        seed: int = 0,
        weights: Sequence[float] = (1,),
        shuffle: bool = True,
        process_index: int = 0,
        process_count: int = 1,
    ):
        files = [token_file] if isinstance(token_file, TokenFile) else list(token_file)
        if len(files) != len(weights):
            raise ArgumentError(
                f"a mixture has {len(files)} texts and {len(weights)} weights.", fix="give one weight for each text."
            )
        self._mixture, self._windows = Mixture(weights), [Windows(file, length) for file in files]
        self._first, self._rows = _rows(batch, process_index, process_count)
        self._batch = batch
        if self.num_windows < batch:
            size = sum(map(len, files))
            raise DataError(
                "there is less text than one batch.",
                values=f"{size:,} tokens make {self.num_windows:,} sequences of {length:,}, not {batch:,}",
                fix="choose a smaller batch or shorter sequences, or name more text.",
            )
        self._identity: dict[str, Any] = {
            "tokens": files[0].fingerprint,
            "length": length,
            "batch": batch,
            "seed": seed,
            "shuffle": shuffle,
        }
        if len(files) > 1:
            self._identity |= {"tokens": [file.fingerprint for file in files], "weights": self._mixture.weights}
        with extra("train", "batches"):
            import grain
        orders = [grain.MapDataset.range(len(windows)) for windows in self._windows]
        orders = [order.shuffle(seed=seed + number) if shuffle else order for number, order in enumerate(orders)]
        self._orders = [order.repeat() for order in orders]
        steps = grain.MapDataset.range(sys.maxsize // batch).map(self._read)
        # Reading is copying from mapped memory: threads would only cost time.
        self._batches = iter(steps.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)))

    def _read(self, step: int) -> Batch:
        first = int(step) * self._batch + self._first
        rows: list[list[int]] = [[] for _ in self._windows]
        numbers: list[list[int]] = [[] for _ in self._windows]
        for row in range(self._rows):
            source, number = self._mixture.at(first + row)
            rows[source].append(row)
            numbers[source].append(int(self._orders[source][number]))
        batch: Batch = {}
        for source, windows in enumerate(self._windows):
            for name, part in windows.read(numbers[source]).items():
                batch.setdefault(name, np.empty((self._rows, *part.shape[1:]), part.dtype))[rows[source]] = part
        return batch

    def __next__(self) -> Batch:
        return next(self._batches)

    @property
    def num_windows(self) -> int:
        """How many sequences one pass over the text has."""
        return sum(map(len, self._windows))

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
                rule="a stream continues with the same text, weights, vocabulary, length, batch, seed and shuffle.",
                fix="make the stream as it was, or begin a new one.",
            )
        self._batches.set_state(state["position"])


def evaluation(
    token_file: Tokens, length: int, batch: int, *, process_index: int = 0, process_count: int = 1
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
