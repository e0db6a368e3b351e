"""How much memory processors have: what a device says, what its kind has, or a share of this machine's."""

import os
from typing import Any

from ...mesh import Mesh
from .hardware import KNOWN, of_device, parse_bytes


def memory_of_device(device: Any, size: str = "") -> float:
    """Returns the bytes that may be used of a device: those given, else what it says, else what its kind has."""
    if size:
        return parse_bytes(size)
    stats = device.memory_stats() or {}
    return float(stats.get("bytes_limit") or (of_device(device.device_kind) or KNOWN["cpu"]).memory)


def memory_there(mesh: Mesh) -> float:
    """Returns the bytes that each processor of a mesh of devices has; virtual ones share the machine's."""
    if mesh.platform == "cpu":
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / mesh.size
    return memory_of_device(mesh.jax_mesh.local_devices[0])
