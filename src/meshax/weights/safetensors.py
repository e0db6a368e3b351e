"""Files of tensors by name, as the library `safetensors` writes them: mapped into memory, never executed.

A file has the length of its header in 8 bytes, the header (JSON: the dtype, the shape and the place of each tensor) and
the bytes of the tensors. Nothing of a header is taken on trust: its length is limited, and the places of the tensors
have to be as long as their shapes say, and to fill the file without gap or overlap. To look at a tensor reads from the
disk only what is looked at.
"""

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from ..errors import CheckpointError

_MAX_HEADER = 100 << 20  # bytes
_LENGTH = 8  # bytes
_METADATA = "__metadata__"
# In this order the library stores tensors, from the last to the first: so what is read is aligned.
DTYPES: dict[str, np.dtype] = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "I16": np.dtype("<i2"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I32": np.dtype("<i4"),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
    "I64": np.dtype("<i8"),
}


@dataclass(frozen=True)
class Entry:
    """A tensor of a file: a dtype by its name in `DTYPES`, and a shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """The bytes it takes."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize

    def __str__(self) -> str:
        return f"{self.dtype} [{', '.join(map(str, self.shape))}]"


class File:
    """A file of tensors. To open it reads its header only."""

    def __init__(self, path: Path):
        """Reads and checks the header."""
        self.path = path
        try:
            self._begin, header = _read_header(path)
            self.metadata: dict[str, str] = header.pop(_METADATA, {})
            self.tensors: dict[str, Entry] = {}
            self._places: dict[str, int] = {}
            self._take(header, path.stat().st_size - self._begin)
        except CheckpointError:
            raise
        except (OSError, ValueError) as error:
            raise CheckpointError(
                "a file of tensors is damaged, or is no such file.",
                values=f"{path}: {getattr(error, 'strerror', None) or error}",
                rule="a safetensors file has a header that describes all of it.",
                fix="fetch the file again.",
            ) from None

    def _take(self, header: dict[str, Any], size: int) -> None:
        """Takes note of the tensors, which have to fill so many bytes."""
        at = 0
        for name, entry in sorted(header.items(), key=lambda item: _begin_of(*item)):
            dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
            if dtype not in DTYPES:
                raise CheckpointError(
                    f"a file of tensors has one of the dtype {dtype!r}.",
                    values=f"{self.path}: {name!r}",
                    rule=f"the dtypes are {', '.join(DTYPES)}.",
                    fix="take the model as it was before it was quantized.",
                )
            self.tensors[name] = one = Entry(dtype, tuple(shape))
            if begin != at or end - begin != one.num_bytes:
                raise ValueError(f"{name!r} is {one} at bytes {begin} to {end}, after {at} bytes of others")
            self._places[name], at = begin, end
        if at != size:
            raise ValueError(f"its tensors have {at} bytes, and the file {size}")

    def array(self, name: str) -> np.ndarray:
        """Returns a tensor as a view of the file: what is not looked at is not read."""
        entry = self.tensors[name]
        if not entry.num_bytes:
            return np.zeros(entry.shape, DTYPES[entry.dtype])
        offset = self._begin + self._places[name]
        mapped = np.memmap(self.path, np.uint8, "r", offset, (entry.num_bytes,))
        return mapped.view(DTYPES[entry.dtype]).reshape(entry.shape)


def _begin_of(name: str, entry: Any) -> int:
    """Returns where a tensor begins, or raises if its description is none."""
    match entry:
        case {"dtype": str(), "shape": [*shape], "data_offsets": [begin, end]}:
            if all(type(number) is int and number >= 0 for number in (*shape, begin, end)):
                return int(begin)
    raise ValueError(f"the header describes {name!r} as {str(entry)[:80]}")


def _read_header(path: Path) -> tuple[int, dict[str, Any]]:
    """Returns where the bytes begin, and the header."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(_LENGTH), "little")
        limit = min(_MAX_HEADER, path.stat().st_size - _LENGTH)
        if not 2 <= length <= limit:
            raise ValueError(f"its header would have {length} bytes, and may have {max(limit, 0)}")
        header = json.loads(file.read(length), object_pairs_hook=_without_twins)
    if not isinstance(header, dict) or not isinstance(header.get(_METADATA, {}), dict):
        raise ValueError("its header is no table")
    return _LENGTH + length, header


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("its header has a name twice")
    return table


def write_file(
    path: Path, tensors: Mapping[str, Entry], read: Callable[[str], np.ndarray], metadata: Mapping[str, str]
) -> None:
    """Writes a file of tensors, one after the other; its name stands for the whole file or for none.

    Args:
        path: the file.
        tensors: what it will hold.
        read: returns a tensor by its name; only one at a time is held.
        metadata: words about the whole file.
    """
    order = list(DTYPES)
    names = sorted(tensors, key=lambda name: (-order.index(tensors[name].dtype), name))
    header: dict[str, Any] = {_METADATA: dict(metadata)} if metadata else {}
    at = 0
    for name in names:
        entry = tensors[name]
        places = [at, at + entry.num_bytes]
        header[name] = {"dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": places}
        at = places[1]
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _LENGTH)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "wb") as file:
            file.write(len(text).to_bytes(_LENGTH, "little") + text)
            for name in names:
                array = read(name)
                assert (array.shape, array.dtype) == (tensors[name].shape, DTYPES[tensors[name].dtype])
                file.write(np.ascontiguousarray(array).view(np.uint8).data if array.size else b"")
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
