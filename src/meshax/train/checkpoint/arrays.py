"""Arrays in files, block by block: nobody ever holds a whole array.

A saved array is a zarr of the logical shape. Its chunks are the blocks of the processors that wrote it (or equal parts
of a block), so every process writes its own without asking the others, and the padding of an uneven dim lies beyond the
edge. A reader asks for the blocks of its own mesh, whatever the writer's was, and pads them again. All arrays of a
process share one database of few files (tensorstore's OCDBT); `merge` makes one of all of them, by reference.
"""

import math
import os
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jax
import numpy as np
from jax.sharding import Sharding

from ...compat import Array
from ...errors import CheckpointError
from ...extras import extra
from .chunks import MAX_CHUNK_BYTES, Bounds, chunk_shape, chunks_of
from .copies import Copies
from .stacks import Source

with extra("train", "checkpoints"):
    import tensorstore as ts

_MAX_BYTES_IN_FLIGHT = 512 << 20
_FILE_BYTES = 256 << 20  # files of this size are hashed in parallel
_CACHE_BYTES = 1 << 30
_INLINED = 1 << 20  # bytes: small arrays are packed


@dataclass(frozen=True)
class Snapshot:
    """What this process writes of one array, on the host or on its way there; later steps do not change it."""

    shape: tuple[int, ...]
    dtype: np.dtype
    block: tuple[int, ...]
    parts: list[tuple[Bounds, Any]]  # arrays of the host, or copies in the memory of a device

    @property
    def num_bytes(self) -> int:
        """The bytes that this process writes."""
        return sum(part.nbytes for _, part in self.parts)

    def fetch(self) -> None:
        """Brings to the host what is not there yet, one part after the other, and frees the device's memory.

        Parts are chunks: the loss of a step comes to the host the same way, and waits for one of them, not for all.
        """
        for number, (bounds, part) in enumerate(self.parts):
            if isinstance(part, jax.Array):
                self.parts[number] = bounds, np.asarray(part)[_within(bounds)]


def prepare_copies(arrays: Mapping[str, tuple[Array, tuple[int, ...]]], copies: Copies) -> None:
    """Gets ready for snapshots of such arrays, whose first is as quick as the others then."""
    copies.prepare([data for blocks in _owned(arrays).values() for _, data in blocks])


def take_snapshots(
    arrays: Mapping[str, tuple[Array, tuple[int, ...]]], copies: Copies | None = None
) -> dict[str, Snapshot]:
    """Copies what this process writes. Copies of one block are shared out among the processes.

    Args:
        arrays: each array, padded or not, and its logical shape.
        copies: makes copies on devices that have room, which `Snapshot.fetch` brings to the host; by default, and
            without room, they are on the host when this returns.
    """
    owned = _owned(arrays)
    blocks = [data for blocks in owned.values() for _, data in blocks]
    copied = copies.of(blocks) if copies is not None else None
    if copied is None:
        for data in blocks:
            data.copy_to_host_async()
    else:
        others = iter(copied)
        owned = {
            name: [chunk for bounds, data in blocks for chunk in _chunks(bounds, data, next(others))]
            for name, blocks in owned.items()
        }
    return {
        name: _snapshot(array, shape, owned[name], copied is None)
        if name in owned
        else _of_host_array(np.asarray(array))
        for name, (array, shape) in arrays.items()
    }


def _owned(arrays: Mapping[str, tuple[Array, tuple[int, ...]]]) -> dict[str, list[tuple[Bounds, jax.Array]]]:
    """Returns the blocks that this process writes of each array that is on devices."""
    return {
        name: _owned_blocks(array, shape, turn)
        for turn, (name, (array, shape)) in enumerate(arrays.items())
        if isinstance(array, jax.Array)
    }


def _owned_blocks(array: jax.Array, shape: tuple[int, ...], turn: int) -> list[tuple[Bounds, jax.Array]]:
    holders: dict[Bounds, list[Any]] = {}
    for device, index in array.sharding.devices_indices_map(array.shape).items():
        holders.setdefault(_bounds(index, array.shape), []).append(device)
    local = {shard.device: shard.data for shard in array.addressable_shards}
    owned = []
    for number, (bounds, devices) in enumerate(holders.items()):
        owner = devices[(turn + number) % len(devices)]
        if owner in local and not _is_padding(bounds, shape):
            owned.append((bounds, local[owner]))
    return owned


def _chunks(bounds: Bounds, block: jax.Array, copied: Sequence[jax.Array]) -> list[tuple[Bounds, jax.Array]]:
    """Returns the chunks of a block, which `copied` has, and where in the array they are."""
    begins = [begin for begin, _ in bounds]
    inside = chunks_of(block.shape, block.dtype.itemsize)
    places = (tuple((a + begin, b + begin) for (a, b), begin in zip(one, begins, strict=True)) for one in inside)
    return list(zip(places, copied, strict=True))


def _snapshot(
    array: jax.Array, shape: tuple[int, ...], owned: list[tuple[Bounds, jax.Array]], on_host: bool
) -> Snapshot:
    parts = [(_clip(bounds, shape), data) for bounds, data in owned if not _is_padding(bounds, shape)]
    snapshot = Snapshot(shape, np.dtype(array.dtype), array.sharding.shard_shape(array.shape), parts)
    if on_host:
        snapshot.fetch()
        device: Any = next(iter(array.sharding.device_set))
        if device.platform == "cpu":  # it is seen in place, and the next step may be donated its memory
            snapshot.parts[:] = [(bounds, part.copy()) for bounds, part in snapshot.parts]
    return snapshot


def _within(bounds: Bounds) -> tuple[slice, ...]:
    """Where what lies within bounds is in a block that begins with them: padding follows it."""
    return tuple(slice(0, end - begin) for begin, end in bounds)


def _of_host_array(array: np.ndarray) -> Snapshot:
    whole = tuple((0, size) for size in array.shape)
    parts = [(whole, array if _is_of_file(array) else array.copy())] if jax.process_index() == 0 else []
    return Snapshot(array.shape, array.dtype, array.shape, parts)


def _is_of_file(array: Any) -> bool:
    """Whether an array is a view of a file that is only read: nobody will change it before it is written."""
    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap):
            return array.mode == "r"
        array = array.base
    return False


def write(database: Path, snapshots: Mapping[str, Snapshot]) -> None:
    """Writes the parts of this process into a database of its own, and returns when they are on the disk."""
    context = ts.Context()
    opened = {name: ts.open(_created(database, name, one), context=context) for name, one in snapshots.items()}
    in_flight: deque[tuple[Any, int]] = deque()
    num_bytes = 0
    for name, snapshot in snapshots.items():
        store = opened[name].result()
        for bounds, part in snapshot.parts:
            limit = MAX_CHUNK_BYTES if _is_of_file(part) else _MAX_BYTES_IN_FLIGHT  # those others are in memory anyway
            while in_flight and num_bytes + part.nbytes > limit:
                written, freed = in_flight.popleft()
                written.result()
                num_bytes -= freed
            target = store[tuple(slice(*pair) for pair in bounds)]
            in_flight.append((target.write(part, can_reference_source_data_indefinitely=True), part.nbytes))
            num_bytes += part.nbytes
    for written, _ in in_flight:
        written.result()


def merge(database: Path, parts: Sequence[Path]) -> None:
    """Makes one database of those of all processes; the blocks stay in the files where they are."""
    context = ts.Context()
    whole = ts.KvStore.open(_kvstore(database), context=context).result()
    transaction = ts.Transaction(atomic=True)
    for part in parts:
        source = ts.KvStore.open(_kvstore(part), context=context).result()
        source.experimental_copy_range_to(whole.with_transaction(transaction)).result()
    transaction.commit_async().result()


class Reader:
    """Reads arrays of a merged database as a mesh wants them."""

    def __init__(self, database: Path):
        self._database = database
        self._context = ts.Context({"cache_pool": {"total_bytes_limit": _CACHE_BYTES}})
        sizes = (Path(folder, name).stat().st_size for folder, _, names in os.walk(database) for name in names)
        self._most = sum(sizes) + _INLINED

    def _opened(self, names: Sequence[str]) -> list[Any]:
        """Opens arrays, none of which can be larger than the files that hold them all."""
        opening = [
            ts.open({**_zarr(self._database, name), "open": True}, read=True, context=self._context) for name in names
        ]
        stores = [future.result() for future in opening]
        for name, store in zip(names, stores, strict=True):
            size = math.prod(store.shape) * store.dtype.numpy_dtype.itemsize
            if size > self._most:
                raise CheckpointError(
                    "an array of a checkpoint says that it is larger than all files.",
                    values=f"{name}: {size:,} bytes in {self._most:,}",
                    fix="do not trust this checkpoint; take another one.",
                )
        return stores

    def whole(self, name: str, part: int | None = None) -> np.ndarray:
        """Reads an array, or one part of it along its first dim, to the host."""
        (store,) = self._opened([name])
        return np.asarray((store if part is None else store[part]).read().result())

    def start(self, source: Source, shape: tuple[int, ...], sharding: Sharding) -> "Reading":
        """Begins to read the blocks of this process.

        Args:
            source: the array, a part of one, or several to stack.
            shape: the padded shape under the sharding; saved dims beyond these (the words of a key) stay whole.
            sharding: where the blocks go.
        """
        stores = self._opened(source.names)
        store = ts.stack(stores) if source.is_stack else stores[0]
        store = store if source.part is None else store[source.part]
        shape = (*shape, *store.shape[len(shape) :])
        indices = sharding.addressable_devices_indices_map(shape)
        blocks = {
            bounds: store[tuple(slice(*pair) for pair in _clip(bounds, store.shape))].read()
            for bounds in {_bounds(index, shape) for index in indices.values() if index is not None}
            if not _is_padding(bounds, store.shape)
        }
        return Reading(shape, sharding, blocks)


@dataclass(frozen=True)
class Reading:
    """An array on its way from the disk."""

    shape: tuple[int, ...]
    sharding: Sharding
    blocks: Mapping[Bounds, Any]

    def finish(self, dtype: Any) -> jax.Array:
        """Waits for the blocks, pads them, and puts them on their devices."""
        read = {bounds: np.asarray(block.result()).astype(dtype, copy=False) for bounds, block in self.blocks.items()}

        def block_at(index: Any) -> np.ndarray:
            bounds = _bounds(index, self.shape)
            wanted = [end - begin for begin, end in bounds]
            if bounds not in read:  # all of it is padding
                return np.zeros(wanted, dtype)
            block = read[bounds]
            missing = [(0, size - have) for size, have in zip(wanted, block.shape, strict=True)]
            return np.pad(block, missing) if any(after for _, after in missing) else block

        return jax.make_array_from_callback(self.shape, self.sharding, block_at)


def _bounds(index: Sequence[slice], shape: Sequence[int]) -> Bounds:
    return tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))


def _is_padding(bounds: Bounds, shape: Sequence[int]) -> bool:
    """Whether all that lies within bounds is beyond the edge of a shape."""
    return any(begin >= size > 0 for (begin, _), size in zip(bounds, shape, strict=True))


def _clip(bounds: Bounds, shape: Sequence[int]) -> Bounds:
    return tuple((begin, min(end, size)) for (begin, end), size in zip(bounds, shape, strict=True))


def _kvstore(database: Path) -> dict[str, Any]:
    base = {"driver": "file", "path": f"{database}/"}
    return {"driver": "ocdbt", "base": base, "target_data_file_size": _FILE_BYTES}


def _zarr(database: Path, name: str) -> dict[str, Any]:
    return {
        "driver": "zarr3",
        "kvstore": {**_kvstore(database), "path": f"{quote(name, safe='[].')}/"},
        # a block that was never written is an error, not zeros
        "store_data_equal_to_fill_value": True,
        "fill_missing_data_reads": False,
    }


def _created(database: Path, name: str, snapshot: Snapshot) -> dict[str, Any]:
    chunk = chunk_shape(snapshot.block, snapshot.dtype.itemsize)
    metadata = {
        "shape": list(snapshot.shape),
        "data_type": snapshot.dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunk)}},
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
    }
    return {**_zarr(database, name), "metadata": metadata, "create": True}
