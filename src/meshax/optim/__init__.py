"""Optimizers: `init(params)` gives a state, `apply(grads, state, params)` the next parameters and the next state.

Those of optax that work element by element run on the slices each processor stores, and others are refused where that
would be wrong. Those that reduce over whole parameters are our own, exact under every layout.
"""

from . import schedules
from .adafactor import Adafactor
from .averaging import averaged
from .clipping import clip_by_global_norm, clipped, global_norm
from .contract import Optimizer
from .elementwise import from_optax
from .named_optimizers import by_name

__all__ = [
    "Adafactor", "Optimizer", "averaged", "by_name", "clip_by_global_norm", "clipped", "from_optax", "global_norm",
    "schedules",
]  # fmt: skip
