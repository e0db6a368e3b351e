"""Only we know that a gradient by copies is a pending sum.

Where somebody else differentiates inside of what we differentiate (`jax.grad`, `jax.custom_vjp`), gradients may not be
taken by copies. The names of scopes in the trace tell; of rules for derivatives, who calls them.
"""

import functools
import sys
import threading
from contextlib import AbstractContextManager
from typing import Any

import jax

from ..compat import for_a_while, is_traced, varying_axes
from .jaxprs import inner_programs

# The scopes of what we differentiate, by copies or not.
BY_COPIES, BY_VALUES = "value_and_grad", "value_and_grad_of_values"


_RULES = ("custom_vjp.", "linear_transpose", "linear_call")  # functions of JAX's


class DerivativeOfCopies(Exception):
    """Somebody else's rule for a derivative gets copies."""


def _is_within_rule() -> bool:
    """Whether a function with a derivative of its own is being called in the program; nothing else tells."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "run_locally":  # around the program it does not matter
        if frame.f_code.co_qualname.startswith(_RULES) and frame.f_globals["__name__"].startswith("jax."):
            return True
        frame = frame.f_back
    return False


_own = threading.local()  # per thread: several may trace at once


def watching(axes: frozenset[str], but: frozenset[str] = frozenset()) -> AbstractContextManager[Any]:
    """Watches for rules that get arrays of parameters which are copies over axes, but not over some others.

    A rule that is not linear (it clips, or takes signs) would see a part of the gradient, and so give another result.
    """
    return for_a_while(_own, "axes", ((getattr(_own, "axes", None) or frozenset()) | axes) - but)


_call = jax.custom_vjp.__call__


@functools.wraps(_call)
def _watched(self: Any, *args: Any, **kwargs: Any) -> Any:
    """JAX says nowhere else that a rule is called, and once it is, nothing in the trace tells."""
    axes = getattr(_own, "axes", None)
    if axes and str(self.__module__).partition(".")[0] not in ("jax", "meshax"):  # whose rules are linear
        leaves = jax.tree.leaves((args, kwargs), is_leaf=lambda x: hasattr(x, "_pending"))  # tensors know themselves
        if any(is_traced(x) and axes & varying_axes(x) for x in leaves):
            raise DerivativeOfCopies
    return _call(self, *args, **kwargs)


jax.custom_vjp.__call__ = _watched  # type: ignore[method-assign]


def check_copies(array: Any, split: frozenset[str]) -> None:
    """Raises if an array that is copies, as it varies over axes that split it not, is given to a rule of others."""
    if is_traced(array) and varying_axes(array) - split and _is_within_rule():
        raise DerivativeOfCopies


def differentiates_copies(jaxpr: Any) -> bool:
    """Whether somebody else differentiates inside of what we differentiate by copies."""
    return _differentiates(getattr(jaxpr, "jaxpr", jaxpr), False, {})


def _differentiates(jaxpr: Any, inside: bool, known: dict[Any, tuple[bool, bool]]) -> bool:
    for eqn in jaxpr.eqns:
        stack = eqn.source_info.name_stack.stack
        key = (id(stack), inside)  # many operations share a stack
        if key not in known:
            known[key] = _read_scopes(stack, inside)
        is_others, by_copies = known[key]
        programs = inner_programs(eqn)
        if is_others or (programs and any(_differentiates(inner, by_copies, known) for inner in programs)):
            return True
    return False


def _read_scopes(stack: tuple[Any, ...], by_copies: bool) -> tuple[bool, bool]:
    for i, element in enumerate(stack):
        is_derivative = element.name == "jvp" and type(element).__name__ == "Transform"
        following = stack[i + 1].name if i + 1 < len(stack) else ""
        if by_copies and is_derivative and following not in (BY_COPIES, BY_VALUES):
            return True, True
        by_copies |= element.name == BY_COPIES
    return False, by_copies
