"""Batches for training: shuffled, endless, the same for every number of processes, and resumable at any step.

The windows of a token file, or the rows of packed pairs, are permuted anew for each pass, by grain's shuffle, which
computes where a row goes instead of storing it: memory does not grow with the text. Batch n is a function of n, the
seed and the token file alone. A process reads those rows of it that its devices hold (`meshax.processes.LocalRows`).

Several token files with weights are a mixture (`mixture.py`): each is permuted by itself, as often as its share asks.
"""

import sys
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from ..errors import ArgumentError, DataError
from ..extras import extra
from .mixture import Mixture
from .packing import Batch, Windows
from .pair_packing import PackedPairs
from .tokens import TokenFile, Tokens

_SAME = "text, weights, vocabulary, length, batch, seed and shuffle"


def position_in(state: dict[str, Any], identity: dict[str, Any], same: str, kind: str = "stream") -> Any:
    """Returns the position that a state of a stream tells.

    Args:
        state: what `state` of a stream gave.
        identity: what the stream is known by that is to continue there.
        same: what has to be the same, in words.
        kind: what the stream is called.
    """
    changed = {name: value for name, value in identity.items() if state.get(name) != value}
    if changed or "position" not in state:
        raise DataError(
            f"this state is of another {kind}.",
            values=", ".join(f"{name} was {state.get(name)!r}, is {value!r}" for name, value in changed.items()),
            rule=f"a stream continues with the same {same}.",
            fix="make the stream as it was, or begin a new one.",
        )
    return state["position"]


class Rows(Protocol):
    """Examples of one shape, any of which can be read."""

    def __len__(self) -> int:
        """How many there are."""

    def read(self, numbers: Sequence[int]) -> Batch:
        """Returns some of them; one past the last is all padding."""


class RowBatches(Iterator[Batch]):
    """An endless stream of batches: dicts of int32 arrays.

    Args:
        sources: the examples, those of each source of a mixture.
        identity: what the stream is known by when it is to be continued, but for the batch, the seed and the shuffle.
        batch: how many rows are in a batch, over all processes.
        seed: of the shuffle.
        weights: of a mixture, one for each source: its share of the examples.
        shuffle: whether each pass has an order of its own; if not, all go from the beginning to the end.
        rows: which of each batch to read, in order; by default all.
    """

    def __init__(
        self,
        sources: Sequence[Rows],
        identity: dict[str, Any],
        batch: int,
        *,
        seed: int = 0,
        weights: Sequence[float] = (1,),
        shuffle: bool = True,
        rows: Sequence[int] | None = None,
    ):
        self._mixture, self._sources = Mixture(weights), sources
        self._rows = _rows(batch, rows)
        self._batch = batch
        self._identity = {**identity, "batch": batch, "seed": seed, "shuffle": shuffle}
        with extra("train", "batches"):
            import grain
        orders = [grain.MapDataset.range(len(source)) for source in sources]
        orders = [order.shuffle(seed=seed + number) if shuffle else order for number, order in enumerate(orders)]
        self._orders = [order.repeat() for order in orders]
        steps = grain.MapDataset.range(sys.maxsize // batch).map(self._read)
        # Reading is copying from mapped memory: threads would only cost time.
        self._batches = iter(steps.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)))

    def _read(self, step: int) -> Batch:
        first = int(step) * self._batch
        rows: list[list[int]] = [[] for _ in self._sources]
        numbers: list[list[int]] = [[] for _ in self._sources]
        for place, row in enumerate(self._rows):
            source, number = self._mixture.at(first + row)
            rows[source].append(place)
            numbers[source].append(int(self._orders[source][number]))
        batch: Batch = {}
        for source, examples in enumerate(self._sources):
            for name, part in examples.read(numbers[source]).items():
                batch.setdefault(name, np.empty((len(self._rows), *part.shape[1:]), part.dtype))[rows[source]] = part
        return batch

    def __next__(self) -> Batch:
        return next(self._batches)

    @property
    def position(self) -> int:
        """How many batches were read, also before the stream was continued."""
        return int(self._batches.get_state()["next_index"])

    def state(self) -> dict[str, Any]:
        """Returns what `restore` needs to continue here, for JSON: the same in every process."""
        return {**self._identity, "position": self._batches.get_state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Continues where a stream with this state was. The number of processes may be another."""
        self._batches.set_state(position_in(state, self._identity, _SAME))


class Batches(RowBatches):
    """Batches of text: dicts of int32 arrays [rows, length].

    Args:
        token_file: the text, or the texts of a mixture.
        length: of a sequence, in tokens.
        batch: how many sequences are in a batch, over all processes.
        weights: of a mixture, one for each text: its share of the examples.
        options: `seed`, `shuffle`, `rows` of `RowBatches`.
    """

    def __init__(
        self,
        token_file: TokenFile | Sequence[TokenFile],
        length: int,
        batch: int,
        *,
        weights: Sequence[float] = (1,),
        **options: Any,
    ):
        files = [token_file] if isinstance(token_file, TokenFile) else list(token_file)
        if len(files) != len(weights):
            raise ArgumentError(
                f"a mixture has {len(files)} texts and {len(weights)} weights.", fix="give one weight for each text."
            )
        windows = [Windows(file, length) for file in files]
        self.num_windows = sum(map(len, windows))  # sequences of one pass over the text
        identity: dict[str, Any] = {"tokens": files[0].fingerprint, "length": length}
        if len(files) > 1:
            identity |= {"tokens": [file.fingerprint for file in files], "weights": Mixture(weights).weights}
        super().__init__(windows, identity, batch, weights=weights, **options)
        if self.num_windows < batch:
            size = sum(map(len, files))
            raise DataError(
                "there is less text than one batch.",
                values=f"{size:,} tokens make {self.num_windows:,} sequences of {length:,}, not {batch:,}",
                fix="choose a smaller batch or shorter sequences, or name more text.",
            )


class PairBatches(RowBatches):
    """Batches of pairs.

    Args:
        pairs: what to read.
        batch: how many rows are in a batch, over all processes.
        options: `seed`, `shuffle`, `rows` of `RowBatches`.
    """

    def __init__(self, pairs: PackedPairs, batch: int, **options: Any):
        super().__init__([pairs], pairs.identity, batch, **options)
        if len(pairs) < batch:
            raise DataError(
                "there are fewer pairs than one batch has room for.",
                values=f"{pairs.num_pairs:,} pairs make {len(pairs):,} rows, not {batch:,}",
                fix="choose a smaller batch or shorter rows, or name more pairs.",
            )


def evaluation(token_file: Tokens, length: int, batch: int, *, rows: Sequence[int] | None = None) -> Iterator[Batch]:
    """Yields the whole text once, in order, in batches as `Batches` has them.

    The last batch is filled up with rows of weight 0, so that all have one shape and all processes get as many.
    """
    yield from in_order(Windows(token_file, length), batch, rows=rows)


def in_order(source: Rows, batch: int, *, rows: Sequence[int] | None = None) -> Iterator[Batch]:
    """Yields all examples once, in order; the last batch is filled up with rows of weight 0."""
    chosen = _rows(batch, rows)
    for begin in range(0, len(source), batch):
        yield source.read([begin + row for row in chosen])


def _rows(batch: int, rows: Sequence[int] | None) -> Sequence[int]:
    """Returns the rows to read, checked."""
    if batch < 1:
        raise ArgumentError(f"a batch of {batch} sequences holds nothing.", fix="choose a batch of 1 or more.")
    chosen = range(batch) if rows is None else rows
    if wrong := [row for row in chosen if not 0 <= row < batch]:
        raise ArgumentError(
            f"a batch of {batch} sequences has no row {wrong[0]}.",
            rule="rows are counted from 0, over all processes.",
            fix="take those of meshax.processes.LocalRows.",
        )
    return chosen
