"""How programs lie inside of programs, in JAX's traces: what everyone who reads one asks first."""

from collections.abc import Iterator, Mapping
from typing import Any

import jax.extend.core
from jax.interpreters import partial_eval


def live_jaxpr(closed: Any) -> Any:
    """Returns the jaxpr without equations whose results are not used. `jax.extend` has no dead-code elimination."""
    live, _ = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars), instantiate=True)
    return live


_simple: set[Any] = set()  # primitives that were seen to have no jaxpr inside: to look again would take time


def inner_programs(eqn: Any) -> list[Any]:
    """Returns the jaxprs inside of an equation: a call's one, a branch's several, a loop's condition and body."""
    if eqn.primitive in _simple:
        return []
    if eqn.primitive.name == "while":
        return [eqn.params["cond_jaxpr"].jaxpr, eqn.params["body_jaxpr"].jaxpr]
    inner = list(jax.extend.core.jaxprs_in_params(eqn.params))
    if not inner:
        _simple.add(eqn.primitive)
    return inner


def equations_inside(params: Mapping[str, Any]) -> Iterator[Any]:
    """Iterates over the equations of the jaxprs that are parameters of one."""
    return (eqn for jaxpr in jax.extend.core.jaxprs_in_params(params) for eqn in jaxpr.eqns)


def scan_counts(eqn: Any) -> tuple[int, int]:
    """Returns how many operands of a scan are constants, and how many it carries, which JAX 0.12 hides.

    What is sliced or stacked has one dimension more outside of the body.
    """
    body = eqn.params["jaxpr"].jaxpr
    carry = sum(a.aval.ndim == b.aval.ndim for a, b in zip(eqn.outvars, body.outvars, strict=True))
    consts = sum(a.aval.ndim == b.aval.ndim for a, b in zip(eqn.invars, body.invars, strict=True)) - carry
    return consts, carry
