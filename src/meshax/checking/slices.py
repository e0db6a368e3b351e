"""A slice is never mistaken for the whole.

JAX code that gets hold of a slice (see `border.py`) may work element by element. This module reads the traced program
and follows such arrays, dimension by dimension, by the rules of `rules.py`. What combines elements along a split
dimension, or brings it together with an array that was made for the shape of the slice, would give another result under
another layout: an error, with the line. Operations of ours and functions of `mx.local` see arrays that were
never given away.
"""

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.extend.core

from ..compat import varying_axes
from ..dim import Dim, show
from ..errors import MeshaxError, SliceError
from ..layout import Part
from ..sources import is_of_library, source_of
from .border import ENTERS, MARKS
from .derivatives import DerivativeOfCopies, differentiates_copies, watching
from .jaxprs import inner_programs, scan_counts
from .rules import ALWAYS, EACH_ALONE, ELEMENTWISE, RULES, WATCHING, Combined, State, alike, drop, joined

_Literal = jax.extend.core.Literal
# What to use instead.
_INSTEAD = {
    "reduce_sum": "mx.sum", "reduce_max": "mx.max", "reduce_min": "mx.min", "reduce_prod": "mx.prod",
    "reduce_and": "mx.all", "reduce_or": "mx.any", "argmax": "mx.argmax", "argmin": "mx.argmin",
    "cumsum": "mx.cumsum", "cumlogsumexp": "mx.logsumexp", "sort": "mx.sort", "top_k": "mx.top_k", "rev": "mx.flip",
    "conv_general_dilated": "mx.conv", "reduce_window_max": "mx.max_pool", "reduce_window_sum": "mx.mean_pool",
    "dot_general": "mx.einsum", "gather": "mx.gather", "slice": "mx.slice", "dynamic_slice": "mx.slice",
    "squeeze": "mx.slice", "scatter-add": "mx.scatter_add", "concatenate": "mx.concat", "pad": "mx.pad",
    "reshape": "mx.reshape", "transpose": "mx.transpose", "scan": "mx.scan", "broadcast_in_dim": "mx.broadcast",
}  # fmt: skip


@contextlib.contextmanager
def collecting_later() -> Iterator[None]:
    """Puts off the collection of garbage: traces leave little, and Python would walk through them over and over."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def checked(trace: Callable[[bool], tuple[Any, Any]]) -> Any:
    """Returns what comes with a trace in which JAX code sees slices and derivatives as it may, or raises a SliceError.

    `trace` returns a traced program and something else, given whether gradients may be taken by copies. Where they may
    not, somebody else's rule has met copies, or JAX has, whose types then differ.
    """
    with collecting_later():
        try:
            traced, result = trace(True)
            is_right = not differentiates_copies(traced)
        except MeshaxError:
            raise
        except (DerivativeOfCopies, TypeError, ValueError):
            is_right = False
        if not is_right:
            traced, result = trace(False)
        check(traced)
    return result


# Python keeps frames in pieces of memory, of 16 KB unless a frame needs more. Where one ends inside of a loop, each
# call in the loop gets a piece from the system and gives it back: a trace, whose stack is deep, takes up to twice its
# time, or not, by how deep it begins. A frame of so many places has a larger piece, of which half is for calls inside.
checked.__code__ = checked.__code__.replace(co_stacksize=2**15)


def check(jaxpr: Any) -> None:
    """Raises `SliceError` if a traced program combines elements of a slice outside of our operations."""
    _Reader().run(jaxpr, [None] * len(jaxpr.invars), None)


def check_elementwise(fn: Callable[..., Any], arrays: Sequence[Any], states: Sequence[State]) -> None:
    """Raises `SliceError` if a function of arrays in these states combines elements of slices."""
    with watching(frozenset(), but=frozenset().union(*map(varying_axes, arrays))):  # it is called once more
        jaxpr = jax.make_jaxpr(fn)(*arrays).jaxpr
    _Reader().run(jaxpr, states, None)


class _Reader:
    """Follows arrays through nested jaxprs."""

    def __init__(self) -> None:
        self.done: dict[Any, tuple[Any, list[State | None]]] = {}

    def run(self, jaxpr: Any, inputs: Sequence[State | None], call: Any) -> list[State | None]:
        """Returns the states of the results, given those of the operands; `call` is that of a library, if any."""
        jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
        key = (id(jaxpr), tuple(inputs))
        if key not in self.done:
            self.done[key] = (jaxpr, self._read(jaxpr, inputs, call))
        return self.done[key][1]

    def _read(self, jaxpr: Any, inputs: Sequence[State | None], call: Any) -> list[State | None]:
        known = {v: state for v, state in zip(jaxpr.invars, inputs, strict=True) if state is not None}
        for eqn in jaxpr.eqns:
            name = eqn.primitive.name
            states = [None if type(v) is _Literal else known.get(v) for v in eqn.invars]
            if name not in ALWAYS and (name in ELEMENTWISE or name in RULES) and not any(states):
                continue
            try:
                results = self._step(eqn, name, states, call)
            except Combined as combined:
                raise _error(eqn, combined, call) from None
            known.update((v, state) for v, state in zip(eqn.outvars, results, strict=True) if state is not None)
        return [None if type(v) is _Literal else known.get(v) for v in jaxpr.outvars]

    def _step(self, eqn: Any, name: str, states: list[State | None], call: Any) -> Sequence[State | None]:
        if name in _NESTED:
            if not any(isinstance(e, Part) for state in states for e in state or ()) and not self._gives_away(eqn):
                return [None] * len(eqn.outvars)
            return _NESTED[name](self, eqn, states, _library_call(eqn, call))
        rule = RULES.get(name)
        if name in ELEMENTWISE and rule is None:
            rule = joined
        if rule is not None and (any(states) or name in ALWAYS):
            full = [_state(v) if s is None else s for v, s in zip(eqn.invars, states, strict=True)]
            return [rule(eqn, full)] * len(eqn.outvars)
        if name in EACH_ALONE:
            return states
        if rule is None and name not in WATCHING:
            inner = inner_programs(eqn)
            if len(inner) == 1 and len(inner[0].invars) == len(states) and len(inner[0].outvars) == len(eqn.outvars):
                return self.run(inner[0], states, _library_call(eqn, call))
            for part in (e for state in states for e in state or () if isinstance(e, Part)):
                raise Combined(part)
        return [None] * len(eqn.outvars)

    def _gives_away(self, eqn: Any) -> bool:
        """Whether an array leaves a tensor, or enters one, somewhere inside of an equation."""
        return any(
            inside.primitive.name in MARKS or self._gives_away(inside)
            for jaxpr in inner_programs(eqn)
            for inside in jaxpr.eqns
        )

    def scan(self, eqn: Any, states: list[State | None], call: Any) -> list[State | None]:
        consts, count = scan_counts(eqn)
        kept, carry, sliced = states[:consts], states[consts : consts + count], states[consts + count :]
        inside = [None if state is None else drop(state, (0,)) for state in sliced]
        body = eqn.params["jaxpr"]
        while True:
            out = self.run(body, [*kept, *carry, *inside], call)
            wider = [_merged(a, b) for a, b in zip(carry, out, strict=False)]
            if wider == carry:
                stacked = [None if state is None else (None, *state) for state in out[count:]]
                return [*carry, *stacked]
            carry = wider

    def while_loop(self, eqn: Any, states: list[State | None], call: Any) -> list[State | None]:
        split, both = eqn.params["cond_nconsts"], eqn.params["cond_nconsts"] + eqn.params["body_nconsts"]
        for_cond, for_body, carry = states[:split], states[split:both], states[both:]
        while True:
            self.run(eqn.params["cond_jaxpr"], [*for_cond, *carry], call)
            out = self.run(eqn.params["body_jaxpr"], [*for_body, *carry], call)
            wider = [_merged(a, b) for a, b in zip(carry, out, strict=True)]
            if wider == carry:
                return carry
            carry = wider

    def cond(self, eqn: Any, states: list[State | None], call: Any) -> list[State | None]:
        outs = [self.run(branch, states[1:], call) for branch in eqn.params["branches"]]
        merged = outs[0]
        for other in outs[1:]:
            merged = [_merged(a, b) for a, b in zip(merged, other, strict=True)]
        return merged


_NESTED: dict[str, Any] = {"scan": _Reader.scan, "while": _Reader.while_loop, "cond": _Reader.cond}


def _state(v: Any) -> State:
    """Returns the state of an array that nobody has given away."""
    return (None,) * len(getattr(v.aval, "shape", ()))


def _merged(a: State | None, b: State | None) -> State | None:
    """Returns the state of what is one of two arrays of one shape, as in a loop or after a branch."""
    if a == b:
        return a
    length = len(a or b or ())
    return alike([a or (None,) * length, b or (None,) * length])


def _library_call(eqn: Any, call: Any) -> Any:
    """Returns the call whose line to name for what is inside of it: the outermost one of a library's function."""
    if call is not None:
        return call
    inner = inner_programs(eqn)
    return eqn if inner and is_of_library(inner[0]) else None


def _error(eqn: Any, combined: Combined, call: Any) -> SliceError:
    part, name = combined.part, eqn.primitive.name
    shapes = ", ".join(f"{v.aval.dtype}{list(v.aval.shape)}" for v in eqn.invars if getattr(v.aval, "shape", ()))
    if combined.with_array and name == ENTERS:
        what = "an array that was made for the shape of a slice would become the tensor's."
        instead = "make it with mx.arange, mx.random, mx.zeros and the like"
    elif name == ENTERS:
        what = f"a slice along {part.name!r} would become that of another dim."
        instead = "use mx.transpose or mx.rename"
    elif combined.with_array:
        what = f"{name} brings a slice together with an array that was made for the shape of the slice."
        instead = "make it with mx.arange, mx.random, mx.tensor and the like, and use operations of meshax"
    else:
        what = f"{name} would combine elements of one processor's slice alone, along {part.name!r}."
        instead = f"use {_INSTEAD[name]}" if name in _INSTEAD else "use operations of meshax (mx.sum, mx.einsum, ...)"
    return SliceError(
        what,
        values=f"{show([Dim(part.name, part.size)], [part.axes])}, on each processor {shapes}",
        rule="inside a program the array of a split tensor is a slice, which JAX code may only see element by element.",
        fix=f"{instead}; mx.local for a function that may see slices; for optimizers optim.clipped and optim.Adafactor;"
        " or rename the dim to one that is not split.",
        source=source_of((call or eqn).source_info.traceback),
    )
