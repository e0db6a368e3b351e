"""Only we know that a gradient by copies is a pending sum.

Where somebody else differentiates inside of what we differentiate (`jax.grad`, `jax.custom_vjp`), gradients may not be
taken by copies. The names of scopes in the trace tell.
"""

import sys
from typing import Any

from .jaxprs import inner_programs

# The scopes of what we differentiate, by copies or not.
BY_COPIES, BY_VALUES = "value_and_grad", "value_and_grad_of_values"


class DerivativeOfCopies(Exception):
    """Somebody else's rule for a derivative gets copies."""


def is_within_custom_vjp() -> bool:
    """Whether a function with a derivative rule of its own is being called in the program; nothing else tells."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "run_locally":  # around the program it does not matter
        if frame.f_code.co_qualname.startswith("custom_vjp.") and frame.f_globals["__name__"].startswith("jax."):
            return True
        frame = frame.f_back
    return False


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
