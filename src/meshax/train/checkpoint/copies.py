"""Copies of arrays in the memory of their devices, so that a step may overwrite them before they are on the host.

Within a GPU a copy takes milliseconds, from there to the host a thousand times as long. Where there is room for both,
saving makes the first, and a thread the second while the steps go on.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

_SPARE = 1.25  # how many times what the copies need has to be free: memory is in pieces


class Copies:
    """Makes them; whether there is room is found out when steps have been taken, and not asked again."""

    def __init__(self) -> None:
        self._copy = jax.jit(lambda blocks: [jnp.copy(block) for block in blocks])
        self._is_room: bool | None = None

    def prepare(self, blocks: Sequence[jax.Array]) -> None:
        """Compiles what makes copies of such blocks, or nobody will be able to go on while it is compiled."""
        if not any(device.platform == "cpu" for device in _bytes_by_device(blocks)):
            self._copied(blocks)

    def of(self, blocks: Sequence[jax.Array]) -> list[jax.Array] | None:
        """Returns copies of blocks, each in the memory of its one device; None: there is no room."""
        if self._is_room is None and blocks:
            self._is_room = has_room(_bytes_by_device(blocks))
        if self._is_room:
            try:
                return self._copied(blocks)
            except jax.errors.JaxRuntimeError:  # in pieces that were too small
                self._is_room = False
        return None

    def _copied(self, blocks: Sequence[jax.Array]) -> list[jax.Array]:
        """Calls one program for each device, and waits: what goes wrong is known then."""
        copied: dict[int, jax.Array] = {}
        for device in _bytes_by_device(blocks):
            numbers = [number for number, block in enumerate(blocks) if device in block.devices()]
            copied |= zip(numbers, self._copy([blocks[number] for number in numbers]), strict=True)
        return jax.block_until_ready([copied[number] for number in range(len(blocks))])


def _bytes_by_device(blocks: Sequence[jax.Array]) -> dict[jax.Device, int]:
    needed: dict[jax.Device, int] = {}
    for block in blocks:
        (device,) = block.devices()
        needed[device] = needed.get(device, 0) + block.nbytes
    return needed


def has_room(needed: dict[jax.Device, int]) -> bool:
    """Whether each device has so many bytes more than it ever used; a CPU's memory is the host's anyway."""
    for device, size in needed.items():
        stats = device.memory_stats() if device.platform != "cpu" else None
        if not stats or stats.get("bytes_limit", 0) - stats.get("peak_bytes_in_use", 0) < _SPARE * size:
            return False
    return True
