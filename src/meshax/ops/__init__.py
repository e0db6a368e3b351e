"""The operations: each works on whole arrays outside a program, and on local slices plus collectives inside.

The root exports what each module lists in its `__all__`. Here, at the door, each becomes an operation: what it emits
bears its name. Behind the door modules call each other's functions as they are.
"""

from ..sources import name_operations
from . import (
    contraction,
    control,
    creation,
    elementwise,
    gradients,
    indexing,
    kernels,
    ordering,
    probability,
    reduction,
    resharding,
    shaping,
)
from .contraction import *  # noqa: F403
from .control import *  # noqa: F403
from .creation import *  # noqa: F403
from .elementwise import *  # noqa: F403
from .gradients import *  # noqa: F403
from .indexing import *  # noqa: F403
from .kernels import *  # noqa: F403
from .ordering import *  # noqa: F403
from .probability import *  # noqa: F403
from .reduction import *  # noqa: F403
from .resharding import *  # noqa: F403
from .shaping import *  # noqa: F403

__all__ = [
    *contraction.__all__, *control.__all__, *creation.__all__, *elementwise.__all__, *gradients.__all__,
    *indexing.__all__, *kernels.__all__, *ordering.__all__, *reduction.__all__, *resharding.__all__, *shaping.__all__,
    *probability.__all__,
]  # fmt: skip
name_operations(globals(), __all__)
