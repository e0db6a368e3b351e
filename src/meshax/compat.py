"""What JAX does not offer publicly, or offers under names that move between versions.

Only this module knows how JAX spells the type of a value over the mesh axes, and which trace a value belongs to.
"""

import contextlib
import math
import threading
from collections.abc import Iterator
from typing import Any

import jax
import jax.extend
import jax.extend.core
from jax.interpreters import ad

Array = Any  # of JAX or of numpy, or a tracer: jax.Array's own type knows less than they all can
_NONE: frozenset[str] = frozenset()


def varying_axes(x: Any) -> frozenset[str]:
    """Returns the mesh axes over which JAX's type lets a value, or one of such a type, differ between processors."""
    manual_type = getattr(getattr(x, "aval", x), "mat", None)
    return manual_type.varying if manual_type is not None else _NONE


@jax.custom_jvp
def erf(x: Any) -> Any:
    """The error function. JAX 0.12 cannot differentiate its own under `check_vma`."""
    return jax.lax.erf(x)


@erf.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    return erf(x), t * (2 / math.sqrt(math.pi)) * jax.lax.exp(-x * x)


def is_traced(x: Any) -> bool:
    """Whether the value belongs to a trace, and not to the host or a device."""
    return isinstance(x, jax.core.Tracer)


def trace_of(x: Any) -> Any:
    """Returns what a value is traced by, or None. `Tracer._trace` has no public name."""
    return getattr(x, "_trace", None)


def own_trace(x: Any) -> Any:
    """Returns a context manager that emits what is computed inside into the trace of `x`, not into the innermost one.

    A cast made inside a loop on a value from outside it would be made, and in the backward pass reduced, in every
    iteration.
    """
    return jax.extend.core.set_current_trace(trace_of(x))


@contextlib.contextmanager
def for_a_while(own: threading.local, name: str, value: Any) -> Iterator[Any]:
    """Gives an attribute of the thread's own another value; its first one is None."""
    outer = getattr(own, name, None)
    setattr(own, name, value)
    try:
        yield value
    finally:
        setattr(own, name, outer)


_types = threading.local()  # per thread: several may trace at once
_struct: Any = jax.ShapeDtypeStruct
_own_type = _struct.manual_axis_type


def typed_outputs(like: Any) -> contextlib.AbstractContextManager[Any]:
    """Gives every `jax.ShapeDtypeStruct` read inside the type of a value over the mesh axes, unless it has one.

    A Pallas kernel describes its outputs by such structs, and JAX refuses one without that type under `check_vma`. The
    kernel's author cannot know the mesh, and JAX has no other way to say it.
    """
    return for_a_while(_types, "type", jax.typeof(like).mat)


def _type_of_struct(struct: Any) -> Any:
    return _own_type.__get__(struct) or getattr(_types, "type", None)


_struct.manual_axis_type = property(_type_of_struct, _own_type.__set__)


# An identity that carries the names of an array's dimensions into the jaxpr, also into that of the backward pass.
_named = jax.extend.core.Primitive("named")
_named.def_abstract_eval(lambda x, *, names: x)
ad.deflinear2(_named, lambda ct, x, *, names: [_named.bind(ct, names=names)])


def named(x: Any, names: tuple[str, ...]) -> Any:
    """Returns the same traced array, with names for whoever reads the jaxpr. Such a trace cannot be compiled."""
    return _named.bind(x, names=names)
