"""Measures what the processors of this machine can do, with microbenchmarks, for the cost model.

All processors work at once, as they do in a program: virtual CPU processors share cores, and what one of them reaches
alone says nothing. Of several repetitions the fastest counts; noise only ever makes things slower.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..dim import Dim
from ..mesh import Mesh
from ..ops import einsum, exp, flip, reshape, scan, shift, sum, tanh, transpose
from ..plan.cost.hardware import Hardware, Link
from ..plan.printing.units import show_bytes, show_count, show_seconds
from ..plan.reading.primitives import WORK
from ..program import put, spmd
from ..tensors import Tensor

_AXIS, _EACH = "processors", "each"  # the mesh axis, and the dim that gives each processor a problem of its own
_PART = "part"  # a dim whose slices are gathered and scattered
_LAYOUT = f"{_EACH}:{_AXIS} {_PART}:{_AXIS}"
_PAIRS = "pairs"  # the mesh axis along which pairs of processors work at once
_COLUMNS = 256
_LEAST = 1e-12  # seconds more for an element: none
_INSTANT = 1e-9  # seconds: no difference of measured times is less
_REPEATS = 5
_Body = Callable[[Tensor, Tensor], Tensor]  # of a loop: what it has at hand, and what it carries


@dataclass(frozen=True)
class Scale:
    """How large the microbenchmarks are."""

    products: tuple[tuple[int, int, int], ...]
    stream: int  # elements of an array that does not fit any cache
    messages: tuple[int, ...]  # elements
    # of 256 numbers, from what a core's cache holds to what no cache does; GPUs and TPUs transpose as they read
    rows: tuple[int, ...] = ()


_SCALES = {
    "cpu": Scale(
        ((256, 256, 256), (512, 256, 512), (512, 512, 512)), 2**21, (2**8, 2**14, 2**18), rows=(2**8, 2**10, 2**12)
    ),
    "gpu": Scale(
        ((8192, 1024, 4096), (8192, 4096, 1024), (8192, 4096, 4096), (8192, 1024, 16384)), 2**27, (2**10, 2**18, 2**24)
    ),
    "tpu": Scale(((8192, 1024, 4096), (8192, 4096, 1024), (8192, 4096, 4096)), 2**26, (2**10, 2**18, 2**24)),
}


@dataclass(frozen=True)
class Measurement:
    """One microbenchmark: what it was, and what it reached."""

    what: str
    seconds: float
    rate: float
    unit: str


class Calibration:
    """The microbenchmarks of one machine. Iterate over `run`, then ask for the `hardware`."""

    def __init__(self, devices: Sequence[Any] | None = None):
        """Takes some devices, or all that JAX has."""
        devices = jax.devices() if devices is None else devices
        self.mesh = Mesh(f"{_AXIS}:{len(devices)}", devices)
        self.scale = _SCALES.get(self.mesh.platform, _SCALES["gpu"])
        self.turns = Dim("turns", 4 if self.mesh.platform == "cpu" else 20)
        self.measured: list[Measurement] = []
        Dim(_PART, 1)  # a rule names a dim that exists
        self._products: dict[str, list[float]] = {}
        self._bandwidth = self._overhead = 0.0
        self._link = Link(0.0, float("inf"))
        self._per_element: dict[str, list[float]] = {}
        self._slowness: dict[str, float] = {}

    @property
    def count(self) -> int:
        """How many microbenchmarks there are."""
        collectives = len(self.scale.messages) + self._has_pairs + 4 if self.mesh.size > 1 else 0
        return 2 * len(self.scale.products) + 2 + (1 + len(WORK)) * len(self.scale.rows) + collectives

    @property
    def _has_pairs(self) -> bool:
        """Whether the processors come in several pairs: what is the same for two and for all is the time to start."""
        return self.mesh.size > 2 and self.mesh.size % 2 == 0

    def run(self) -> Iterator[Measurement]:
        """Runs the microbenchmarks one after the other."""
        for dtype in (jnp.bfloat16, jnp.float32):
            for sizes in self.scale.products:
                yield self._note(self._product(dtype, *sizes))
        yield self._note(self._stream())
        yield self._note(self._small_kernels())
        for rows in self.scale.rows:
            yield from map(self._note, self._work(rows))
        if self.mesh.size > 1:
            yield from map(self._note, self._collectives())

    def _note(self, measurement: Measurement) -> Measurement:
        self.measured.append(measurement)
        return measurement

    def hardware(self, name: str = "this") -> Hardware:
        """Returns the description of the machine."""
        device = self.mesh.jax_mesh.devices.flat[0]
        stats = device.memory_stats() if hasattr(device, "memory_stats") else None
        memory = (stats or {}).get("bytes_limit") or _host_memory() / self.mesh.size
        return Hardware(
            name,
            {dtype: _typical(rates) for dtype, rates in self._products.items()},
            float(memory),
            self._bandwidth,
            self._link,
            overhead=self._overhead,
            per_element={kind: _typical(seconds) for kind, seconds in self._per_element.items()},
            slowness=self._slowness,
            measured=True,
            platform=self.mesh.platform,
            kind=self.mesh.device_kind,
        )

    def _array(self, dtype: Any, mesh: Mesh | None = None, **sizes: int) -> Tensor:
        mesh = mesh or self.mesh
        dims = (Dim(_EACH, mesh.axes[_AXIS]), *(Dim(name, size) for name, size in sizes.items()))
        numbers = np.linspace(-1, 1, int(np.prod([d.size for d in dims]))).reshape([d.size for d in dims])
        return put(Tensor(numbers.astype(dtype), dims), mesh, _LAYOUT)

    def _product(self, dtype: Any, rows: int, inner: int, columns: int) -> Measurement:
        """Times products in a loop, there and back: one alone would be lost in the time it takes to call it."""
        a, b = self._array(dtype, rows=rows, inner=inner), self._array(dtype, inner=inner, columns=columns)

        def there_and_back(a: Tensor, b: Tensor) -> Tensor:
            def body(a: Tensor, _: Any) -> Any:
                wide = einsum(a, b, over="inner")
                return einsum(wide, b, over="columns") * (1 / inner / columns), None

            return scan(body, a, over=self.turns)[0]

        seconds = fastest(spmd(there_and_back, self.mesh, _LAYOUT), a, b) / (2 * self.turns.size)
        rate = 2.0 * rows * inner * columns / seconds
        name = str(jnp.dtype(dtype))
        self._products.setdefault(name, []).append(rate)
        return Measurement(f"{name} product {rows} x {inner} x {columns}", seconds, rate, "FLOP/s")

    def _stream(self) -> Measurement:
        x = self._array(np.float32, n=self.scale.stream)

        def again(x: Tensor) -> Tensor:
            return scan(lambda x, _: (x * 0.5 + 0.5, None), x, over=self.turns)[0]

        seconds = fastest(spmd(again, self.mesh, _LAYOUT), x) / self.turns.size
        self._bandwidth = 2 * 4 * self.scale.stream / seconds
        return Measurement(f"read and write {self.scale.stream} numbers", seconds, self._bandwidth, "bytes/s")

    def _small_kernels(self) -> Measurement:
        x, turns = self._array(np.float32, n=8, m=8), Dim("turns", 500)

        def chain(x: Tensor) -> Tensor:
            def body(x: Tensor, _: Any) -> Any:
                return tanh(einsum(x, x.rename(m="k", n="m"), over="m").rename(k="m")), None

            return scan(body, x, over=turns)[0]

        seconds = fastest(spmd(chain, self.mesh, _LAYOUT), x)
        self._overhead = seconds / turns.size / 2
        return Measurement("start a small kernel", self._overhead, 1 / self._overhead, "kernels/s")

    def _work(self, rows: int) -> Iterator[Measurement]:
        """Times what elements take more that are transposed, reduced or dear than such as are read and written."""
        x, turns = self._array(np.float32, row=rows, column=_COLUMNS), Dim("turns", 20)
        sums, flat = self._array(np.float32, row=rows), self._array(np.float32, number=rows * _COLUMNS)

        def transposed(_: Tensor, flat: Tensor) -> Tensor:
            return reshape(transpose(reshape(flat, x.dims) * 0.5, (_EACH, "column", "row")), flat.dims)

        bodies: dict[str, tuple[_Body, Tensor]] = {
            "read and written": (lambda _, flat: flat * 0.5, flat),
            "transposed": (transposed, flat),
            "reduced": (lambda x, sums: sum(x + sums, "column") * 1e-3, sums),
            "dear": (lambda _, flat: exp(flat * 0.5), flat),
        }
        programs = [_loop(body, self.mesh, x, carried, turns) for body, carried in bodies.values()]
        seconds = {kind: spent / turns.size for kind, spent in zip(bodies, fastest_of(*programs), strict=True)}
        for kind, spent in seconds.items():
            if kind in WORK:
                plain = seconds["read and written"] / (2 if kind == "reduced" else 1)  # which only reads them
                self._per_element.setdefault(kind, []).append(max((spent - plain) / (rows * _COLUMNS), _LEAST))
            yield Measurement(f"{rows} x {_COLUMNS} numbers, {kind}", spent, rows * _COLUMNS / spent, "elements/s")

    def _collectives(self) -> Iterator[Measurement]:
        measured: dict[int, float] = {}
        for size in self.scale.messages:
            yield (one := self._all_reduce(size, self.mesh))
            measured[size] = one.seconds
        (small, quick), *_, (large, slow) = measured.items()
        n = self.mesh.size
        numbers, seconds = (large - small, slow - quick) if slow > quick else (large, slow)
        bandwidth = _sent(numbers, n) / seconds
        hops, arriving, starting = 2 * (n - 1), max(quick - _sent(small, n) / bandwidth, 0.0), 0.0
        if self._has_pairs:
            pairs = Mesh(f"{_PAIRS}:{n // 2} {_AXIS}:2", self.mesh.jax_mesh.devices.flatten())
            yield (of_two := self._all_reduce(small, pairs))
            latency = max(arriving - of_two.seconds, 0.0) / (hops - 2)
            starting = max(arriving - hops * latency, 0.0)
        self._link = Link((arriving - starting) / hops, bandwidth, starting)
        yield from self._other_kinds(large)

    def _all_reduce(self, size: int, mesh: Mesh) -> Measurement:
        """Times all-reduces along an axis."""
        n, x = mesh.axes[_AXIS], self._array(np.float32, mesh, whole=size)
        seconds = _turn(lambda x, total: sum(x * total, _EACH) * 1e-3, mesh, x, _vector("whole", size, mesh))
        return Measurement(f"all-reduce {size} numbers over {n}", seconds, _sent(size, n) / seconds, "bytes/s")

    def _other_kinds(self, size: int) -> Iterator[Measurement]:
        """Times the other collectives, for what their bytes cost beside those of an all-reduce."""
        n = self.mesh.size
        x, slices = self._array(np.float32, whole=size), _vector(_PART, size, self.mesh)
        square = self._square(size)

        def gather(_: Tensor, mine: Tensor) -> Tensor:
            return flip(mine.rename(part="whole"), "whole").rename(whole=_PART)  # unflipped, it could be left out

        def gather_and_scatter(x: Tensor, mine: Tensor) -> Tensor:
            return sum(x * mine.rename(part="whole"), _EACH).rename(whole=_PART)

        def there_and_back(_: Tensor, x: Tensor) -> Tensor:
            return (x.rename(part="whole", whole=_PART) * 0.5).rename(part="whole", whole=_PART)

        gathering = _turn(gather, self.mesh, x, slices)
        yield self._kind("all-gather", size, gathering, n - 1)
        yield self._kind("reduce-scatter", size, _turn(gather_and_scatter, self.mesh, x, slices) - gathering, n - 1)
        moving = _turn(there_and_back, self.mesh, x, square) / 2
        yield self._kind("all-to-all", square.dims[0].size ** 2 // n, moving, n - 1)
        yield self._kind("permute", size, _turn(lambda _, x: shift(x, _EACH, 1, wrap=True), self.mesh, x, x), 1)

    def _kind(self, kind: str, size: int, seconds: float, hops: int) -> Measurement:
        """Notes the slowness of a kind; one that no time can be told of is taken to be as fast as an all-reduce."""
        n = self.mesh.size
        sent = 4.0 * size * (1 if kind == "permute" else (n - 1) / n)
        sending = seconds - self._link.start - hops * self._link.latency
        if sending > 0:
            self._slowness[kind] = sending * self._link.bandwidth / sent
        seconds = max(seconds, _INSTANT)
        return Measurement(f"{kind} {size} numbers over {n}", seconds, sent / seconds, "bytes/s")

    def _square(self, size: int) -> Tensor:
        """Returns a matrix of about so many numbers on each processor, split by rows."""
        n = self.mesh.size
        side = max(int((size * n) ** 0.5) // n, 1) * n
        numbers = np.linspace(-1, 1, side * side, dtype=np.float32).reshape(side, side)
        return put(Tensor(numbers, (Dim(_PART, side), Dim("whole", side))), self.mesh, _LAYOUT)


def _typical(numbers: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(numbers))))


def _vector(name: str, size: int, mesh: Mesh) -> Tensor:
    return put(Tensor(np.linspace(-1, 1, size, dtype=np.float32), (Dim(name, size),)), mesh, _LAYOUT)


def _turn(body: _Body, mesh: Mesh, x: Tensor, carried: Tensor) -> float:
    """Returns the seconds of a turn of a loop that changes what it carries, and has `x` at hand."""
    turns = Dim("turns", 20)
    return fastest(_loop(body, mesh, x, carried, turns)) / turns.size


def _loop(body: _Body, mesh: Mesh, x: Tensor, carried: Tensor, turns: Dim) -> Callable[[], Any]:
    def loop(x: Tensor, carried: Tensor) -> Tensor:
        return scan(lambda carried, _: (body(x, carried), None), carried, over=turns)[0]

    return partial(spmd(loop, mesh, _LAYOUT), x, carried)


def _sent(numbers: int, processors: int) -> float:
    """Returns the bytes that a processor sends in an all-reduce."""
    return 2 * (processors - 1) / processors * 4 * numbers


def as_text(measured: Sequence[Measurement], hardware: Hardware) -> str:
    """Returns the measurements as a table, then what follows from them."""
    from rich.console import Console
    from rich.table import Table

    table = Table("measured", "time", "reached", title="this machine", title_justify="left")
    for m in measured:
        reached = "" if m.unit == "kernels/s" else f"{show_count(m.rate)}{m.unit}"
        table.add_row(m.what, show_seconds(m.seconds), reached)
    console = Console(width=100, color_system=None)
    with console.capture() as captured:
        console.print(table, markup=False)
    products = ", ".join(f"{dtype} {show_count(rate)}FLOP/s" for dtype, rate in hardware.flops.items())
    return captured.get() + f"a processor: {products}; {show_bytes(hardware.memory)} of memory\n"


def fastest(program: Callable[..., Any], *args: Any, repeats: int = _REPEATS) -> float:
    """Returns the seconds of the fastest of several calls, compilation left out."""
    return fastest_of(partial(program, *args), repeats=repeats)[0]


def fastest_of(*programs: Callable[[], Any], repeats: int = _REPEATS) -> list[float]:
    """Returns the seconds of the fastest call of each, in turns: what slows the machine down meets all of them."""
    for program in programs:
        jax.block_until_ready(program())
    return [min(times) for times in zip(*([_seconds(p) for p in programs] for _ in range(repeats)), strict=True)]


def _seconds(program: Callable[[], Any]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(program())
    return time.perf_counter() - start


def _host_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
