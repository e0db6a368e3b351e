"""The named array.

A `Tensor` is a pytree: an array, and as static data its dims and its storage role. Outside a program the array is
whole, padded where a split dim is uneven. Inside, it is one processor's slice, and between two operations it may be
unsettled: a pending sum, or still split along a dim that has been renamed to an unsplit one. Whoever uses it decides
which collective settles it; flattening the pytree does too, so what crosses a JAX boundary is always settled.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from . import collectives
from .checking import border
from .checking.derivatives import check_copies
from .compat import Array, is_traced, named, varying_axes
from .dim import Dim, DimLike, Dims, DimsLike, as_list, find, show, sizes, unique
from .errors import LayoutError, MeshaxError, ShapeError
from .layout import Placement, current, is_inside
from .sources import operation
from .transfer import crop, move

_ARRAYS = (jax.Array, np.ndarray)
_records_names = jax.make_user_context(False)  # part of JAX's cache keys: a trace with names is nobody else's


def recording_names() -> Any:
    """Returns a context manager that writes the names of every tensor made inside into the trace, for who reads it."""
    return _records_names(True)


def _with_names(x: Array, dims: Dims) -> Array:
    return named(x, tuple(dim.name for dim in dims)) if is_traced(x) and x.shape == sizes(dims) else x


@jax.tree_util.register_pytree_with_keys_class
class Tensor:
    """An array with named dims; make one with `mx.tensor`."""

    __slots__ = ("_array", "_origin", "_pending", "_placement", "dims", "role")
    __array_ufunc__ = None  # numpy leaves the operators to us
    __hash__ = None  # type: ignore[assignment]  # == is elementwise
    __iter__ = None  # elements are taken by the names of dims

    def __init__(
        self,
        array: Array,
        dims: Dims,
        role: str | None = None,
        placement: Placement | None = None,
        pending: frozenset[str] = frozenset(),
        origin: "tuple[Callable[[Array], Array], Tensor] | None" = None,
    ):
        self._array = _with_names(array, dims) if _records_names.value else array
        self.dims = dims
        self.role = role
        self._placement = placement  # None: as the layout says
        self._pending = pending
        self._origin = origin

    @property
    def array(self) -> Array:
        """The array: whole outside a program (padded where a split dim is uneven), the local slice inside."""
        return _given_away(self)

    @property
    def dtype(self) -> Any:
        """The dtype of the array."""
        return self._array.dtype

    @property
    def size(self) -> int:
        """The number of elements, padding not counted."""
        return int(np.prod(sizes(self.dims), dtype=np.int64))

    @property
    def shape(self) -> dict[str, int]:
        """The size of each dim, by its name."""
        return {dim.name: dim.size for dim in self.dims}

    def dim(self, name: DimLike) -> Dim:
        """Returns the dim of that name."""
        return find(self.dims, name)

    def numpy(self) -> np.ndarray:
        """Returns the whole value, without padding, on the host."""
        if is_traced(self._array):
            raise MeshaxError(
                "a tensor inside a program has no value yet.",
                values=repr(self),
                fix="return it from the program, and look at the result; or print it there with mx.debug_print.",
            )
        if not getattr(self._array, "is_fully_addressable", True) and not self._array.is_fully_replicated:
            raise MeshaxError(
                "no process has the whole of a tensor that is split over several.",
                values=repr(self),
                fix="let all processes call mx.gather_to_host(x) together; or look at its .array.addressable_shards.",
            )
        return np.asarray(crop(self._array, self.dims))

    def item(self) -> Any:
        """Returns the only element as a Python number."""
        if self.size != 1:
            raise ShapeError(
                "only a tensor of one element is a number.",
                values=show(self.dims),
                fix="reduce it first, or use .numpy().",
            )
        return self.numpy().item()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.numpy(), dtype, copy=copy)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Lets functions of numpy's see the value, where they would look for a method of that name."""
        as_value = lambda x: x.numpy() if isinstance(x, Tensor) else x  # noqa: E731
        args, kwargs = jax.tree.map(as_value, (args, kwargs), is_leaf=is_tensor)
        return function(*args, **kwargs)

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> bool:
        if is_traced(self._array):
            raise MeshaxError(
                "a tensor inside a program is not true or false yet.",
                values=repr(self),
                fix="choose elements with mx.where, what to compute with mx.cond, and how often with mx.while_loop.",
            )
        return bool(self.item())

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else str(self)

    if TYPE_CHECKING:  # attached by meshax.ops, which stands above

        def _operator(self, other: Any) -> "Tensor": ...
        def _unary(self) -> "Tensor": ...

        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _operator
        __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = _operator
        __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __lt__ = __le__ = __gt__ = __ge__ = _operator
        __eq__ = __ne__ = _operator  # type: ignore[assignment]
        __neg__ = __abs__ = __invert__ = _unary

        def _reduce(self, over: DimsLike | None = None) -> "Tensor": ...
        def __getitem__(self, places: Mapping[Any, Any]) -> "Tensor": ...

        all = any = max = mean = min = prod = sum = var = _reduce

        def astype(self, dtype: Any) -> "Tensor": ...  # noqa: D102
        def rename(self, /, **names: DimLike) -> "Tensor": ...  # noqa: D102
        def argmax(self, over: DimLike) -> "Tensor": ...  # noqa: D102
        def argmin(self, over: DimLike) -> "Tensor": ...  # noqa: D102

    def __repr__(self) -> str:
        placement: tuple[Any, ...]
        try:
            placement = placement_of(self)
        except MeshaxError:
            placement = ()
        parts = [f"Tensor{show(self.dims, placement)}", str(getattr(self._array, "dtype", type(self._array).__name__))]
        parts += [self.role] if self.role else []
        parts += [f"pending over {'+'.join(sorted(self._pending))}"] if self._pending else []
        if isinstance(self._array, _ARRAYS) and not is_traced(self._array):
            is_here = isinstance(self._array, np.ndarray) or self._array.is_fully_addressable
            values = np.array2string(self.numpy(), threshold=24, edgeitems=2, precision=4) if is_here else "..."
            parts.append(values if "\n" not in values else "\n" + values)
        return " ".join(parts)

    def tree_flatten_with_keys(self) -> tuple[Any, Any]:
        """Flattens into the settled array."""
        return ((jax.tree_util.GetAttrKey("array"), _given_away(self)),), (self.dims, self.role)

    def tree_flatten(self) -> tuple[Any, Any]:
        """Flattens into the settled array."""
        return (_given_away(self),), (self.dims, self.role)

    @classmethod
    def tree_unflatten(cls, static: tuple[Dims, str | None], leaves: Sequence[Any]) -> "Tensor":
        """Makes a tensor of whatever stands for its array."""
        return cls(_taken_in(leaves[0], *static), *static)


def copies_of(array: Array, placement: Placement) -> frozenset[str]:
    """Returns the axes over which an array is copies: it varies, and no dim is split over them."""
    return varying_axes(array) - placement.axes


def _given_away(x: Tensor) -> Array:
    """Returns the array that JAX code gets to see: settled, and marked if it is a slice."""
    setting = current()
    if not setting.has_rules or not isinstance(x._array, _ARRAYS) or x._array.ndim != len(x.dims):
        return x._array  # somebody may have put something else in its place, as a function of trees can
    placement = setting.placement(x.dims, x.role)
    parts = placement.parts
    is_settled = x._placement is None and not x._pending
    is_ready = is_settled and (not any(parts) or (is_traced(x._array) and _is_slice(x._array, placement)))
    array = x._array if is_ready else settled_array(x)
    check_copies(array, placement.axes)
    if not any(parts):
        return array
    marked = collectives.once(array, ("leaves", parts), lambda array: border.leave(array, parts))
    # an array that comes back as it was is still the same: what was gathered or cast of it need not be made again
    collectives.once(marked, ("enters", parts), lambda _: array)
    return marked


def _is_slice(array: Array, placement: Placement) -> bool:
    """Whether an array is a slice by its shape, or its type, if a block of each dim is the whole of it."""
    shape = array.shape
    return shape == placement.local_shape and (shape != sizes(placement.dims) or bool(varying_axes(array)))


def _taken_in(array: Any, dims: Dims, role: str | None) -> Any:
    """Returns what JAX code gives a tensor for its array, marked if it is a slice."""
    setting = current()
    if not setting.has_rules or not isinstance(array, _ARRAYS):
        return array
    placement = setting.placement(dims, role)
    check_copies(array, placement.axes)
    parts = placement.parts
    if not any(parts) or not _is_slice(array, placement):
        return array
    return collectives.once(array, ("enters", parts), lambda array: border.enter(array, parts))


def is_tensor(x: Any) -> bool:
    """Whether x is a `Tensor` with an array: the `is_leaf` of our tree functions.

    Others may put something else in an array's place, as optax does where it masks: then it is a pytree like any other.
    """
    return isinstance(x, Tensor) and hasattr(x._array, "shape")


class Packed:
    """A pytree with tensors, as a list of leaves and what it takes to rebuild it from arrays."""

    treedef: Any

    def __init__(self, tree: Any):
        self.leaves, self.treedef = jax.tree.flatten(tree, is_leaf=is_tensor)
        self.kinds = [(leaf.dims, leaf.role) if is_tensor(leaf) else None for leaf in self.leaves]

    def rebuild(self, arrays: Sequence[Array]) -> Any:
        """Returns the same pytree of other arrays."""
        pairs = zip(arrays, self.kinds, strict=True)
        return jax.tree.unflatten(self.treedef, [a if kind is None else Tensor(a, *kind) for a, kind in pairs])


@operation
def tensor(array_like: Any, dims: DimsLike) -> Tensor:
    """Names the dims of an array.

    Args:
        array_like: anything that JAX or numpy takes for an array.
        dims: dims, or names (`"batch hidden"`) whose sizes are the array's.

    >>> tensor([[1.0, 2.0], [3.0, 4.0]], "rows cols").dims
    (rows:2, cols:2)

    Communication: none.
    """
    if isinstance(array_like, Tensor):
        raise ShapeError("this is a tensor already.", values=repr(array_like), fix="use mx.rename to rename its dims.")
    array = array_like if hasattr(array_like, "dtype") and hasattr(array_like, "shape") else jnp.asarray(array_like)
    if isinstance(array, np.ndarray | np.generic):
        array = array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)
    check_same_everywhere(array)
    named = as_list(dims)
    if len(named) != len(array.shape):
        raise ShapeError(
            f"{len(named)} dims do not name an array of {len(array.shape)} dimensions.",
            values=f"{' '.join(map(str, named)) or 'no dims'} for shape {tuple(array.shape)}",
            fix="give one name for each dimension of the array, in its order.",
        )
    shape = unique([d if isinstance(d, Dim) else Dim(d, n) for d, n in zip(named, array.shape, strict=True)])
    if sizes(shape) != tuple(array.shape):
        raise ShapeError(
            "the sizes of the dims are not those of the array.",
            values=f"{show(shape)} for shape {tuple(array.shape)}",
            fix="correct the order or the sizes, or give names only: the sizes are then the array's.",
        )
    return Tensor(array, shape, placement=current().whole(shape) if is_inside() else None)


def check_same_everywhere(array: Array) -> None:
    """Raises if an array without names differs between processors: nobody would know how its slices fit together."""
    if is_inside() and varying_axes(array):
        raise LayoutError(
            "an array without names differs between processors.",
            values=f"{array.dtype}{list(array.shape)} over {'+'.join(sorted(varying_axes(array)))}",
            rule="inside a program, only a tensor can be split: its dims say how the slices fit together.",
            fix="use the tensor itself, not its .array.",
        )


def check_tensor(x: Any, op: str) -> Tensor:
    """Returns x if it is a tensor, or explains how to make it one."""
    if isinstance(x, Tensor):
        return x
    is_array = hasattr(x, "shape") and hasattr(x, "dtype")
    raise ShapeError(
        f"{op} takes tensors, not {'an array' if is_array else type(x).__name__}.",
        values=f"{x.dtype}{list(x.shape)}" if is_array else repr(x)[:80],
        rule="an array takes part in an operation through the names of its dims.",
        fix='name them: mx.tensor(array, "batch hidden").',
    )


@operation
def param(x: Tensor) -> Tensor:
    """Marks a tensor as a stored parameter: a layout's `params` rules apply to it.

    Communication: none (inside a program, a slice).
    """
    check_tensor(x, "mx.param")
    return with_role(x, "param")


def with_role(x: Tensor, role: str | None) -> Tensor:
    """Returns the tensor as it is stored in a role: gathered, cut or reduce-scattered as the placements ask."""
    if x.role == role or not current().has_rules:
        return Tensor(x._array, x.dims, role, x._placement, x._pending)
    return Tensor(fetch(x, frozenset(), role), x.dims, role)


def local(x: Tensor) -> tuple[Array, Placement]:
    """Returns the array and its placement as they are now; a whole array from outside the program is unsplit."""
    if x._placement is not None:
        return x._array, x._placement
    placement = current().placement(x.dims, x.role)
    if np.ndim(x._array) != len(x.dims):
        raise ShapeError(
            f"the array of a tensor has {np.ndim(x._array)} dimensions, the tensor {len(x.dims)}.",
            values=f"{show(x.dims)} with an array of shape {np.shape(x._array)}",
            rule="a function of trees (jax.tree.map, jax.vmap, optax) may change elements of a tensor, not its shape.",
            fix="use operations of meshax: they keep dims that they do not know, without jax.vmap. Or give jax.vmap a "
            "function of arrays, which makes the tensor: lambda array: f(mx.tensor(array, dims)).array.",
        )
    if x._array.shape == placement.local_shape:
        if not placement.axes or placement.axes <= varying_axes(x._array):
            return x._array, placement
        if x._array.shape != sizes(x.dims):  # made from a slice, by jnp.zeros_like for example
            return collectives.to_copies(x._array, placement.axes), placement
    return crop(jnp.asarray(x._array), x.dims), placement.whole(x.dims)


def placement_of(x: Tensor) -> Placement:
    """Returns the axes that split each dim at present."""
    setting = current()
    if not setting.has_rules or not hasattr(x._array, "shape"):
        return setting.whole(x.dims)
    return local(x)[1]


def fetch(x: Tensor, vary: frozenset[str], role: str | None = None, *, transient: bool = False) -> Array:
    """Returns the local array as the layout places it in a role, nothing pending, varying at least over `vary`."""
    if x._origin is not None:  # what it was made from is gathered once for all that is made from it
        fn, source = x._origin
        return fn(fetch(source, vary, role, transient=transient))
    return moved(x, current().placement(x.dims, role), vary, transient=transient)


def moved(x: Tensor, target: Placement, vary: frozenset[str] = frozenset(), *, transient: bool = False) -> Array:
    """Returns the local array in a placement, nothing pending, varying at least over `vary`."""
    array, placement = local(x)
    array = move(array, placement, target, x._pending, vary, transient)
    return collectives.to_copies(array if isinstance(array, jax.Array) else jnp.asarray(array), vary)


def settled_array(x: Tensor) -> Array:
    """Returns the array of the settled tensor; outside a program, the whole array without padding."""
    return fetch(x, frozenset(), x.role)


def settle(x: Tensor) -> Tensor:
    """Returns the tensor with nothing pending and placed as the layout says."""
    if x._placement is None and not x._pending:
        return x
    return Tensor(settled_array(x), x.dims, x.role)
