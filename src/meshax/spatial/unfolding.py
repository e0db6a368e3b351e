"""Windows of a dim as elements of a dim of their own: for whoever wants to see them, at the price of their memory."""

import jax.numpy as jnp

from ..collectives import LARGEST
from ..compat import Array
from ..dim import Dim, DimLike, find
from ..errors import ArgumentError
from ..ops.creation import one_sized_dim, places_fit
from ..ops.operands import integers
from ..ops.shaping import windowed
from ..tensors import Tensor, check_tensor

__all__ = ["windows"]


def windows(x: Tensor, dim: DimLike, window: Dim, before: int = 0, after: int = 0, stride: int = 1) -> Tensor:
    """Cuts a dim into overlapping windows: `y[.., i, .., w] = x[.., i * stride + w - before, ..]`, zeros outside.

    Args:
        x: the tensor.
        dim: the dim, which gets the number of windows as its size.
        window: the new dim, of the windows' width; it comes last.
        before: how far the first window reaches out before the dim.
        after: how far the last one may reach out behind it.
        stride: the distance from window to window.

    Communication: none, if the dim is not split; otherwise permutes of what the windows reach of their neighbours.
    """
    dim = find(check_tensor(x, "mx.windows").dims, dim)
    window = one_sized_dim(window, "windows")
    before, after, stride = integers("windows", before=before, after=after, stride=stride)
    reach = dim.size + before + after - window.size
    if reach < 0 or stride < 1 or before < 0 or after < 0:
        raise ArgumentError(
            f"dim {dim} has no window of {window}.",
            values=f"before {before}, after {after}, stride {stride}",
            rule="at least one window fits, and steps go forward.",
            fix="choose a smaller window, or larger margins.",
        )
    new = Dim(dim.name, reach // stride + 1)

    def cut(array: Array, position: int, block: int) -> Array:
        if array.shape[position] > LARGEST:
            places_fit(dim, "windows")
        places = jnp.arange(block)[:, None] * stride + jnp.arange(window.size)
        return jnp.moveaxis(jnp.take(array, places, axis=position), position + 1, -1)

    return windowed(x, dim, new, cut, offset=-before, stride=stride, reach=window.size, extra=(window,))
