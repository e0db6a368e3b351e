"""What windows do along dims: convolutions, pooling, resizing, padding. Borders travel to neighbours, nothing else.

As in `ops/`, the root exports what each module lists in its `__all__`, and here each becomes an operation.
"""

from ..sources import name_operations
from . import convolution, padding, pooling, resizing, unfolding
from .convolution import *  # noqa: F403
from .padding import *  # noqa: F403
from .pooling import *  # noqa: F403
from .resizing import *  # noqa: F403
from .unfolding import *  # noqa: F403

__all__ = [
    *convolution.__all__, *padding.__all__, *pooling.__all__, *resizing.__all__, *unfolding.__all__,
]  # fmt: skip
name_operations(globals(), __all__)
