"""Windows that slide along dims: what element j of a result reads of the operand, or adds to it.

A `Slide` reads: element j of the result reads the places `j * stride - before + t * dilation` for every tap t. A
`Spread` is its transpose: element i of the operand is added to these places of the result. For a processor's block of
the result both say which stretch of the operand it reads.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..dim import Dim, DimLike, Dims, find, show
from ..errors import ArgumentError
from ..layout import block_size
from ..ops.operands import integers
from .stretches import Stretches

Numbers = int | Mapping[DimLike, int]  # one for all dims, or each its own
Padding = str | Mapping[DimLike, tuple[int, int]]


@dataclass(frozen=True)
class Local:
    """One dim of a convolution on one processor, in the words of `jax.lax.conv_general_dilated`."""

    stride: int
    padding: tuple[int, int]
    operand_dilation: int
    tap_dilation: int
    is_transposed: bool
    begins: tuple[int, ...]  # for each processor, where its block begins in what the convolution gives
    block: int


@dataclass(frozen=True)
class Slide:
    """A window along one dim."""

    dim: Dim
    taps: int
    stride: int = 1
    dilation: int = 1
    before: int = 0
    after: int = 0

    @property
    def reach(self) -> int:
        """From the first tap to the last, both included."""
        return (self.taps - 1) * self.dilation + 1

    @cached_property
    def new(self) -> Dim:
        """The dim of the result: as many elements as windows fit."""
        return Dim(self.dim.name, (self.dim.size + self.before + self.after - self.reach) // self.stride + 1)

    def reads(self, count: int) -> Stretches:
        """Returns what each of `count` processors reads for its block of the result, padding left out."""
        block = block_size(self.new.size, count)
        held = [min(max(self.new.size - p * block, 0), block) for p in range(count)]
        starts = tuple(p * block * self.stride - self.before for p in range(count))
        return Stretches(self.dim, starts, tuple((n - 1) * self.stride + self.reach if n else 0 for n in held))

    def local(self, count: int) -> Local:
        """Returns how a processor's stretch, or the whole dim, becomes its block of the result."""
        padding = (self.before, self.after) if count == 1 else (0, 0)
        return Local(self.stride, padding, 1, self.dilation, False, (0,) * count, block_size(self.new.size, count))


@dataclass(frozen=True)
class Spread(Slide):
    """The transpose of a window: `dim` is what the window gave, `new` is what it read."""

    size: int = 0  # of the new dim

    @cached_property
    def new(self) -> Dim:
        """The dim of the result."""
        return Dim(self.dim.name, self.size)

    def reads(self, count: int) -> Stretches:
        """Returns what each of `count` processors reads for its block of the result, padding left out."""
        block, starts, needs = block_size(self.size, count), [], []
        for p in range(count):
            first, last = p * block, min((p + 1) * block, self.size) - 1
            start = -((self.reach - 1 - first - self.before) // self.stride)  # the first whose last tap gets here
            starts.append(start)
            needs.append(max((last + self.before) // self.stride - start + 1, 0) if first <= last else 0)
        return Stretches(self.dim, tuple(starts), tuple(max(n, int(p == 0)) for p, n in enumerate(needs)))

    def local(self, count: int) -> Local:
        """Returns how a processor's stretch, or the whole dim, becomes its block of the result."""
        block, reads = block_size(self.size, count), self.reads(count)
        starts, width = (reads.starts, reads.width) if count > 1 else ((0,), self.dim.size)
        # how far each block begins before the last tap of the first element that is read
        early = [self.reach - 1 - self.before - p * block + start * self.stride for p, start in enumerate(starts)]
        low = max(early)
        length = block + low - min(early)
        high = length + self.reach - 1 - low - ((width - 1) * self.stride + 1)
        return Local(1, (low, high), self.stride, self.dilation, True, tuple(low - e for e in early), block)


def slides_of(op: str, taps: Mapping[Dim, int], stride: Any, dilation: Any, padding: Any) -> list[Slide]:
    """Reads the arguments of an operation whose windows slide: one `Slide` for each dim."""
    strides, dilations = (_by_dim(op, n, v, taps) for n, v in (("stride", stride), ("dilation", dilation)))
    slides = []
    for dim, margin in _paddings(op, taps, padding).items():
        slide = Slide(dim, taps[dim], strides[dim], dilations[dim])
        if padding == "same":
            margin = _same(slide, dim.size, -(-dim.size // slide.stride))
        slide = Slide(dim, taps[dim], strides[dim], dilations[dim], *margin)
        if dim.size + sum(margin) < slide.reach:
            raise ArgumentError(
                f"no window of mx.{op} fits into dim {dim}.",
                values=f"{slide.reach} places from the first tap to the last, padding {margin[0]} and {margin[1]}",
                rule="at least one window fits into the dim and its padding.",
                fix='choose a smaller window or dilation, larger padding, or padding="same".',
            )
        slides.append(slide)
    return slides


def spreads_of(op: str, taps: Mapping[Dim, int], stride: Any, dilation: Any, padding: Any) -> list[Spread]:
    """Reads the arguments of the transpose of such an operation."""
    strides, dilations = (_by_dim(op, n, v, taps) for n, v in (("stride", stride), ("dilation", dilation)))
    spreads = []
    for dim, margin in _paddings(op, taps, padding).items():
        slide = Slide(dim, taps[dim], strides[dim], dilations[dim])
        size = (dim.size - 1) * slide.stride + slide.reach - sum(margin)
        if padding == "same":
            size = dim.size * slide.stride
            margin = _same(slide, size, dim.size)
        if size < 1:
            raise ArgumentError(
                f"mx.{op} leaves nothing of dim {dim}.",
                values=f"padding {margin[0]} and {margin[1]}",
                rule="its padding is what the convolution was padded by, and is cut off: at least one element is left.",
                fix="choose less padding.",
            )
        spreads.append(Spread(dim, taps[dim], strides[dim], dilations[dim], *margin, size))
    return spreads


def _same(slide: Slide, size: int, count: int) -> tuple[int, int]:
    """Returns JAX's "same" padding of a dim for so many windows: the odd one comes behind."""
    total = max((count - 1) * slide.stride + slide.reach - size, 0)
    return total // 2, total - total // 2


def _by_dim(op: str, name: str, value: Any, dims: Mapping[Dim, int]) -> dict[Dim, int]:
    given = _named(value, tuple(dims)) if isinstance(value, Mapping) else dict.fromkeys(dims, value)
    numbers = {dim: integers(op, **{name: given.get(dim, 1)})[0] for dim in dims}
    if wrong := {dim.name: number for dim, number in numbers.items() if number < 1}:
        raise ArgumentError(f"mx.{op} takes a {name} of at least 1.", values=str(wrong), fix=f"leave {name}= out.")
    return numbers


def _paddings(op: str, dims: Mapping[Dim, int], padding: Any) -> dict[Dim, tuple[int, int]]:
    """Reads the padding of each dim; that of "same" is yet to be computed."""
    if padding in ("same", "valid"):
        return dict.fromkeys(dims, (0, 0))
    margins = _named(padding, tuple(dims)) if isinstance(padding, Mapping) else {}
    are_pairs = all(isinstance(m, tuple | list) and len(m) == 2 for m in margins.values())
    if not isinstance(padding, Mapping) or not are_pairs:
        raise ArgumentError(
            f"mx.{op} does not know this padding.",
            values=repr(padding),
            rule='padding is "same", "valid", or how many elements before and behind each dim.',
            fix=f'write for example padding={{"{next(iter(dims)).name}": (1, 1)}}.',
        )
    pairs = {d: tuple(integers(op, before=m[0], after=m[1])) for d, m in margins.items()}
    if any(n < 0 for pair in pairs.values() for n in pair):
        raise ArgumentError(
            f"mx.{op} takes padding of at least 0.", values=repr(padding), fix="use mx.slice to cut elements off."
        )
    return {dim: pairs.get(dim, (0, 0)) for dim in dims}  # type: ignore[misc]


def _named(values: Mapping[DimLike, Any], dims: Sequence[Dim]) -> dict[Dim, Any]:
    return {find(dims, dim): value for dim, value in values.items()}


def window_dims(op: str, dims: Dims, windows: Any) -> dict[Dim, Any]:
    """Reads which dims windows slide along."""
    example = '{"height": 2}' if op.endswith("pool") else 'kernel, {"height": "kh", "width": "kw"}'
    if not isinstance(windows, Mapping) or not 1 <= len(windows) <= 3:
        raise ArgumentError(
            f"the windows of mx.{op} slide along one to three dims.",
            values=f"{windows!r} for {show(dims)}",
            fix=f"name them in a dict: mx.{op}(x, {example}).",
        )
    return _named(windows, dims)
