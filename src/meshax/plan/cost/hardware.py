"""What processors can do: descriptions of machines, from datasheets or measured by `meshax bench calibrate`.

A processor is what JAX calls a device: a TPU core for v2 to v4, a TPU chip from v5 on, a GPU. Speeds are peaks; the
`*_efficiency` say what of them a large, well-shaped operation reaches, as measured on microbenchmarks where we have
the machine (H200, CPU), and assumed alike on its relatives.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ...errors import ArgumentError, did_you_mean
from ..reading.primitives import KINDS, WORK

_GB, _TERA, _MICRO = 1e9, 1e12, 1e-6


@dataclass(frozen=True)
class Link:
    """How processors talk along a mesh axis."""

    latency: float  # seconds for a message to arrive
    bandwidth: float  # bytes a second that one processor sends
    start: float = 0.0  # seconds until all processors of a collective are there, however far they are


@dataclass(frozen=True)
class Replay:
    """What changes where a program is launched as a whole, again and again, as that which writes tokens is."""

    overhead: float  # seconds between two kernels
    memory_efficiency: float  # of a product with few rows, which does nothing but read a matrix
    inside: Link  # for messages of a few numbers


@dataclass(frozen=True)
class Hardware:
    """One kind of processor, and how many of them are joined."""

    name: str
    flops: Mapping[str, float]  # peak FLOP/s of matrix products, by dtype
    memory: float  # bytes
    memory_bandwidth: float  # bytes a second
    inside: Link  # between processors of one host (a TPU's torus is one)
    between: Link | None = None  # between hosts: what one processor has of it if all send at once
    node: int = 0  # processors in a host; 0: all of them
    tile: int = 1  # matrix products are rounded up to this many rows and columns
    flops_efficiency: float = 1.0
    memory_efficiency: float = 1.0
    overhead: float = 0.0  # seconds it takes to start a kernel
    # of `Kernel.work`: seconds that an element takes on top of reading and writing it
    per_element: Mapping[str, float] = field(default_factory=dict)
    copies_into_stacks: bool = False  # whether its compiler moves what `Kernel.stacking` counts
    slowness: Mapping[str, float] = field(default_factory=dict)  # of a collective's bytes; an all-reduce's are 1
    hides: tuple[str, ...] = ()  # collectives that its compiler runs beside computation, where it is asked to
    measured: bool = False
    replay: Replay | None = None  # None: nothing changes
    platform: str = ""  # as JAX says of its devices: cpu, gpu, tpu
    kind: str = ""  # their `device_kind`, as in "NVIDIA H200"

    def replaying(self) -> "Hardware":
        """Returns the same hardware as a program finds it that is launched as a whole, again and again."""
        return self if self.replay is None else replace(self, **vars(self.replay), replay=None)

    def peak(self, dtype: Any) -> float:
        """Returns the peak FLOP/s of a dtype, that of the nearest wider one if it has none."""
        wanted = str(dtype)
        order = ("float8_e4m3fn", "int8", "bfloat16", "float16", "float32", "float64")
        later = order[order.index(wanted) :] if wanted in order else ("float32",)
        return next((self.flops[name] for name in later if name in self.flops), min(self.flops.values()))

    def to_json(self) -> str:
        """Returns the description as JSON, for `load`."""
        return json.dumps(asdict(self), indent=2)


def _tpu(kind: str, bf16: float, gigabytes: float, bandwidth: float, link: float) -> Hardware:
    return Hardware(
        _KINDS.get(kind.lower(), kind.lower()).replace(" ", "-"),
        {"bfloat16": bf16 * _TERA, "float32": bf16 * _TERA / 3},  # float32 takes several passes
        gigabytes * 2**30,
        bandwidth * _GB,
        Link(1 * _MICRO, link * _GB),
        tile=128,
        flops_efficiency=0.85,
        memory_efficiency=0.85,
        overhead=0.3 * _MICRO,
        hides=("all-gather", "permute"),  # reductions stay where they are: docs/performance.md
        platform="tpu",
        kind=kind,
    )


def _gpu(
    kind: str, bf16: float, tf32: float, gigabytes: float, bandwidth: float, nvlink: float, net: float
) -> Hardware:
    return Hardware(
        re.split(r"[\s-]+", kind.lower())[1],
        {"bfloat16": bf16 * _TERA, "float16": bf16 * _TERA, "float32": tf32 * _TERA, "float64": tf32 * _TERA / 8},
        gigabytes * 1e9,
        bandwidth * _GB,
        Link(8 * _MICRO, nvlink * _GB),
        Link(15 * _MICRO, net * _GB),
        node=8,
        tile=64,
        flops_efficiency=0.80,  # these three as measured on an H200: benchmarks/results/predictions_gpu.md
        memory_efficiency=0.79,
        hides=KINDS,
        copies_into_stacks=True,
        overhead=2.5 * _MICRO,  # inside a program, which XLA launches as graphs; alone a kernel takes 6
        # The first two fit a hand-written program that writes with two of the paper's models on an H200 (0.83 and 2.73
        # ms a token, 73% and 87% of the bandwidth), the link what gpt-fast publishes of 2, 4 and 8 A100s (18, 24 and 29
        # microseconds for each all-reduce of a token).
        replay=Replay(1.0 * _MICRO, 0.93, Link(0.9 * _MICRO, nvlink * _GB, 17 * _MICRO)),
        platform="gpu",
        kind=kind,
    )


# How JAX calls some TPUs.
_KINDS = {"tpu v5 lite": "tpu v5e", "tpu v5": "tpu v5p", "tpu v6 lite": "tpu v6e", "tpu v5litepod": "tpu v5e"}

# Words in the names of slower boards with the same chip.
_OTHER_BOARDS = {"h100": {"pcie", "nvl"}}

# JAX's names, and datasheets: peak TFLOP/s in bfloat16, (GPU) in TF32, memory in GiB (TPU) or GB (GPU), GB/s of memory,
# GB/s of links in one direction.
KNOWN: dict[str, Hardware] = {
    hardware.name: hardware
    for hardware in (
        _tpu("TPU v2", 22.5, 8, 350, 31),
        _tpu("TPU v3", 61.5, 16, 450, 41),
        _tpu("TPU v4", 137.5, 16, 614, 45),
        _tpu("TPU v5 lite", 197, 16, 819, 45),
        _tpu("TPU v5", 459, 95, 2765, 90),
        _tpu("TPU v6 lite", 918, 32, 1640, 90),
        _gpu("NVIDIA A100-SXM4-80GB", 312, 156, 80, 2039, 300, 25),
        _gpu("NVIDIA H100 80GB HBM3", 989, 494, 80, 3350, 450, 50),
        _gpu("NVIDIA H200", 989, 494, 141, 4800, 450, 50),
        _gpu("NVIDIA B200", 2250, 1125, 180, 8000, 900, 50),
        # one of 8 virtual processors on 2 cores, as `meshax bench calibrate` measured it
        Hardware(
            "cpu",
            {"float32": 2.0e10, "bfloat16": 2.0e10},
            2e9,
            5.8e9,
            Link(8 * _MICRO, 2.2e9, 40 * _MICRO),
            overhead=2 * _MICRO,
            per_element={"transposed": 5.7e-9, "reduced": 1.3e-9, "dear": 1.5e-9},
            slowness={"all-gather": 0.9, "reduce-scatter": 1.7, "all-to-all": 4.6, "permute": 1.1},
            platform="cpu",
            kind="cpu",
        ),
    )
}


def parse_bytes(text: str) -> float:
    """Reads a size of memory: "16GB", "8GiB", "80e9".

    >>> parse_bytes("16GB"), parse_bytes("8 GiB")
    (16000000000.0, 8589934592.0)
    """
    match = re.fullmatch(r"\s*([\d.]+(?:e\d+)?)\s*([kmgt]?)(i?)b?\s*", text.lower())
    try:
        number = float(match[1]) if match else 0.0
    except ValueError:
        number = 0.0
    if match is None or not number or (match[3] and not match[2]):
        raise ArgumentError(
            f"{text!r} is not a size of memory.",
            rule="a size is a positive number and a unit: kB, MB, GB, TB, or KiB, MiB, GiB, TiB.",
            fix="write for example 16GB, 8GiB or 80e9.",
        )
    return number * (1024 if match[3] else 1000) ** " kmgt".index(match[2] or " ")


def of_device(kind: str) -> Hardware | None:
    """Returns the hardware of a device by JAX's name for its kind, as in "NVIDIA H200".

    That is what its datasheet says, else what was calibrated here on such a device; None if nobody knows.
    """
    words = set(re.split(r"[\s-]+", _KINDS.get(kind.lower(), kind.lower())))
    for name, hardware in KNOWN.items():
        if words.issuperset(name.split("-")) and not words & _OTHER_BOARDS.get(name, set()):
            return hardware
    calibrated = _calibrated()
    return calibrated if calibrated is not None and calibrated.kind == kind else None


def peak_of_device(kind: str, dtype: Any) -> float:
    """Returns the peak FLOP/s of a device, 0 if nobody knows; nobody does of CPUs, whose processors share cores."""
    hardware = of_device(kind)
    return 0.0 if hardware is None or hardware.platform == "cpu" else hardware.peak(dtype)


def bandwidth_of_device(kind: str) -> float:
    """Returns the bytes a second that a device reads at most, 0 if nobody knows; see `peak_of_device`."""
    hardware = of_device(kind)
    return 0.0 if hardware is None or hardware.platform == "cpu" else hardware.memory_bandwidth


def cache_folder() -> Path | None:
    """Returns where commands keep things for the user; None: a user without a home, as containers start some."""
    cache = os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    return None if cache.startswith("~") else Path(cache) / "meshax"


def calibrated_path() -> Path | None:
    """Returns where `meshax bench calibrate` keeps what it measured of this machine; None: see `cache_folder`."""
    folder = cache_folder()
    return folder and folder / "hardware.json"


def _calibrated() -> Hardware | None:
    path = calibrated_path()
    return load(path) if path and path.exists() else None


def load(path: str | Path) -> Hardware:
    """Reads a description from a JSON file."""
    try:
        data = json.loads(Path(path).read_text())
        between = Link(**data["between"]) if data.get("between") else None
        replay = data.get("replay")
        replay = Replay(**{**replay, "inside": Link(**replay["inside"])}) if replay else None
        parts = {"inside": Link(**data["inside"]), "between": between, "replay": replay}
        hardware = Hardware(**{**data, **parts, "hides": tuple(data.get("hides", ()))})
        links = [link for link in (hardware.inside, hardware.between) if link is not None]
        speeds = [hardware.memory, hardware.memory_bandwidth, *hardware.flops.values(), *hardware.slowness.values()]
        is_possible = all(n > 0 for n in (*speeds, *(link.bandwidth for link in links)))
        delays = [*hardware.per_element.values(), *(n for link in links for n in (link.latency, link.start))]
        is_possible = is_possible and all(n >= 0 for n in delays)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ArgumentError(
            f"{str(path)!r} does not describe hardware.",
            values=f"{type(error).__name__}: {error}",
            fix="write one with: meshax bench calibrate --out FILE.",
        ) from error
    if not hardware.flops or not is_possible:
        raise ArgumentError(
            f"{str(path)!r} does not describe hardware.", rule="speeds and sizes are positive, delays not negative."
        )
    if unknown := [kind for kind in (*hardware.slowness, *hardware.hides) if kind not in KINDS]:
        raise ArgumentError(
            f"{str(path)!r} speaks of {unknown[0]!r}, which is no collective.",
            fix=did_you_mean(unknown[0], KINDS),
        )
    if unknown := [kind for kind in hardware.per_element if kind not in WORK]:
        raise ArgumentError(
            f"{str(path)!r} speaks of elements that are {unknown[0]!r}, which is no kind of work.",
            fix=did_you_mean(unknown[0], WORK),
        )
    return hardware


def find(hardware: "str | Hardware | None") -> Hardware:
    """Returns the hardware that is meant: a description, a name, a JSON file; None is this machine, or the CPU."""
    if isinstance(hardware, Hardware):
        return hardware
    if hardware is None or hardware == "this":
        return _calibrated() or KNOWN["cpu"]
    if not isinstance(hardware, str):
        raise ArgumentError(f"{hardware!r} is not hardware.", fix='give a name, such as "h200".')
    if hardware.endswith(".json"):
        return load(hardware)
    if "@" in hardware:
        return _with_hosts(hardware)
    name = hardware.lower().replace(" ", "-")
    if name not in KNOWN:
        raise ArgumentError(
            f"there is no hardware {hardware!r}.",
            rule='hardware is a name, or with hosts h100x8@400Gbit/s, "this" for what was calibrated, or a .json file.',
            fix=did_you_mean(name, KNOWN),
        )
    return KNOWN[name]


def _with_hosts(text: str) -> Hardware:
    """Reads `h100x8@400Gbit/s`: which processors, how many in a host, and what a host sends to the others."""
    match = re.fullmatch(r"(.+?)(?:x(\d+))?@(\d+\.?\d*) ?([kMGT])(bit/s|bps|B/s)", text)
    machine = find(match[1]) if match else KNOWN["cpu"]
    node = int(match[2] or machine.node) if match else 0
    speed = float(match[3]) * 1000 ** (1 + "kMGT".index(match[4])) / (1 if match[5] == "B/s" else 8) if match else 0
    if not speed or not node:
        raise ArgumentError(
            f"{text!r} does not say how hosts are joined.",
            rule="after the name come the processors in a host, and the bits or bytes that it sends in a second.",
            fix="write for example h100x8@400Gbit/s, or h100@50GB/s for as many in a host as there usually are.",
        )
    latency = machine.between.latency if machine.between is not None else 15 * _MICRO
    return replace(machine, name=text, between=Link(latency, speed / node), node=node)
