"""Every op in every dtype: a layout changes neither the result nor its dtype.

Where an op refuses a dtype, it does so with and without a layout.
"""

import contextlib
import random

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import meshax as mx
from cases import GROUPS
from layouts import SEED, WHOLE, is_collision, reference, sampled_layouts
from meshax.layout import Setting
from meshax.testing import TOLERANCE, forward_and_gradient, place_with_garbage

INTEGERS = ("bool", "int8", "int16", "int32", "uint8", "uint16", "uint32")
EIGHTS = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
FLOATS = ("float16", "bfloat16", "float32")
X64 = ("int64", "uint64", "float64")
WITH_GRADIENTS = ("float16", "float32", "float64")
# Sums of so few bits depend on their order; what they must not be is another number altogether. The gradients of 16
# bits are sums of up to 240 rounded products that cancel: 4e-4 of 45 is 2e-2 of what is left.
ALLOWED = {**TOLERANCE, **{name: 0.3 if "e4" in name else 0.6 for name in EIGHTS}, "float16": 2e-2, "bfloat16": 8e-2}
# Halves until numbers are too small for 8 bits, where XLA rounds by how it has vectorized.
NOT_IN_EIGHT_BITS = {"while_loop"}
CHOSEN = [
    group for group in GROUPS if group.dtype == np.float32 and 0 not in group.integer and group.name != "creation"
]
LAYOUTS = 6 if WHOLE else 1
CASES = 1000 if WHOLE else 3


def x64(dtype):
    return jax.enable_x64(True) if dtype in X64 else contextlib.nullcontext()


def inputs_of(group, dtype):
    """Returns the group's inputs in a dtype, integers as they are."""
    made = []
    for i, x in enumerate(group.inputs):
        values = x.numpy()
        if i not in group.integer:
            if dtype in INTEGERS or dtype in X64[:2]:
                values = np.round(3 * values + (0 if dtype.startswith("i") else 9)) % (2 if dtype == "bool" else 128)
            values = values.astype(jnp.dtype(dtype))
        made.append(mx.tensor(values, x.dims))
    return made


def outcomes(fns, args, compile):
    """Returns what each function gives or raises; those that can be traced are compiled together."""
    raised = {}

    def every(*args):
        results = {}
        for name, fn in fns.items():
            try:
                results[name] = fn(*args)
            except Exception as error:  # of which kind, and whether it raises unsplit too, is asked later
                raised[name] = error
        return results

    try:
        found = compile(every)(*args)
    except jax.errors.JaxRuntimeError:  # the compiler refuses one of them: which?
        found = {}
        for name in [name for name in fns if name not in raised]:
            try:
                found |= compile(lambda *args, name=name: {name: fns[name](*args)})(*args)
            except jax.errors.JaxRuntimeError as error:
                raised[name] = error
    return found | raised


def leaves_of(result):
    leaves = jax.tree.leaves(result, is_leaf=lambda x: isinstance(x, mx.Tensor))
    return [np.asarray(x.numpy() if isinstance(x, mx.Tensor) else x) for x in leaves]


def difference(got, wanted, coarse=0.0):
    """Returns what is different between two results, or nothing; they are at least as coarse as their inputs."""
    got, wanted = leaves_of(got), leaves_of(wanted)
    if len(got) != len(wanted):
        return f"{len(got)} results, not {len(wanted)}"
    for x, y in zip(got, wanted):
        if x.shape != y.shape or x.dtype != y.dtype:
            return f"{x.dtype}{x.shape}, not {y.dtype}{y.shape}"
        if jnp.issubdtype(y.dtype, jnp.inexact):
            allowed = max(coarse, ALLOWED[str(y.dtype)])
            x, y = x.astype(np.float64), y.astype(np.float64)
            finite = y[np.isfinite(y)]
            same = np.allclose(x, y, allowed, allowed * max(1.0, np.max(np.abs(finite), initial=0)), equal_nan=True)
        else:
            same = np.array_equal(x.astype(object), y.astype(object))
        if not same:
            at = np.unravel_index(np.argmax(_apart(x, y)), x.shape) if x.shape else ()
            return f"{x[at]} at {tuple(map(int, at))}, not {y[at]}"
    return ""


def _apart(x, y):
    with np.errstate(all="ignore"):
        apart = np.abs(x.astype(np.float64) - y.astype(np.float64))
        return np.where(
            np.isnan(apart), (np.isnan(x.astype(np.float64)) != np.isnan(y.astype(np.float64))) * 1e300, apart
        )


def comparable(found):
    """Whether JAX has a result with whose dtype ours can be compared: in 64 bits, its indices have another one."""
    return not isinstance(found, Exception) and not jax.config.jax_enable_x64


def coarseness(inputs):
    return max(ALLOWED.get(str(x.dtype), 0.0) for x in inputs)


def unsplit(fns, refs, inputs):
    """Returns what our functions give on whole arrays, and a line for each that differs from JAX's there."""
    whole = outcomes(fns, inputs, jax.jit)
    by_jax = outcomes(refs, [jnp.asarray(x.numpy()) for x in inputs], jax.jit)
    both = [name for name in by_jax if not isinstance(whole[name], Exception) and comparable(by_jax[name])]
    found = {name: difference(whole[name], by_jax[name], coarseness(inputs)) for name in both}
    return whole, [f"{name} unsplit: {line} by JAX" for name, line in found.items() if line]


def wrong_ones(fns, whole, inputs, mesh, layout):
    """Returns how many functions were compared under a layout, and a line for each that differs from unsplit."""
    placed = [place_with_garbage(x, Setting(mesh, layout)) for x in inputs]
    split = outcomes(fns, placed, lambda fn: mx.spmd(fn, mesh, layout))
    checked, wrong = 0, []
    for name in fns:
        one, other = split[name], whole[name]
        raised = [isinstance(found, Exception) for found in (one, other)]
        if raised[0] and is_collision(one):
            continue
        checked += 1
        if all(raised):
            continue
        if any(raised):
            error = one if raised[0] else other
            place = "under the layout" if raised[0] else "unsplit"
            wrong.append(f"{name} raises only {place}: {type(error).__name__}: {str(error)[:200]}")
            continue
        if found := difference(one, other, coarseness(inputs)):
            wrong.append(f"{name}: {found} unsplit")
    return checked, [f"{line} under {layout} on {mesh}" for line in wrong]


def with_gradients(case, inputs):
    floats = [bool(jnp.issubdtype(x.dtype, jnp.inexact)) for x in inputs]
    return forward_and_gradient(case.fn, inputs), lambda *arrays: reference(case.ref, arrays, floats)


PAIRS = [(group, dtype) for group in CHOSEN for dtype in (*INTEGERS, *EIGHTS, *FLOATS, *X64)]
PAIRS = PAIRS if WHOLE else random.Random(SEED).sample(PAIRS, 8)


@pytest.mark.parametrize(("group", "dtype"), PAIRS, ids=lambda x: x if isinstance(x, str) else x.name)
def test_a_layout_changes_no_dtype_and_no_value(group, dtype, record_property):
    seed = random.Random(f"{SEED} {group.name} {dtype}")
    cases = [case for case in group.cases if dtype not in EIGHTS or case.name not in NOT_IN_EIGHT_BITS]
    cases = {case.name: case for case in seed.sample(cases, min(CASES, len(cases)))}
    with x64(dtype):
        inputs = inputs_of(group, dtype)
        both = {
            name: with_gradients(case, inputs) if dtype in WITH_GRADIENTS else (case.fn, case.ref)
            for name, case in cases.items()
        }
        fns, refs = ({name: pair[i] for name, pair in both.items()} for i in (0, 1))
        # JAX sums 8 bits in 8 bits, and its softmax of integers is NaN: ours are better
        whole, wrong = unsplit(fns, refs if dtype in FLOATS else {}, inputs)
        checked = 0
        for mesh in map(mx.Mesh, ("x:8", "x:2 y:4", "x:4 y:2") if WHOLE else (seed.choice(("x:8", "x:2 y:4")),)):
            layouts = sampled_layouts(mesh, group.names, inputs, 100, group.name)
            for layout in seed.sample(layouts, min(LAYOUTS, len(layouts))):
                count, found = wrong_ones(fns, whole, inputs, mesh, layout)
                checked, wrong = checked + count, wrong + found
    assert not wrong, "\n".join(wrong)
    record_property("checked", checked)


def test_every_dtype_is_in_the_sweep():
    known = {name for name in dir(ml_dtypes) if name in (*EIGHTS, "bfloat16")}
    assert known == {*EIGHTS, "bfloat16"}
    assert len({*INTEGERS, *EIGHTS, *FLOATS, *X64}) == 17
