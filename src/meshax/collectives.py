"""The one door to collectives.

Every function takes and gives local arrays. Over a mesh axis a local array is *split* or *copies* (JAX's type says
varying) or *replicated* (invariant). Most are made once for a value, in the value's own trace: however many
consumers ask, in whatever loop, there is one collective forward and one backward.
"""

import math
import threading
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .compat import Array, for_a_while, is_traced, own_trace, varying_axes

Axes = tuple[str, ...]

PRIMITIVES = frozenset(
    {"psum", "psum_invariant", "pmax", "pmin", "all_gather", "all_gather_invariant", "all_gather_reduced"}
    | {"reduce_scatter", "all_to_all", "ppermute", "unreduced_psum", "unreduced_reduce_scatter"}
)

LARGEST = 2**31 - 1  # places are int32: JAX has no other integers for them, unless jax_enable_x64 is set

_local = threading.local()


def remembering() -> AbstractContextManager[Any]:
    """Opens the memory of what was already cast, gathered or reduced; `spmd` holds it open while it traces."""
    return for_a_while(_local, "memory", {})


def forgetting() -> AbstractContextManager[Any]:
    """Closes that memory for a while: everything is made anew, in the innermost trace."""
    return for_a_while(_local, "memory", None)


def once(x: Array, key: Hashable, make: Callable[[Array], Array]) -> Array:
    """Returns `make(x)`, made the first time it is asked for, in the trace of `x`."""
    memory = getattr(_local, "memory", None)
    if memory is None or not is_traced(x):
        return make(x)
    _, results = memory.setdefault(id(x), (x, {}))  # holding x keeps its id its own
    if key not in results:
        with own_trace(x):
            results[key] = make(x)
    return results[key]


def processor_index(axes: Sequence[str]) -> Array:
    """Returns this processor's place along some axes together, the first being major."""
    return lax.axis_index(axes[0] if len(axes) == 1 else tuple(axes))  # one alone takes JAX no arithmetic


def to_copies(x: Array, axes: frozenset[str]) -> Array:
    """Makes a value vary over axes: free, and in the backward pass one sum over them."""
    missing = tuple(sorted(axes - varying_axes(x))) if axes else ()
    if not missing:
        return x
    return once(x, ("copies", missing), lambda x: lax.pcast(x, missing, to="varying"))


def summing_dtype(dtype: Any) -> Any:
    """Returns the dtype in which partial sums are added up.

    Partial sums of float16 and narrower floats may overflow where the whole sum does not, and backends cannot add
    integers of less than a byte, or truth values, whose sum is "any".
    """
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.dtype(jnp.float32) if jnp.finfo(dtype).bits < 16 or dtype == jnp.float16 else dtype
    is_narrow = dtype == jnp.bool_ or (jnp.issubdtype(dtype, jnp.integer) and jnp.iinfo(dtype).bits < 8)
    return jnp.dtype(jnp.int32) if is_narrow else dtype


def can_stay_pending(dtype: Any) -> bool:
    """Whether sums of parts are parts of sums: not of truth values, nor where parts overflow and the whole does not."""
    return dtype == summing_dtype(dtype)


def sum_over(x: Array, axes: Sequence[str]) -> Array:
    """Sums over axes, in `summing_dtype`: one all-reduce. A sum of truth values is whether any is true."""
    return _widened(x, lambda x: lax.psum(x, tuple(axes))) if axes else x


def scatter_sum(x: Array, axes: Axes, position: int) -> Array:
    """Sums over axes and leaves each processor its block along an array dimension: one reduce-scatter."""
    return _widened(x, lambda x: lax.psum_scatter(x, axes, scatter_dimension=position, tiled=True))


def replicate(x: Array, axes: Sequence[str]) -> Array:
    """Turns copies into a replicated value of any dtype: one all-reduce."""
    return _widened(x, lambda x: lax.psum(only_first(x, axes), tuple(axes))) if axes else x


def _widened(x: Array, reduce: Callable[[Array], Array]) -> Array:
    wide = summing_dtype(x.dtype)
    return reduce(x) if wide == x.dtype else reduce(x.astype(wide)).astype(x.dtype)


def gather(x: Array, axes: Axes, position: int, *, copies: bool, transient: bool = False) -> Array:
    """Joins the blocks along an array dimension: one all-gather.

    As copies, the backward pass is a reduce-scatter. As a replicated value it is free, but then each use that varies
    over the axes costs an all-reduce: the consumer knows which it needs. What is transient is gathered again for the
    backward pass, whatever else a remat policy keeps.
    """
    whole = lax.all_gather(x, axes, axis=position, tiled=not transient, to="varying" if copies else "invarying")
    if transient:  # the blocks still have a dimension of their own
        whole = whole.reshape([-1 if i == position else size for i, size in enumerate(x.shape)])
    return whole


def is_transient(primitive: Any, params: Mapping[str, Any]) -> bool:
    """Whether an operation of a trace gathers something transient. A policy is shown nothing but parameters."""
    return primitive.name.startswith("all_gather") and not params["tiled"]


def exchange(x: Array, axes: Axes, split: int, join: int) -> Array:
    """Cuts along one array dimension and joins along another: one all-to-all."""
    return lax.all_to_all(x, axes, split_axis=split, concat_axis=join, tiled=True)


def permute(x: Array, axes: Axes, pairs: Sequence[tuple[int, int]], axis_sizes: Mapping[str, int]) -> Array:
    """Sends from processor to processor along axes together: one permute. Who receives nothing has zeros.

    JAX counts processors in the order of the mesh's axes, whatever the order of `axes`.
    """
    in_mesh_order = [axes.index(axis) for axis in axis_sizes if axis in axes]
    places = np.arange(math.prod(axis_sizes[axis] for axis in axes)).reshape([axis_sizes[axis] for axis in axes])
    number = np.argsort(np.transpose(places, in_mesh_order).ravel())
    ordered = tuple(axes[i] for i in in_mesh_order)
    return lax.ppermute(x, ordered, sorted((int(number[a]), int(number[b])) for a, b in pairs))


def take_block(x: Array, axes: Axes, position: int, block: int) -> Array:
    """Returns this processor's block along an array dimension: free; backward one all-gather if x is replicated."""
    if jnp.issubdtype(x.dtype, jnp.inexact) and not set(axes) & varying_axes(x):
        return _block_of_replicated(x, axes, position, block)
    return _block(x, axes, position, block)


def _block(x: Array, axes: Axes, position: int, block: int) -> Array:
    x = to_copies(x, frozenset(axes))
    if x.shape[position] <= LARGEST:
        return lax.dynamic_slice_in_dim(x, processor_index(axes) * block, block, position)
    blocks = x.reshape([*x.shape[:position], -1, block, *x.shape[position + 1 :]])  # whose numbers fit into 32 bits
    return lax.dynamic_index_in_dim(blocks, processor_index(axes), position, keepdims=False)


# The plain derivative would be an all-reduce of the whole array, each processor adding its block to zeros.
_block_of_replicated = jax.custom_vjp(_block, nondiff_argnums=(1, 2, 3))
_block_of_replicated.defvjp(
    lambda x, axes, position, block: (_block_of_replicated(x, axes, position, block), None),
    lambda axes, position, block, _, ct: (gather(ct, axes, position, copies=False),),
)


def only_first(x: Array, axes: Collection[str]) -> Array:
    """Turns copies into a pending sum: every processor but the first along the axes holds zeros."""
    return jnp.where(processor_index(sorted(axes)) == 0, x, jnp.zeros((), x.dtype)) if axes else x


def max_over(x: Array, axes: Axes) -> Array:
    """Takes the maximum over axes, NaN wherever a processor has NaN: one all-reduce. Has no derivative."""
    return _extremum_over(x, axes, lax.pmax, sign=1)


def min_over(x: Array, axes: Axes) -> Array:
    """Takes the minimum over axes, NaN wherever a processor has NaN: one all-reduce. Has no derivative."""
    return _extremum_over(x, axes, lax.pmin, sign=-1)


def _extremum_over(x: Array, axes: Axes, reduce: Callable[..., Array], sign: int) -> Array:
    if not axes:
        return x
    x = lax.stop_gradient(x)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return _widened(x, lambda x: reduce(x, axes))
    ordered, restore = _as_ordered_integers(x, sign)
    return restore(reduce(ordered, axes)).astype(x.dtype)


def _as_ordered_integers(x: Array, sign: int) -> tuple[Array, Callable[[Array], Array]]:
    """Maps floats to integers of the same order, NaN beyond them all: the backends' own maximum may drop a NaN.

    No constant takes part: in a scan, in a second derivative, JAX hands the rule of a `custom_vjp` the constants of its
    function in the place of its operands.
    """
    alike = {2: (x.dtype, jnp.int16), 8: (x.dtype, jnp.int64)}
    wide, integer = alike.get(x.dtype.itemsize, (jnp.float32, jnp.int32))
    x = x.astype(wide)
    size = lax.bitcast_convert_type(lax.abs(x), integer)
    goes_up = lax.bitcast_convert_type(x, integer) == size
    beyond = size if sign > 0 else ~size
    ordered = lax.select(x == x, lax.select(goes_up, size, ~size), beyond)
    return ordered, partial(_as_floats, wide=wide)


def _as_floats(ordered: Array, wide: Any) -> Array:
    above, below = (lax.bitcast_convert_type(bits, wide) for bits in (ordered, ~ordered))
    return lax.select(ordered > ~ordered, above, -below)
