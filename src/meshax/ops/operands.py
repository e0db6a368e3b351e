"""What every operation does first: bring its operands together.

Over each mesh axis the operands of one local computation must agree. If one of them varies there (it is split, or
copies), the replicated ones become copies; what is still to be gathered arrives in the state the others have.
"""

import contextlib
import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .. import collectives
from ..compat import Array, for_a_while, is_traced, trace_of, varying_axes
from ..dim import Dims, show, without
from ..errors import ArgumentError
from ..layout import Placement, current
from ..tensors import Tensor, fetch, local
from ..transfer import fill_padding


def varying_together(xs: Sequence[Tensor], role: str | None = None) -> frozenset[str]:
    """Returns the mesh axes over which a computation on these operands varies."""
    axes: set[str] = set()
    setting = current()
    for x in xs if setting.has_rules else ():
        array, placement = local(x)
        axes |= varying_axes(array) - placement.axes - x._pending  # copies
        axes |= setting.placement(x.dims, role).axes
    return frozenset(axes)


def common_role(xs: Sequence[Tensor]) -> str | None:
    """Returns the role that all operands with dims share: they can then be computed as they are stored."""
    roles = {x.role for x in xs if x.dims}
    return roles.pop() if len(roles) == 1 else None


def compute(
    fn: Callable[..., Any], xs: Sequence[Tensor], role: str | None = None, vary: frozenset[str] = frozenset()
) -> Any:
    """Calls `fn` on the operands' local arrays, brought together.

    A stored parameter is gathered inside a checkpoint, ours or the one of `mx.remat` around us: in the backward pass it
    is gathered again, not kept. The computation takes place where a tensor of the role is stored, and varies over
    `vary` beside the axes of the operands.
    """
    vary = vary | varying_together(xs, role)
    stored = [_is_stored_otherwise(x, role) for x in xs]
    if copied.value:  # a parameter that is to be gathered is copies then, like one that is stored whole
        vary |= {a for x, kept in zip(xs, stored, strict=True) if kept for a in local(x)[1].axes} & copied.value
    arrays = [x._array if kept else fetch(x, vary, role) for x, kept in zip(xs, stored, strict=True)]
    if not any(stored):
        return fn(*arrays)

    def gather_and_call(*arrays: Array) -> Any:
        again = (Tensor(a, x.dims, x.role, x._placement) for a, x in zip(arrays, xs, strict=True))
        pairs = zip(again, stored, strict=True)
        with collectives.forgetting():  # what is gathered belongs into the checkpoint, even if the parameter does not
            gathered = [fetch(t, vary, role, transient=True) if kept else t._array for t, kept in pairs]
        return fn(*gathered)

    return (gather_and_call if _recomputes.value else jax.checkpoint(gather_and_call))(*arrays)


copied = jax.make_user_context(frozenset())


def copying(axes: frozenset[str]) -> Any:
    """Returns a context manager that names the axes over which parameters are copies: gradients are sums over them."""
    return copied(axes | copied.value)


_recomputes = jax.make_user_context(False)  # part of JAX's cache keys: what is jitted is traced again on the other side


def recomputing(inside: bool) -> Any:
    """Returns a context manager that says whether what is traced is part of a checkpoint already.

    The body of a loop is not, whatever is around the loop: what it gathers would be kept for all turns at once. What is
    used last may say that it is: what it gathers is kept, and used again at once.
    """
    return _recomputes(inside)


_deferred = threading.local()


@contextlib.contextmanager
def deferring(arrays: Sequence[Array]) -> Iterator[list[tuple[Callable[[Any], None], Any]]]:
    """Collects what is to be done once, outside of a checkpoint that is traced with these arrays, with its values."""
    actions: list[tuple[Callable[[Any], None], Any]] = []
    with for_a_while(_deferred, "here", next(((trace_of(a), actions) for a in arrays if is_traced(a)), None)):
        yield actions


def once_outside(action: Callable[[Any], None], values: Any) -> None:
    """Does something with values now, or right after the checkpoint that is being traced, whose values they are."""
    here = getattr(_deferred, "here", None)
    if here is not None and here[0] is trace_of(jnp.zeros(())):
        here[1].append((action, values))
    else:
        action(values)


def _is_stored_otherwise(x: Tensor, role: str | None) -> bool:
    """Whether a parameter is to be gathered, and again in the backward pass; a vector may as well be kept."""
    if x.role is None or x._pending or len(x.dims) < 2:
        return False
    array, placement = local(x)
    return array is x._array and placement != current().placement(x.dims, role)


def align(x: Array, shape: Dims, placement: Placement) -> Array:
    """Transposes and broadcasts a local array to the dims of a result in its placement.

    The backward pass of a broadcast is a sum, which must not see what flows into padding: a dim that is new to the
    operand and holds padding is written out and masked.
    """
    result = placement.dims
    shared = [dim for dim in result if dim in shape]
    if shared != list(shape):
        x = jnp.transpose(x, [shape.index(dim) for dim in shared])
    if len(shared) < len(result):
        x = jax.lax.expand_dims(x, [i for i, dim in enumerate(result) if dim not in shape])
        for dim in without(placement.uneven, shape):
            written = [placement.block(d) if d == dim else n for d, n in zip(result, x.shape, strict=True)]
            x = fill_padding(jnp.broadcast_to(x, written), placement, (dim,))
    return x


def describe(xs: Sequence[Tensor]) -> str:
    """Writes the operands' dims for a message."""
    return " and ".join(show(x.dims) for x in xs)


def integers(op: str, /, **arguments: Any) -> list[int]:
    """Returns the arguments of these names as Python integers, or raises."""
    numbers, wrong, computed = [], [], False
    for name, number in arguments.items():
        try:
            if isinstance(number, bool):
                raise TypeError
            numbers.append(operator.index(number))
        except TypeError:
            unknown = is_traced(number)
            wrong.append(f"{name}={'a traced value' if unknown else repr(number)}")
            computed |= unknown or isinstance(number, Tensor)
    if wrong:
        raise ArgumentError(
            f"mx.{op} takes integers, not {', '.join(wrong)}.",
            rule="such a number is part of the program: it is known before the program runs.",
            fix="pass a Python int" + ("; mx.gather takes places that are computed." if computed else "."),
        )
    return numbers
