"""The machines that a program can be compiled for: topologies of TPUs, and the processor of this machine."""

import importlib.util
import math
import re
from typing import Any

from ...errors import MeshError
from ...mesh import Mesh
from ..cost.hardware import Hardware, find, of_device

# Processors to a chip, and the usual sizes in chips; the compiler takes any whose first two numbers are even.
TOPOLOGIES: dict[str, tuple[int, str]] = {
    "v2": (2, "2x2 4x4 4x8 8x8 8x16 16x16"),
    "v3": (2, "2x2 4x4 4x8 8x8 8x16 16x16 16x32 32x32"),
    "v4": (2, "2x2x1 2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 4x8x8 8x8x8 8x8x16 8x16x16 16x16x16"),
    "v5e": (1, "2x2 2x4 4x4 4x8 8x8 8x16 16x16"),
    "v5p": (1, "2x2x1 2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 4x8x8 8x8x8 8x8x16 8x16x16 16x16x16 16x16x24"),
    "v6e": (1, "2x2 2x4 4x4 4x8 8x8 8x16 16x16"),
}
_FORM = re.compile(r"tpu (v\w+):(\d+(?:x\d+)+)\Z")
_MOST_VIRTUAL = 4096
CPU = "cpu"  # in place of a topology: as many virtual processors of this machine as the mesh has


def plain_topology(text: str) -> str:
    """Returns a topology as we write it: "tpu v2:16x16" for " TPU V2:16x16"."""
    return " ".join(text.lower().split())


def check_topology(topology: str) -> int:
    """Returns the number of processors of a topology such as "tpu v2:16x16", or raises with those that exist."""
    match = _FORM.match(topology)
    if match is None or match[1] not in TOPOLOGIES:
        kind, _, size = topology.removeprefix("tpu").strip().partition(":")
        meant = f"tpu {kind}:{size or TOPOLOGIES[kind][1].partition(' ')[0]}" if kind in TOPOLOGIES else ""
        raise MeshError(
            f"there is no topology {topology!r}.",
            rule=f'"{CPU}" is this machine\'s processor; the TPU compiler knows:{_table(TOPOLOGIES)}\n'
            "    (a GPU's compiler needs the GPU: meshax.plan.compile.planning.plan, in Python, on a mesh of it)",
            fix=f'did you mean "{meant}"?' if meant else 'write for example "tpu v2:16x16".',
        )
    kind, size = match[1], match[2]
    per_chip, usual = TOPOLOGIES[kind]
    sizes = [int(n) for n in size.split("x")]
    if len(sizes) != usual.partition(" ")[0].count("x") + 1 or any(n % 2 for n in sizes[:2]) or 0 in sizes:
        raise MeshError(
            f"a TPU {kind} does not come in the size {size}.",
            rule=f"the first two numbers are even; the usual sizes are:{_table([kind])}",
            fix="choose one of these.",
        )
    return per_chip * math.prod(sizes)


def check_size(topology: str, mesh: Mesh) -> None:
    """Raises unless a machine has as many processors as a mesh."""
    count = _MOST_VIRTUAL if topology == CPU else check_topology(topology)
    if topology == CPU and mesh.size > count:
        raise MeshError(
            f"{mesh.size:,} virtual processors are too many for one machine.",
            values=repr(mesh),
            fix=f"plan for at most {count:,}, or for TPUs.",
        )
    if topology != CPU and mesh.size != count:
        raise MeshError(
            f"the mesh has {mesh.size} processors, the topology {topology!r} has {count}.",
            values=str(mesh.axes),
            fix="choose sizes whose product is the number of cores of the topology.",
        )


def _table(kinds: Any) -> str:
    lines = []
    for kind in kinds:
        per_chip, usual = TOPOLOGIES[kind]
        sizes = [f"{size} ({per_chip * math.prod(map(int, size.split('x')))})" for size in usual.split()]
        lines.append(f"\n    tpu {kind}: {', '.join(sizes)}")
    return "".join(lines) + "\n    (in brackets: processors, which a mesh has to have)"


def check_compiler() -> None:
    """Raises if the TPU compiler is not installed."""
    if importlib.util.find_spec("libtpu") is None:
        raise MeshError(
            "the TPU compiler is not installed.",
            rule="it is the package libtpu, in the version that the installed jax asks for; it needs no TPU.",
            fix="pip install 'meshax[tpu]'",
        )


def hardware_of(mesh: Mesh) -> Hardware:
    """Returns what the processors of a mesh can do: a topology's, or those of devices that are there."""
    if mesh.topology is not None:
        return find(mesh.topology.partition(":")[0])
    return (None if mesh.platform == CPU else of_device(mesh.device_kind)) or find(None)
