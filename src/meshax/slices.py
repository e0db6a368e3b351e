"""A slice is never mistaken for the whole.

JAX code that gets hold of a slice (see `border.py`) may work element by element. This module reads the traced program
and follows such arrays, dimension by dimension: a dimension is split (a `Part`), the same all along (`SAME`: made from
one number), or anything else (None). What combines elements along a split dimension, or brings it together with an
array that was made for the shape of the slice, would give another result under another layout: it is an error, with
the user's line. Operations of ours and functions of `mx.local` see arrays that were never given away.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core

from .border import ENTERS, LEAVES, MARKS, Part
from .compat import inner_programs, scan_counts
from .dims import Dim, show
from .errors import SliceError
from .sources import LIBRARIES, source_of

SAME = "same"
_Literal = jax.extend.core.Literal
Entry = Part | str | None
State = tuple[Entry, ...]  # for each dimension of an array


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ELEMENTWISE = _names(
    "abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp clz"
)
_ELEMENTWISE |= _names(
    "complex conj convert_element_type copy copy_p cos cosh digamma div eq eq_to erf erf_inv erfc exp"
)
_ELEMENTWISE |= _names(
    "exp2 expm1 floor ge gt igamma igamma_grad_a igammac imag integer_pow is_finite le le_to lgamma log"
)
_ELEMENTWISE |= _names("log1p logistic lt lt_to max min mul mulhi name named ne neg nextafter not or pcast polygamma")
_ELEMENTWISE |= _names(
    "population_count pow pvary random_gamma_grad real reduce_precision regularized_incomplete_beta rem"
)
_ELEMENTWISE |= _names(
    "round rsqrt select_n sharding_constraint shift_left shift_right_arithmetic shift_right_logical sign"
)
_ELEMENTWISE |= _names("sin sinh sqrt square stop_gradient sub tan tanh threefry2x32 xor zeta")
_EACH_ALONE = _names("optimization_barrier device_put")
_WATCHING = _names("debug_callback debug_print")
# What to use instead.
_INSTEAD = {
    "reduce_sum": "mx.sum", "reduce_max": "mx.max", "reduce_min": "mx.min", "reduce_prod": "mx.prod",
    "reduce_and": "mx.all", "reduce_or": "mx.any", "argmax": "mx.argmax", "argmin": "mx.argmin",
    "cumsum": "mx.cumsum", "cumlogsumexp": "mx.logsumexp", "sort": "mx.sort", "top_k": "mx.top_k", "rev": "mx.flip",
    "dot_general": "mx.einsum", "gather": "mx.gather", "slice": "mx.slice", "dynamic_slice": "mx.slice",
    "squeeze": "mx.slice", "scatter-add": "mx.scatter_add", "concatenate": "mx.concat", "pad": "mx.pad",
    "reshape": "mx.reshape", "transpose": "mx.transpose", "scan": "mx.scan", "broadcast_in_dim": "mx.broadcast",
}  # fmt: skip


class _Combined(Exception):
    """An operation would combine elements of a slice."""

    def __init__(self, part: Part, with_array: bool = False):
        super().__init__()
        self.part = part
        self.with_array = with_array  # whether it meets an array made for the slice's shape


def check(jaxpr: Any) -> None:
    """Raises `SliceError` if a traced program combines elements of a slice outside of our operations."""
    _Reader().run(jaxpr, [None] * len(jaxpr.invars), None)


def check_elementwise(fn: Callable[..., Any], arrays: Sequence[Any], states: Sequence[State]) -> None:
    """Raises `SliceError` if a function of arrays in these states combines elements of slices."""
    _Reader().run(jax.make_jaxpr(fn)(*arrays).jaxpr, states, None)


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
            if name not in _ALWAYS and (name in _ELEMENTWISE or name in _RULES) and not any(states):
                continue
            try:
                results = self._step(eqn, name, states, call)
            except _Combined as found:
                raise _error(eqn, found, call) from None
            known.update((v, state) for v, state in zip(eqn.outvars, results, strict=True) if state is not None)
        return [None if type(v) is _Literal else known.get(v) for v in jaxpr.outvars]

    def _step(self, eqn: Any, name: str, states: list[State | None], call: Any) -> Sequence[State | None]:
        if name in _NESTED:
            if not any(isinstance(e, Part) for state in states for e in state or ()) and not self._gives_away(eqn):
                return [None] * len(eqn.outvars)
            return _NESTED[name](self, eqn, states, _library_call(eqn, call))
        rule = _RULES.get(name)
        if name in _ELEMENTWISE and rule is None:
            rule = _joined
        if rule is not None and (any(states) or name in _ALWAYS):
            full = [_state(v) if s is None else s for v, s in zip(eqn.invars, states, strict=True)]
            return [rule(eqn, full)] * len(eqn.outvars)
        if name in _EACH_ALONE:
            return states
        if rule is None and name not in _WATCHING:
            inner = inner_programs(eqn)
            if len(inner) == 1 and len(inner[0].invars) == len(states) and len(inner[0].outvars) == len(eqn.outvars):
                return self.run(inner[0], states, _library_call(eqn, call))
            for part in (e for state in states for e in state or () if isinstance(e, Part)):
                raise _Combined(part)
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
        inside = [None if state is None else _drop(state, (0,)) for state in sliced]
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
    return _alike([a or (None,) * length, b or (None,) * length])


def _alike(states: Sequence[State]) -> State:
    made: list[Entry] = []
    for entries in zip(*states, strict=True):
        parts = {(e.size, e.axes): e for e in entries if isinstance(e, Part)}
        if not parts:
            made.append(SAME if all(e == SAME for e in entries) else None)
            continue
        part = next(iter(parts.values()))
        if len(parts) > 1 or None in entries:
            raise _Combined(part, with_array=True)
        made.append(part)
    return tuple(made)


def _joined(eqn: Any, states: list[State]) -> State:
    """Elementwise: operands of one shape, or numbers."""
    rank = len(eqn.outvars[0].aval.shape)
    return _alike([state for state in states if len(state) == rank]) if rank else ()


def _drop(state: State, positions: Sequence[int]) -> State:
    """Leaves dimensions out, along which elements are combined."""
    for i in positions:
        entry = state[i]
        if isinstance(entry, Part):
            raise _Combined(entry)
    return tuple(e for i, e in enumerate(state) if i not in positions)


def _combine(state: State, positions: Sequence[int]) -> State:
    """Combines elements along dimensions that stay."""
    _drop(state, positions)
    return tuple(None if i in positions else e for i, e in enumerate(state))


def _leaves(eqn: Any, states: list[State]) -> State:
    return eqn.params["parts"]


def _enters(eqn: Any, states: list[State]) -> State | None:
    (state,) = states
    for found, part in zip(state, eqn.params["parts"], strict=True):
        if isinstance(found, Part) and (part is None or (found.size, found.axes) != (part.size, part.axes)):
            raise _Combined(found)
        if part is not None and found is None:
            raise _Combined(part, with_array=True)
    return None


def _broadcast(eqn: Any, states: list[State]) -> State:
    before, after = eqn.invars[0].aval.shape, eqn.params["shape"]
    made: list[Entry] = [SAME] * len(after)
    for i, position in enumerate(eqn.params["broadcast_dimensions"]):
        entry = states[0][i]
        if before[i] == after[position]:
            made[position] = entry
        elif isinstance(entry, Part):
            raise _Combined(entry)
    return tuple(made)


def _reshape(eqn: Any, states: list[State]) -> State:
    state, before, after = states[0], eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    if before == after:
        return state
    for entry, size in zip(state, before, strict=True):
        if isinstance(entry, Part) and size == 1:  # it could be any of the new ones
            raise _Combined(entry)
    first = 0
    while first < min(len(before), len(after)) and before[first] == after[first]:
        first += 1
    last = 0
    while last < min(len(before), len(after)) - first and before[-1 - last] == after[-1 - last]:
        last += 1
    middle = state[first : len(state) - last]
    _drop(middle, range(len(middle)))
    entry = SAME if all(e == SAME for e in middle) else None
    return (*state[:first], *([entry] * (len(after) - first - last)), *state[len(state) - last :])


def _transpose(eqn: Any, states: list[State]) -> State:
    return tuple(states[0][i] for i in eqn.params["permutation"])


def _cut(eqn: Any, states: list[State]) -> State:
    """Slices: dimensions that are not kept whole are combined."""
    before, after = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    return _combine(states[0], [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b])


def _update(eqn: Any, states: list[State]) -> State:
    before, part = eqn.invars[0].aval.shape, eqn.invars[1].aval.shape
    changed = [i for i, (a, b) in enumerate(zip(before, part, strict=True)) if a != b]
    return _alike([_combine(state, changed) for state in states[:2]])


def _pad(eqn: Any, states: list[State]) -> State:
    return _combine(states[0], [i for i, padding in enumerate(eqn.params["padding_config"]) if any(padding)])


def _concatenate(eqn: Any, states: list[State]) -> State:
    return _alike([_combine(state, (eqn.params["dimension"],)) for state in states])


def _reduce(eqn: Any, states: list[State]) -> State:
    axes = eqn.params["axes"] if "axes" in eqn.params else eqn.params["dimensions"]
    return _drop(states[0], axes)


def _along(parameter: str) -> Callable[[Any, list[State]], State]:
    def rule(eqn: Any, states: list[State]) -> State:
        where = eqn.params[parameter]
        return _combine(_joined(eqn, states), where if isinstance(where, tuple) else (where,))

    return rule


def _bits(eqn: Any, states: list[State]) -> State:
    """Reads numbers as others, of a new last dimension if these are narrower, without the last if they are wider."""
    more = len(eqn.outvars[0].aval.shape) - len(states[0])
    return (*states[0], None) if more > 0 else states[0] if not more else _drop(states[0], (len(states[0]) - 1,))


def _top_k(eqn: Any, states: list[State]) -> State:
    axis = eqn.params.get("axis", -1) % len(states[0])
    return _combine(states[0], (axis,))


def _product(eqn: Any, states: list[State]) -> State:
    (summed, batch), (left, right) = eqn.params["dimension_numbers"], states
    for state, positions in zip((left, right), summed, strict=True):
        _drop(state, positions)
    shared = _alike([tuple(left[i] for i in batch[0]), tuple(right[i] for i in batch[1])])
    rest = [
        [e for i, e in enumerate(state) if i not in (*gone, *kept)]
        for state, gone, kept in zip((left, right), summed, batch, strict=True)
    ]
    return (*shared, *rest[0], *rest[1])


def _gather(eqn: Any, states: list[State]) -> State:
    """Looks up: element by element of the indices, and of dimensions of the operand that are taken whole."""
    numbers, sizes, (operand, indices) = eqn.params["dimension_numbers"], eqn.params["slice_sizes"], states
    batch = dict(zip(numbers.start_indices_batching_dims, numbers.operand_batching_dims, strict=True))
    indexed = {i for i, n in enumerate(eqn.invars[0].aval.shape) if n != sizes[i] or i in numbers.start_index_map}
    _drop(operand, sorted({*numbers.collapsed_slice_dims, *indexed} - set(batch.values())))
    _drop(indices, (len(indices) - 1,))
    gone = {*numbers.collapsed_slice_dims, *batch.values()}
    kept = iter([e for i, e in enumerate(operand) if i not in gone])
    looked_up = iter([_alike([(e,), (operand[batch[i]],)])[0] if i in batch else e for i, e in enumerate(indices[:-1])])
    rank = len(eqn.outvars[0].aval.shape)
    return tuple(next(kept if i in numbers.offset_dims else looked_up) for i in range(rank))


def _scatter(eqn: Any, states: list[State]) -> State:
    """Writes: element by element along dimensions of the operand that are written whole."""
    numbers, (operand, indices, updates) = eqn.params["dimension_numbers"], states
    before, given = eqn.invars[0].aval.shape, eqn.invars[2].aval.shape
    gone = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    windows = zip((i for i in range(len(before)) if i not in gone), numbers.update_window_dims, strict=True)
    whole = {i: j for i, j in windows if before[i] == given[j]}
    _drop(indices, range(len(indices)))
    _drop(operand, [i for i in range(len(before)) if i not in whole])
    _drop(updates, [j for j in range(len(given)) if j not in whole.values()])
    return tuple(_alike([(e,), (updates[whole[i]],)])[0] if i in whole else None for i, e in enumerate(operand))


def _iota(eqn: Any, states: list[State]) -> State:
    along = eqn.params["dimension"]
    return tuple(None if i == along else SAME for i in range(len(eqn.outvars[0].aval.shape)))


_RULES: dict[str, Callable[[Any, list[State]], State | None]] = {
    LEAVES: _leaves, ENTERS: _enters, "broadcast_in_dim": _broadcast, "iota": _iota, "reshape": _reshape,
    "transpose": _transpose, "squeeze": lambda eqn, states: _drop(states[0], eqn.params["dimensions"]),
    "slice": _cut, "dynamic_slice": _cut, "dynamic_update_slice": _update, "pad": _pad, "concatenate": _concatenate,
    "reduce_sum": _reduce, "reduce_max": _reduce, "reduce_min": _reduce, "reduce_prod": _reduce,
    "reduce_and": _reduce, "reduce_or": _reduce, "reduce_xor": _reduce, "argmax": _reduce, "argmin": _reduce,
    "cumsum": _along("axis"), "cumprod": _along("axis"), "cummax": _along("axis"), "cummin": _along("axis"),
    "cumlogsumexp": _along("axis"), "sort": _along("dimension"), "rev": _along("dimensions"),
    "split": lambda eqn, states: _combine(states[0], (eqn.params["axis"],)),
    "top_k": _top_k, "dot_general": _product, "gather": _gather, "scatter": _scatter, "scatter-add": _scatter,
    "scatter_add": _scatter, "scatter_mul": _scatter, "scatter_min": _scatter, "scatter_max": _scatter,
    "scatter-mul": _scatter, "scatter-min": _scatter, "scatter-max": _scatter, "bitcast_convert_type": _bits,
}  # fmt: skip
_ALWAYS = frozenset([LEAVES, ENTERS, "broadcast_in_dim", "iota"])  # also where no operand is known


def _library_call(eqn: Any, call: Any) -> Any:
    """Returns the call whose line to name for what is inside of it: the outermost one of a library's function.

    JAX traces its own functions once for all who call them, and they remember the first one's line.
    """
    if call is not None:
        return call
    inner = inner_programs(eqn)
    defined = str(getattr(getattr(inner[0], "debug_info", None), "func_src_info", "")) if inner else ""
    return eqn if any(path in defined for path in LIBRARIES) else None


def _error(eqn: Any, found: _Combined, call: Any) -> SliceError:
    part, name = found.part, eqn.primitive.name
    shapes = ", ".join(f"{v.aval.dtype}{list(v.aval.shape)}" for v in eqn.invars if getattr(v.aval, "shape", ()))
    if found.with_array and name == ENTERS:
        what = "an array that was made for the shape of a slice would become the tensor's."
        instead = "make it with mx.arange, mx.random, mx.zeros and the like"
    elif name == ENTERS:
        what = f"a slice along {part.name!r} would become that of another dim."
        instead = "use mx.transpose or mx.rename"
    elif found.with_array:
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
