"""Copies of arrays in the memory of their devices, so that a step may overwrite them before they are on the host.

Within a GPU a copy takes milliseconds, from there to the host a thousand times as long. Where there is room for both,
saving makes the first, and a thread the second while the steps go on. So that these need not wait for it, what is sent
at a time is small: a copy is in chunks.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .chunks import chunks_of

_SPARE = 1.25  # how many times what the copies need has to be free: memory is in pieces

_Blocks = Sequence[jax.Array]  # each on one device
_Chunks = list[list[jax.Array]]  # those of each block


class Copies:
    """Makes them; whether there is room is found out when steps have been taken, and not asked again."""

    def __init__(self) -> None:
        self._programs: dict[Any, Callable[[_Blocks], _Chunks]] = {}
        self._is_room: bool | None = None

    def prepare(self, blocks: _Blocks) -> None:
        """Compiles what copies such blocks, or steps would wait for that, too; nothing is copied."""
        for device, numbers in _by_device(blocks).items():
            if device.platform != "cpu":
                self._program([blocks[number] for number in numbers])

    def of(self, blocks: _Blocks) -> _Chunks | None:
        """Returns copies of the chunks of blocks, each in the memory of its device; None: there is no room."""
        places = _by_device(blocks)
        if self._is_room is None and blocks:
            needed = {device: sum(blocks[number].nbytes for number in numbers) for device, numbers in places.items()}
            self._is_room = has_room(needed)
        if not self._is_room:
            return None
        copied: dict[int, list[jax.Array]] = {}
        try:
            for numbers in places.values():
                local = [blocks[number] for number in numbers]
                copied |= zip(numbers, self._program(local)(local), strict=True)
            return jax.block_until_ready([copied[number] for number in range(len(blocks))])
        except jax.errors.JaxRuntimeError:  # there is, but in pieces that are too small
            self._is_room = False
            return None

    def _program(self, blocks: _Blocks) -> Callable[[_Blocks], _Chunks]:
        """Returns what copies such blocks, all on one device."""
        kind = tuple((block.shape, block.dtype, block.sharding) for block in blocks)
        if kind not in self._programs:
            self._programs[kind] = jax.jit(lambda blocks: [_copied(block) for block in blocks]).lower(blocks).compile()
        return self._programs[kind]


def _copied(block: jax.Array) -> list[jax.Array]:
    chunks = chunks_of(block.shape, block.dtype.itemsize)
    return [jnp.copy(block[tuple(slice(*pair) for pair in bounds)]) for bounds in chunks]


def _by_device(blocks: _Blocks) -> dict[jax.Device, list[int]]:
    """Returns the numbers of the blocks on each device."""
    numbers: dict[jax.Device, list[int]] = {}
    for number, block in enumerate(blocks):
        (device,) = block.devices()
        numbers.setdefault(device, []).append(number)
    return numbers


def has_room(needed: dict[jax.Device, int]) -> bool:
    """Whether each device has so many bytes more than it ever used; a CPU's memory is the host's anyway."""
    for device, size in needed.items():
        stats = device.memory_stats() if device.platform != "cpu" else None
        if not stats or stats.get("bytes_limit", 0) - stats.get("peak_bytes_in_use", 0) < _SPARE * size:
            return False
    return True
