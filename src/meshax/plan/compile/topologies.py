"""The machines that a program can be compiled for: TPUs and GPUs that are not there, and the processor of this one.

The TPU compiler knows its topologies by name. XLA's compiler for GPUs is told what a GPU has; how fast which kernel
is, it tries out where there is a GPU, and guesses where there is none.
"""

import importlib.util
import math
import re
from typing import Any

from ...errors import MeshError
from ...mesh import DESCRIPTIONS, Mesh
from ..cost.hardware import KNOWN, Hardware, find, of_device

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
# Of each kind: compute capability, multiprocessors, bytes that one shares, bytes of the second cache, GHz.
GPUS: dict[str, tuple[str, int, int, int, float]] = {
    "a100": ("8.0", 108, 167_936, 40 << 20, 1.41),
    "h100": ("9.0", 132, 233_472, 50 << 20, 1.98),
    "h200": ("9.0", 132, 233_472, 50 << 20, 1.98),
    "b200": ("10.0", 148, 233_472, 126 << 20, 1.96),
}
_GPU_FORM = re.compile(r"(\w+):(?:(\d+)x)?(\d+)\Z")
_MOST_VIRTUAL = 4096
CPU = "cpu"  # in place of a topology: as many virtual processors of this machine as the mesh has


def plain_topology(text: str) -> str:
    """Returns a topology as we write it: "tpu v2:16x16" for " TPU V2:16x16"."""
    return " ".join(text.lower().split())


def machine_of(topology: str) -> str:
    """Returns the name of a topology's hardware: "tpu v2" of "tpu v2:16x16", "h200" of "gpu h200:8"."""
    return topology.partition(":")[0].removeprefix("gpu ")


def check_topology(topology: str) -> int:
    """Returns the number of processors of a topology such as "tpu v2:16x16", or raises with those that exist."""
    if topology.startswith("gpu "):
        hosts, each = _read_gpus(topology.removeprefix("gpu "))[1:]
        return hosts * each
    match = _FORM.match(topology)
    if match is None or match[1] not in TOPOLOGIES:
        kind, _, size = topology.removeprefix("tpu").strip().partition(":")
        meant = f"tpu {kind}:{size or TOPOLOGIES[kind][1].partition(' ')[0]}" if kind in TOPOLOGIES else ""
        meant = f"gpu {kind}:{size or 8}" if kind in GPUS else meant
        raise MeshError(
            f"there is no topology {topology!r}.",
            rule=f'"{CPU}" is this machine\'s processor; the TPU compiler knows:{_table(TOPOLOGIES)}\n'
            f"    and that for GPUs: {', '.join(f'gpu {kind}:8' for kind in GPUS)}, or of 4 hosts gpu h200:4x8",
            fix=f'did you mean "{meant}"?' if meant else 'write for example "tpu v2:16x16", or "gpu h200:8".',
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


def _read_gpus(name: str) -> tuple[str, int, int]:
    """Returns the kind, the hosts, and the GPUs of each, of a name such as "h200:8" or "h200:4x8"."""
    match = _GPU_FORM.match(name)
    kind, hosts, each = (match[1], int(match[2] or 1), int(match[3])) if match else ("", 0, 0)
    if kind not in GPUS or not hosts * each:
        raise MeshError(
            f"there are no GPUs {name!r}.",
            rule=f"a kind ({', '.join(GPUS)}), and how many: of one host, or hosts and the GPUs of each.",
            fix='write for example "gpu h200:8", or "gpu h200:4x8".',
        )
    return kind, hosts, each


def _described(name: str) -> dict[str, Any]:
    """Returns what JAX takes to compile for GPUs that are not there."""
    kind, hosts, each = _read_gpus(name)
    hardware, (capability, cores, shared, cache, clock) = KNOWN[kind], GPUS[kind]
    major, minor = capability.split(".")
    device = f"""
        threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
        block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
        registers_per_core_limit: 65536 registers_per_block_limit: 65536
        shared_memory_per_block: 49152 shared_memory_per_block_optin: {shared - 1024} shared_memory_per_core: {shared}
        core_count: {cores} fpus_per_core: {64 if major == "8" else 128} clock_rate_ghz: {clock}
        l2_cache_size: {cache} memory_bandwidth: {hardware.memory_bandwidth:.0f}
        device_memory_size: {hardware.memory:.0f}
        cuda_compute_capability {{ major: {major} minor: {minor} }}
    """
    config = f"""
        gpu_device_info {{ {device} }} platform_name: "CUDA" device_description_str: "{hardware.kind}"
        dnn_version_info {{ major: 9 minor: 10 patch: 2 }}
    """
    topology = f"1x{hosts}x{each}"  # slices, hosts, GPUs of each
    return {"platform": "cuda", "topology_name": "", "target_config": config, "topology": topology}


DESCRIPTIONS["gpu"] = _described


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


def check_compiler(topology: str) -> None:
    """Raises if the compiler for a topology is not installed."""
    if topology.startswith("gpu ") and not any(
        map(importlib.util.find_spec, ("jax_cuda12_plugin", "jax_cuda13_plugin"))
    ):
        raise MeshError(
            "the compiler for GPUs is not installed.",
            rule="it comes with jax's packages for CUDA, in the version of the installed jax; it needs no GPU.",
            fix="pip install 'meshax[cuda]'",
        )
    if topology.startswith("tpu ") and importlib.util.find_spec("libtpu") is None:
        raise MeshError(
            "the TPU compiler is not installed.",
            rule="it is the package libtpu, in the version that the installed jax asks for; it needs no TPU.",
            fix="pip install 'meshax[tpu]'",
        )


def hardware_of(mesh: Mesh) -> Hardware:
    """Returns what the processors of a mesh can do: a topology's, or those of devices that are there."""
    if mesh.topology is not None:
        return find(machine_of(mesh.topology))
    return (None if mesh.platform == CPU else of_device(mesh.device_kind)) or find(None)
