"""What each operation of JAX does with split dimensions.

The state of an array says for each of its dimensions whether it is split (a `Part`), the same all along (`SAME`: made
from one number), or anything else (None). A rule gives the state of an operation's result, or raises `Combined` where
elements would be combined along a split dimension, or a slice would meet an array that was made for its shape.
"""

from collections.abc import Callable, Sequence
from typing import Any

from ..layout import Part
from .border import ENTERS, LEAVES

SAME = "same"
Entry = Part | str | None
State = tuple[Entry, ...]  # for each dimension of an array


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


ELEMENTWISE = _names("abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil")
ELEMENTWISE |= _names("clamp clz complex conj convert_element_type copy copy_p cos cosh digamma div eq eq_to erf")
ELEMENTWISE |= _names("erf_inv erfc exp exp2 expm1 floor from_edtype ge gt igamma igamma_grad_a igammac imag")
ELEMENTWISE |= _names("integer_pow is_finite layout_constraint le le_to lgamma log log1p log2 logistic lt lt_to max")
ELEMENTWISE |= _names("min mul mulhi name named ne neg nextafter not one_minus_square or pcast polygamma polynomial")
ELEMENTWISE |= _names("population_count pow pvary random_gamma_grad real reduce_precision relu")
ELEMENTWISE |= _names("regularized_incomplete_beta relayout rem reshard round rsqrt select_n sharding_constraint")
ELEMENTWISE |= _names("shift_left shift_right_arithmetic shift_right_logical sign sin sinh sqrt square")
ELEMENTWISE |= _names("stop_gradient sub tan tanh threefry2x32 to_edtype with_memory_space_constraint xor zeta")
# Each result is its operand; results for nobody but whoever watches.
EACH_ALONE = _names("optimization_barrier device_put")
WATCHING = _names("debug_callback debug_print")


class Combined(Exception):
    """An operation would combine elements of a slice."""

    def __init__(self, part: Part, with_array: bool = False):
        super().__init__()
        self.part = part
        self.with_array = with_array  # whether it meets an array made for the slice's shape


def alike(states: Sequence[State]) -> State:
    """Returns the state of what is made of arrays of one shape, element by element."""
    state: list[Entry] = []
    for entries in zip(*states, strict=True):
        parts = {(e.size, e.axes): e for e in entries if isinstance(e, Part)}
        if not parts:
            state.append(SAME if all(e == SAME for e in entries) else None)
            continue
        part = next(iter(parts.values()))
        if len(parts) > 1 or None in entries:
            raise Combined(part, with_array=True)
        state.append(part)
    return tuple(state)


def joined(eqn: Any, states: list[State]) -> State:
    """Elementwise: operands of one shape, or numbers."""
    rank = len(eqn.outvars[0].aval.shape)
    return alike([state for state in states if len(state) == rank]) if rank else ()


def drop(state: State, positions: Sequence[int]) -> State:
    """Leaves dimensions out, along which elements are combined."""
    for i in positions:
        entry = state[i]
        if isinstance(entry, Part):
            raise Combined(entry)
    return tuple(e for i, e in enumerate(state) if i not in positions)


def _combine(state: State, positions: Sequence[int]) -> State:
    """Combines elements along dimensions that stay."""
    drop(state, positions)
    return tuple(None if i in positions else e for i, e in enumerate(state))


def _leaves(eqn: Any, states: list[State]) -> State:
    return eqn.params["parts"]


def _enters(eqn: Any, states: list[State]) -> State | None:
    (state,) = states
    for entry, part in zip(state, eqn.params["parts"], strict=True):
        if isinstance(entry, Part) and (part is None or (entry.size, entry.axes) != (part.size, part.axes)):
            raise Combined(entry)
        if part is not None and entry is None:
            raise Combined(part, with_array=True)
    return None


def _broadcast(eqn: Any, states: list[State]) -> State:
    before, after = eqn.invars[0].aval.shape, eqn.params["shape"]
    state: list[Entry] = [SAME] * len(after)
    for i, position in enumerate(eqn.params["broadcast_dimensions"]):
        entry = states[0][i]
        if before[i] == after[position]:
            state[position] = entry
        elif isinstance(entry, Part):
            raise Combined(entry)
    return tuple(state)


def _reshape(eqn: Any, states: list[State]) -> State:
    state, before, after = states[0], eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    if before == after:
        return state
    for entry, size in zip(state, before, strict=True):
        if isinstance(entry, Part) and size == 1:  # it could be any of the new ones
            raise Combined(entry)
    first = 0
    while first < min(len(before), len(after)) and before[first] == after[first]:
        first += 1
    last = 0
    while last < min(len(before), len(after)) - first and before[-1 - last] == after[-1 - last]:
        last += 1
    middle = state[first : len(state) - last]
    drop(middle, range(len(middle)))
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
    return alike([_combine(state, changed) for state in states[:2]])


def _pad(eqn: Any, states: list[State]) -> State:
    return _combine(states[0], [i for i, padding in enumerate(eqn.params["padding_config"]) if any(padding)])


def _concatenate(eqn: Any, states: list[State]) -> State:
    return alike([_combine(state, (eqn.params["dimension"],)) for state in states])


def _reduce(eqn: Any, states: list[State]) -> State:
    axes = eqn.params["axes"] if "axes" in eqn.params else eqn.params["dimensions"]
    return drop(states[0], axes)


def _along(parameter: str) -> Callable[[Any, list[State]], State]:
    def rule(eqn: Any, states: list[State]) -> State:
        where = eqn.params[parameter]
        return _combine(joined(eqn, states), where if isinstance(where, tuple) else (where,))

    return rule


def _bits(eqn: Any, states: list[State]) -> State:
    """Reads numbers as others, of a new last dimension if these are narrower, without the last if they are wider."""
    more = len(eqn.outvars[0].aval.shape) - len(states[0])
    return (*states[0], None) if more > 0 else states[0] if not more else drop(states[0], (len(states[0]) - 1,))


def _fft(eqn: Any, states: list[State]) -> State:
    rank = len(states[0])
    return _combine(states[0], range(rank - len(eqn.params["fft_lengths"]), rank))


def _tile(eqn: Any, states: list[State]) -> State:
    return _combine(states[0], [i for i, times in enumerate(eqn.params["reps"]) if times != 1])


def _stack(eqn: Any, states: list[State]) -> State:
    state, axis = alike(states), eqn.params["axis"]
    return (*state[:axis], None, *state[axis:])


def _top_k(eqn: Any, states: list[State]) -> State:
    axis = eqn.params.get("axis", -1) % len(states[0])
    return _combine(states[0], (axis,))


def _product(eqn: Any, states: list[State]) -> State:
    (summed, batch), (left, right) = eqn.params["dimension_numbers"], states
    for state, positions in zip((left, right), summed, strict=True):
        drop(state, positions)
    shared = alike([tuple(left[i] for i in batch[0]), tuple(right[i] for i in batch[1])])
    rest = [
        [e for i, e in enumerate(state) if i not in (*gone, *kept)]
        for state, gone, kept in zip((left, right), summed, batch, strict=True)
    ]
    return (*shared, *rest[0], *rest[1])


def _convolution(eqn: Any, states: list[State]) -> State:
    """Element by element of the batch, and of the kernel's features; not of groups, which are parts of a dimension."""
    numbers, (left, right) = eqn.params["dimension_numbers"], states
    is_grouped = max(eqn.params["feature_group_count"], eqn.params["batch_group_count"]) > 1
    kept = (numbers.lhs_spec[0], numbers.rhs_spec[0]) if not is_grouped else (None, None)
    for state, position in zip(states, kept, strict=True):
        drop(state, [i for i in range(len(state)) if i != position])
    result: list[Entry] = [None] * len(left)
    if not is_grouped:
        result[numbers.out_spec[0]], result[numbers.out_spec[1]] = left[numbers.lhs_spec[0]], right[numbers.rhs_spec[0]]
    return tuple(result)


def _gather(eqn: Any, states: list[State]) -> State:
    """Looks up: element by element of the indices, and of dimensions of the operand that are taken whole."""
    numbers, sizes, (operand, indices) = eqn.params["dimension_numbers"], eqn.params["slice_sizes"], states
    batch = dict(zip(numbers.start_indices_batching_dims, numbers.operand_batching_dims, strict=True))
    indexed = {i for i, n in enumerate(eqn.invars[0].aval.shape) if n != sizes[i] or i in numbers.start_index_map}
    drop(operand, sorted({*numbers.collapsed_slice_dims, *indexed} - set(batch.values())))
    drop(indices, (len(indices) - 1,))
    gone = {*numbers.collapsed_slice_dims, *batch.values()}
    kept = iter([e for i, e in enumerate(operand) if i not in gone])
    looked_up = iter([alike([(e,), (operand[batch[i]],)])[0] if i in batch else e for i, e in enumerate(indices[:-1])])
    rank = len(eqn.outvars[0].aval.shape)
    return tuple(next(kept if i in numbers.offset_dims else looked_up) for i in range(rank))


def _scatter(eqn: Any, states: list[State]) -> State:
    """Writes: element by element along dimensions of the operand that are written whole."""
    numbers, (operand, indices, updates) = eqn.params["dimension_numbers"], states
    before, written = eqn.invars[0].aval.shape, eqn.invars[2].aval.shape
    gone = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    windows = zip((i for i in range(len(before)) if i not in gone), numbers.update_window_dims, strict=True)
    whole = {i: j for i, j in windows if before[i] == written[j]}
    drop(indices, range(len(indices)))
    drop(operand, [i for i in range(len(before)) if i not in whole])
    drop(updates, [j for j in range(len(written)) if j not in whole.values()])
    return tuple(alike([(e,), (updates[whole[i]],)])[0] if i in whole else None for i, e in enumerate(operand))


def _iota(eqn: Any, states: list[State]) -> State:
    along = eqn.params["dimension"]
    return tuple(None if i == along else SAME for i in range(len(eqn.outvars[0].aval.shape)))


RULES: dict[str, Callable[[Any, list[State]], State | None]] = {
    LEAVES: _leaves, ENTERS: _enters, "broadcast_in_dim": _broadcast, "iota": _iota, "reshape": _reshape,
    "transpose": _transpose, "squeeze": lambda eqn, states: drop(states[0], eqn.params["dimensions"]),
    "slice": _cut, "dynamic_slice": _cut, "dynamic_update_slice": _update, "pad": _pad, "concatenate": _concatenate,
    "reduce_sum": _reduce, "reduce_max": _reduce, "reduce_min": _reduce, "reduce_prod": _reduce,
    "reduce_and": _reduce, "reduce_or": _reduce, "reduce_xor": _reduce, "argmax": _reduce, "argmin": _reduce,
    "cumsum": _along("axis"), "cumprod": _along("axis"), "cummax": _along("axis"), "cummin": _along("axis"),
    "cumlogsumexp": _along("axis"), "sort": _along("dimension"), "rev": _along("dimensions"),
    "split": lambda eqn, states: _combine(states[0], (eqn.params["axis"],)),
    "fft": _fft,
    "reduce": _reduce, "zeros_like": lambda eqn, states: (SAME,) * len(states[0]), "tile": _tile,
    "stack": _stack, "unstack": lambda eqn, states: drop(states[0], (eqn.params["axis"],)),
    "top_k": _top_k, "dot_general": _product, "conv_general_dilated": _convolution, "gather": _gather,
    "scatter": _scatter, "scatter-add": _scatter,
    "scatter_add": _scatter, "scatter_mul": _scatter, "scatter_min": _scatter, "scatter_max": _scatter,
    "scatter-mul": _scatter, "scatter-sub": _scatter, "scatter-min": _scatter, "scatter-max": _scatter,
    "bitcast_convert_type": _bits,
}  # fmt: skip
ALWAYS = frozenset([LEAVES, ENTERS, "broadcast_in_dim", "iota"])  # also where no operand is known
