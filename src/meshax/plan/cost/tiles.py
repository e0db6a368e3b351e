"""What windows take on a TPU, which stores tiles of 8 x 128 elements.

The TPU compiler keeps arrays packed where it can. A convolution or a pool's derivative, though, reads copies of its
operands and writes its result in tiles of examples and channels: 32 channels take the place of 128.
"""

import math
from collections.abc import Iterable

from ..reading.walk import Step, Value

_CHANNELS, _EXAMPLES, _FEWEST = 128, 8, 4  # in a tile; there are tiles for up to four examples


def tiled_bytes(step: Step) -> int:
    """Returns the bytes of what a convolution or a pool's derivative reads and writes, in tiles; 0 for others."""
    if step.name == "conv_general_dilated":
        numbers = step.params["dimension_numbers"]
        minor = [spec[:2] for spec in (numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec)]
    elif step.name == "select_and_scatter_add":
        minor = [[i for i, n in enumerate(step.params["window_dimensions"]) if n == 1]] * 3
    else:
        return 0
    sizes = [_padded(v, dims) for v, dims in zip((*step.inputs[:2], step.outputs[0]), minor, strict=True)]
    read = sum(n * v.dtype.itemsize for n, v in zip(sizes, step.inputs, strict=False))
    return int(read + sizes[2] * _widest(step.outputs[0]))


def _padded(value: Value, minor: Iterable[int]) -> int:
    """Returns the elements of an array whose last minor dimension is channels, and whose others are examples."""
    *others, last = sorted(minor)
    examples, channels = math.prod(value.shape[i] for i in others), value.shape[last]
    rows = _FEWEST if examples <= _FEWEST else _EXAMPLES
    tiles = -(-examples // rows) * rows * (-(-channels // _CHANNELS) * _CHANNELS)
    return int(value.size // (examples * channels) * tiles)


def _widest(value: Value) -> int:
    """Returns the bytes of an element: casts to more are done on the way out."""
    widest, todo = value.dtype.itemsize, [value]
    while todo:
        for step in todo.pop().consumers:
            if step.name == "convert_element_type":
                widest = max(widest, step.outputs[0].dtype.itemsize)
            elif step.traits.fusion == "view" or step.name == "transpose":
                todo.extend(step.outputs)
    return int(widest)
