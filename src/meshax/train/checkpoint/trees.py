"""From a tree of tensors to arrays with names, and back onto a mesh.

The name of an array is its path in the tree. What is saved is logical: dims without padding, and no trace of the mesh;
the tree that is asked for (`like`) and the new layout say where each block goes.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ...dim import sizes
from ...errors import CheckpointError
from ...layout import Setting
from ...tensors import Tensor, is_tensor
from .arrays import Reader, Reading, Snapshot, prepare_copies, take_snapshots
from .copies import Copies
from .manifest import Entry
from .stacks import Source

_READ_AHEAD = 4  # arrays


def leaves_of(tree: Any) -> dict[str, Any]:
    """Returns the leaves by name: tensors, arrays (numbers are arrays too), keys, or the shapes of these."""
    leaves: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_tensor)[0]:
        name = jax.tree_util.keystr(path)
        if name in leaves:
            raise CheckpointError(
                "two leaves of the tree have one name.", values=name, fix="give the fields or keys other names."
            )
        leaves[name] = _canonical(leaf, name)
    return leaves


def _canonical(leaf: Any, name: str) -> Any:
    """Returns arrays of the host as JAX would hold them, or raises if that changed whole numbers."""
    array = leaf.array if is_tensor(leaf) else leaf
    if isinstance(array, jax.Array):
        return leaf
    if isinstance(array, jax.ShapeDtypeStruct):
        dtype = jax.dtypes.canonicalize_dtype(array.dtype, allow_extended_dtype=True)
        array = jax.ShapeDtypeStruct(array.shape, dtype)
        return Tensor(array, leaf.dims, leaf.role) if is_tensor(leaf) else array
    host = np.asarray(array)
    if host.dtype.kind in "OSUMm":
        raise CheckpointError(
            f"a checkpoint holds tensors, arrays and numbers, not {type(array).__name__}.",
            values=f"{name}: {array!r}"[:120],
            fix="put what JSON can hold into extra, and leave the rest out of the tree.",
        )
    narrow = host.astype(jax.dtypes.canonicalize_dtype(host.dtype), copy=False)
    if host.dtype.kind in "iu" and not np.array_equal(host, narrow):
        raise CheckpointError(
            f"a number does not fit {narrow.dtype}.",
            values=f"{name}: {host.dtype}, up to {np.abs(host).max()}",
            rule="what JAX would cut to 32 bits is not saved as it is.",
            fix='put counters into extra, or set jax.config.update("jax_enable_x64", True).',
        )
    return Tensor(narrow, leaf.dims, leaf.role) if is_tensor(leaf) else narrow


def entry_of(leaf: Any) -> Entry:
    """Describes a leaf for the manifest."""
    if is_tensor(leaf):
        dims = tuple((dim.name, dim.size) for dim in leaf.dims)
        return Entry(dims, sizes(leaf.dims), str(leaf.dtype), leaf.role)
    return Entry(None, tuple(leaf.shape), str(leaf.dtype))


def snapshot_tree(leaves: Mapping[str, Any], copies: Copies) -> dict[str, Snapshot]:
    """Copies what this process writes of the leaves: on their devices if there is room, else to the host."""
    return take_snapshots({name: _data_of(leaf) for name, leaf in leaves.items()}, copies)


def prepare_tree(leaves: Mapping[str, Any], copies: Copies) -> None:
    """Gets ready for snapshots of such leaves."""
    prepare_copies({name: _data_of(leaf) for name, leaf in leaves.items()}, copies)


def _data_of(leaf: Any) -> tuple[Any, tuple[int, ...]]:
    """Returns the array of a leaf, and its logical shape; of a key, its words."""
    array, shape = (leaf.array, sizes(leaf.dims)) if is_tensor(leaf) else (leaf, tuple(leaf.shape))
    if not _is_key(array):
        return array, shape
    data = jax.random.key_data(array)
    return data, (*shape, *data.shape[len(array.shape) :])


def dtypes_to_read(saved: Mapping[str, Entry], leaves: Mapping[str, Any], dtype: Any) -> dict[str, str]:
    """Returns the dtype each array shall have: as saved, as asked for, or (`"like"`) as in the tree."""

    def wanted(name: str, leaf: Any) -> str:
        if dtype is None or name not in saved or not _is_floating(saved[name].dtype):
            return saved[name].dtype if name in saved else ""
        if isinstance(dtype, str) and dtype == "like":
            return str(leaf.dtype) if _is_floating(str(leaf.dtype)) else saved[name].dtype
        return jnp.dtype(dtype).name

    return {name: wanted(name, leaf) for name, leaf in leaves.items()}


def find_differences(saved: Mapping[str, Entry], leaves: Mapping[str, Any], dtype: Any, partial: bool) -> list[str]:
    """Compares the saved arrays with the tree that is asked for; returns one line for each difference."""
    return list(_differences(saved, leaves, dtype, partial))


def _differences(saved: Mapping[str, Entry], leaves: Mapping[str, Any], dtype: Any, partial: bool) -> Iterator[str]:
    for name, leaf in leaves.items():
        if name not in saved:
            yield f"{name}: is missing"
            continue
        there, here = saved[name], entry_of(leaf)
        # asked for in so many words, a floating array comes in another dtype
        same_dtype = there.dtype == here.dtype or (
            dtype is not None and _is_floating(there.dtype) and _is_floating(here.dtype)
        )
        if (there.dims, there.shape) != (here.dims, here.shape) or not same_dtype:
            yield f"{name}: {there} in the checkpoint, {here} here"
    if not partial:
        yield from (f"{name}: is unexpected" for name in saved if name not in leaves)


def read_tree(
    database: Path,
    like: Any,
    leaves: Mapping[str, Any],
    sources: Mapping[str, Source],
    dtypes: Mapping[str, str],
    setting: Setting,
) -> Any:
    """Reads the leaves of a tree onto the mesh; a few arrays are on their way at a time.

    Args:
        database: where the arrays are.
        like: the tree.
        leaves: its leaves by name.
        sources: which arrays each is made of.
        dtypes: what each becomes.
        setting: the mesh and the layout.
    """
    reader = Reader(database)
    waiting: deque[tuple[str, Reading]] = deque()
    restored: list[Any] = []

    def finish_one() -> None:
        name, reading = waiting.popleft()
        leaf = leaves[name]
        if _is_key(leaf):
            array = jax.random.wrap_key_data(reading.finish(np.uint32), impl=_key_impl(dtypes[name]))
        else:
            array = reading.finish(jnp.dtype(dtypes[name]))
        restored.append(Tensor(array, leaf.dims, leaf.role) if is_tensor(leaf) else array)

    for name, leaf in leaves.items():
        placement = setting.placement(leaf.dims, leaf.role) if is_tensor(leaf) else None
        shape = placement.padded_shape if placement is not None else tuple(leaf.shape)
        spec = placement.spec if placement is not None else PartitionSpec()
        waiting.append((name, reader.start(sources[name], shape, NamedSharding(setting.mesh.jax_mesh, spec))))
        if len(waiting) > _READ_AHEAD:
            finish_one()
    while waiting:
        finish_one()
    return jax.tree.unflatten(jax.tree.structure(like, is_leaf=is_tensor), restored)


def _is_floating(dtype: str) -> bool:
    return not dtype.startswith("key<") and bool(jnp.issubdtype(jnp.dtype(dtype), jnp.floating))


def _is_key(leaf: Any) -> bool:
    return bool(jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def _key_impl(dtype: str) -> str:
    """Returns the generator of a dtype of keys: a shape knows its dtype only."""
    return next(
        impl for impl in ("threefry2x32", "rbg", "unsafe_rbg") if str(jax.random.key(0, impl=impl).dtype) == dtype
    )
