"""The first collective of every group of processors, while all processes are at the same place.

A backend connects the processors of a group at their first collective, and there it waits half a minute, whatever it
was told: a process that still compiles would be too late. Once connected, they wait for each other as long as needed.
"""

import itertools
from typing import Any

import jax
import numpy as np

from ..dim import Dim
from ..layout import Layout
from ..mesh import Mesh
from ..ops.reduction import sum as sum_over
from ..program import spmd
from ..tensors import Tensor, tensor


def warm_groups(mesh: Mesh) -> None:
    """Runs a collective over every set of axes of a mesh. All processes call it at once."""
    program, numbers = sums_over_groups(mesh)
    jax.block_until_ready(program(numbers))


def sums_over_groups(mesh: Mesh) -> tuple[Any, Tensor]:
    """Returns a program that sums numbers over every set of axes that has several processors, and the numbers."""
    dims = [Dim(f"warm_{axis}", size) for axis, size in mesh.axes.items() if size > 1]
    groups = [group for count in range(1, len(dims) + 1) for group in itertools.combinations(dims, count)]

    def sums(x: Tensor) -> list[Tensor]:
        return [sum_over(x, group) for group in groups]

    numbers = np.arange(np.prod([dim.size for dim in dims], dtype=int), dtype=np.float32)
    layout = Layout(" ".join(f"{dim.name}:{dim.name.removeprefix('warm_')}" for dim in dims))
    return spmd(sums, mesh, layout), tensor(numbers.reshape([dim.size for dim in dims]), dims)
