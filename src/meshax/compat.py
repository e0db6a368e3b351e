"""What JAX does not offer publicly, or offers under names that move between versions.

Only this module knows how JAX spells the type of a value over the mesh axes, and which trace a value belongs to.
"""

import contextlib
import math
import os
from collections.abc import Iterator
from typing import Any

import jax
import jax.extend
import jax.extend.core
from jax.interpreters import ad, partial_eval

_NONE: frozenset[str] = frozenset()


def widen_cpu_pool() -> None:
    """Gives XLA's CPU client more threads than virtual devices, unless the user has chosen their number.

    With as many threads as devices, collectives of executions that wait for each other can take them all and never
    end. Has no effect once JAX has started its CPU backend.
    """
    if "PJRT_NPROC" not in os.environ and "NPROC" not in os.environ:
        os.environ["PJRT_NPROC"] = str(max(64, os.cpu_count() or 1))


def varying_axes(x: Any) -> frozenset[str]:
    """Returns the mesh axes over which JAX's type lets a value differ from processor to processor."""
    manual_type = getattr(jax.typeof(x), "mat", None)
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


@contextlib.contextmanager
def own_trace(x: Any) -> Iterator[None]:
    """Emits what is computed inside into the trace of `x`, not into the innermost one.

    A cast made inside a loop on a value from outside it would be made, and in the backward pass reduced, in every
    iteration. `Tracer._trace` has no public name.
    """
    with jax.extend.core.set_current_trace(x._trace):
        yield


def live_jaxpr(closed: Any) -> Any:
    """Returns the jaxpr without equations whose results are not used. `jax.extend` has no dead-code elimination."""
    live, _ = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars), instantiate=True)
    return live


@contextlib.contextmanager
def typed_outputs(like: Any) -> Iterator[None]:
    """Gives every `jax.ShapeDtypeStruct` read inside the type of a value over the mesh axes, unless it has one.

    A Pallas kernel describes its outputs by such structs, and JAX refuses one without that type under `check_vma`. The
    kernel's author cannot know the mesh, and JAX has no other way to say it.
    """
    struct: Any = jax.ShapeDtypeStruct
    own, manual_type = struct.manual_axis_type, jax.typeof(like).mat
    struct.manual_axis_type = property(lambda self: own.__get__(self) or manual_type, own.__set__)
    try:
        yield
    finally:
        struct.manual_axis_type = own


# An identity that carries the names of an array's dimensions into the jaxpr, also into that of the backward pass.
_named = jax.extend.core.Primitive("named")
_named.def_abstract_eval(lambda x, *, names: x)
ad.deflinear2(_named, lambda ct, x, *, names: [_named.bind(ct, names=names)])


def named(x: Any, names: tuple[str, ...]) -> Any:
    """Returns the same traced array, with names for whoever reads the jaxpr. Such a trace cannot be compiled."""
    return _named.bind(x, names=names)
