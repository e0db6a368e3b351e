"""Extreme numbers: infinities, NaN, the largest and smallest, -0.0, zeros and wrap-around give what they give unsplit.

Each op stands alone, so that the compiler has nothing to fuse it with. A sum that overflows or not by the order of its
terms has no one result; none of these patterns has such sums. So means and differences of sums that overflow are left
out: a mean divides the parts of its sum before they are added up.
"""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_dtypes import X64, unsplit, wrong_ones, x64

import meshax as mx
from layouts import SEED, WHOLE, sampled_layouts

n, m, k = mx.dims("n:8 m:6 k:3")
FLOATS = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float64")
INTEGERS = ("int32", "int8", "uint8", "uint32", "int16", "int64", "bool")
INDICES = mx.tensor(np.int32([7, 0, -1, 3, 8, 3]), (m,))


def _along(name, position=None, **options):
    """An op along the first dim, along the second, and along both."""
    ours, jaxs = getattr(mx, name), getattr(jnp, name, None) or getattr(jax.nn, name)
    every = {
        f"{name} {over}": (lambda x, over=over: ours(x, over), lambda x, axis=axis: jaxs(x, axis=axis, **options))
        for over, axis in (("n", 0), ("m", 1), (("n", "m"), (0, 1)))
    }
    return every if position is None else {key: every[key] for key in list(every)[:position]}


def _index(name):
    return {
        f"{name} {over}": (
            lambda x, over=over: getattr(mx, name)(x, over),
            lambda x, axis=axis: getattr(jnp, name)(x, axis=axis).astype(np.int32),
        )
        for over, axis in (("n", 0), ("m", 1))
    }


ELEMENTWISE = {
    **{
        name: (getattr(mx, name), getattr(jnp, name, None) or getattr(jax.nn, name, None) or getattr(jax.lax, name))
        for name in (
            *("exp", "log", "log1p", "expm1", "sqrt", "rsqrt", "square", "sin", "cos", "tanh", "sigmoid", "softplus"),
            *("relu", "silu", "abs", "sign", "floor", "ceil", "round", "isnan", "isfinite", "negative", "logical_not"),
        )
    },
    "divided by zero": (lambda x: x / 0, lambda x: x / 0),
    "zero over it": (lambda x: 0 / x, lambda x: 0 / x),
    "a remainder": (lambda x: x % 3, lambda x: x % 3),
    "a whole quotient": (lambda x: x // 3, lambda x: x // 3),
    "a square": (lambda x: x * x, lambda x: x * x),
    "a difference": (lambda x: x - x, lambda x: x - x),
    "a sum": (lambda x: x + x, lambda x: x + x),
    "clip": (lambda x: mx.clip(x, 0, 1), lambda x: jnp.clip(x, 0, 1)),
    "maximum": (lambda x: mx.maximum(x, x.dtype.type(1)), lambda x: jnp.maximum(x, x.dtype.type(1))),
    "where": (lambda x: mx.where(x > 0, x, 0), lambda x: jnp.where(x > 0, x, 0)),
    "comparisons": (lambda x: (x > 0, x == x, x <= 1), lambda x: (x > 0, x == x, x <= 1)),
}
MOVING = {
    **_along("max"),
    **_along("min"),
    **_index("argmax"),
    **_index("argmin"),
    "sort": (lambda x: mx.sort(x, n), lambda x: jnp.sort(x, 0)),
    "argsort": (lambda x: mx.argsort(x, m), lambda x: jnp.argsort(x, 1, stable=True).astype(np.int32)),
    "top_k": (lambda x: mx.top_k(x, n, k), None),
    "flip": (lambda x: mx.flip(x, m), lambda x: jnp.flip(x, 1)),
    "shift": (lambda x: mx.shift(x, n, 3), None),
    "wrap": (lambda x: mx.shift(x, m, 2, wrap=True), lambda x: jnp.roll(x, 2, 1)),
    "slice": (lambda x: mx.slice(x, n, 2, 3), lambda x: x[2:5]),
    "pad": (lambda x: mx.pad(x, m, 1, 2), lambda x: jnp.pad(x, ((0, 0), (1, 2)))),
    "concat": (lambda x: mx.concat([x, x], n), lambda x: jnp.concatenate([x, x])),
    "windows": (lambda x: mx.windows(x, m, k), None),
    "reshape": (lambda x: mx.reshape(x, mx.Dim("nm", 48)), lambda x: x.reshape(-1)),
    "transpose": (lambda x: mx.transpose(x, "m n"), lambda x: x.T),
    "rename": (lambda x: x.rename(n="o"), lambda x: x),
    "gather": (lambda x: mx.gather(x, INDICES.rename(m="p"), n), None),
    "scatter_add": (lambda x: mx.scatter_add(x, INDICES.rename(m="p"), mx.ones(mx.Dim("p", 6), x.dtype), n), None),
    "scan": (lambda x: mx.scan(lambda c, row: (c, row), mx.zeros(()), x, over=n)[1], lambda x: x),
    "any": (lambda x: (mx.any(x > 0, n), mx.all(x > 0, m)), lambda x: (jnp.any(x > 0, 0), jnp.all(x > 0, 1))),
}  # fmt: skip
SUMMING = {
    **_along("sum"),
    **_along("mean"),
    **_along("var"),
    **_along("logsumexp"),
    # of an infinity, jax.nn makes NaN of all elements and not only of that one; it has no infinity for float8_e4m3fn
    **{name: (ours, None) for name, (ours, _) in (_along("softmax", 2) | _along("log_softmax", 2)).items()},
    "prod": (lambda x: mx.prod(x, n), lambda x: jnp.prod(x, 0)),
    "cumsum": (lambda x: mx.cumsum(x, n), lambda x: jnp.cumsum(x, 0)),
    "cumsum backwards": (lambda x: mx.cumsum(x, m, reverse=True), None),
    "einsum": (lambda x: mx.einsum(x, over=n), None),
    "a product": (lambda x: mx.einsum(x, x.rename(m="p"), out="m p"), lambda x: x.T @ x),
    "a sum over zero": (lambda x: mx.sum(x, n) / 0, lambda x: jnp.sum(x, 0) / 0),
    "a sum over a float zero": (lambda x: mx.sum(x, n) / 0.0, lambda x: jnp.sum(x, 0) / 0.0),
    "a sum over a number": (lambda x: mx.sum(x, n) / 4, lambda x: jnp.sum(x, 0) / 4),
    "a sum times zero": (lambda x: mx.sum(x, n) * 0, lambda x: jnp.sum(x, 0) * 0),
    "a sum times infinity": (lambda x: mx.sum(x, n) * float("inf"), lambda x: jnp.sum(x, 0) * float("inf")),
    "a sum times a half": (lambda x: mx.sum(x, m) * 0.5, lambda x: jnp.sum(x, 1) * 0.5),
    "a sum, negated": (lambda x: -mx.sum(x, n), lambda x: -jnp.sum(x, 0)),
    "a sum of sums": (lambda x: mx.sum(x, n) + mx.sum(x, n), lambda x: jnp.sum(x, 0) + jnp.sum(x, 0)),
    "a difference of sums": (lambda x: mx.sum(x, n) - mx.sum(x, n), lambda x: jnp.sum(x, 0) - jnp.sum(x, 0)),
    "a sum of sums over zero": (lambda x: (mx.sum(x, n) + mx.sum(x, n)) / 0.0, None),
    "a mean, doubled": (lambda x: mx.mean(x, n) * 2, lambda x: jnp.mean(x, 0) * 2),
    "a sum cast": (lambda x: mx.sum(x, n).astype(jnp.int32), None),
    "a sum rename": (lambda x: mx.sum(x, n).rename(m="o") / 0.0, None),
}
FOR_ALL = ELEMENTWISE | MOVING | SUMMING
mx.Dim.declare({"o": "m, renamed", "p": "m, renamed otherwise", "nm": "n and m, as one"})


def _plain():
    """Numbers that do not cancel: a sum of few bits that is nearly zero may as well be zero."""
    return 1.25 + 0.5 * np.sin(1 + np.arange(48.0)).reshape(8, 6)


def float_patterns(dtype):
    """Returns arrays of extreme numbers, each with the ops whose result does not depend on the order of terms."""
    info = jnp.finfo(dtype)
    tiny, largest = float(info.tiny), float(info.max)
    signs = np.where(np.arange(48).reshape(8, 6) % 2, 1.0, -1.0)
    holes = {"nan": np.nan, **({"inf": np.inf, "-inf": -np.inf} if dtype != "float8_e4m3fn" else {})}
    found = {"zeros": (np.zeros((8, 6)), FOR_ALL), "signed zeros": (signs * 0.0, FOR_ALL)}
    for name, value in holes.items():
        for where, at in {"one": np.s_[5, 4], "a column": np.s_[:, 2], "a row": np.s_[6], "all": np.s_[:]}.items():
            array = _plain()
            array[at] = value
            found[f"{name}, {where}"] = (array, FOR_ALL)
    if "inf" in holes:
        array = _plain()
        array[1, 3], array[6, 3], array[2, 5] = np.inf, -np.inf, np.nan
        found["infinities that meet"] = (array, FOR_ALL)
    mixed = np.resize([largest, -largest, tiny, -tiny, 0.0, -0.0, 1.0, *holes.values()], (8, 6))
    found["all kinds"] = (mixed, ELEMENTWISE | MOVING)
    overflowing = {op: case for op, case in SUMMING.items() if not op.startswith(("mean", "var", "a mean", "a differ"))}
    found["the largest"] = (np.full((8, 6), largest), ELEMENTWISE | MOVING | overflowing)
    found["the smallest"] = (
        np.full((8, 6), tiny),
        MOVING | {"sum n": SUMMING["sum n"]},
    )
    if dtype == "float16":
        found["a mean of 60000s"] = (np.full((8, 6), 60000.0), FOR_ALL)
    return {name: (array.astype(jnp.dtype(dtype)), table) for name, (array, table) in found.items()}


def integer_patterns(dtype):
    if dtype == "bool":
        return {"true": (np.ones((8, 6), bool), FOR_ALL), "mixed": (np.arange(48).reshape(8, 6) % 3 == 0, FOR_ALL)}
    info = jnp.iinfo(dtype)
    values = [int(info.max), int(info.min), 0, 1, int(info.max) // 2 + 1, int(info.min) + 1]
    return {
        "limits": (np.array(values, dtype)[np.arange(48).reshape(8, 6) * 5 % 6], FOR_ALL),
        "the largest": (np.full((8, 6), info.max, dtype), FOR_ALL),
        "the least": (np.full((8, 6), info.min, dtype), FOR_ALL),
        "quarters that wrap": (np.full((8, 6), int(info.max) // 4 + 1, dtype), FOR_ALL),
        "zeros": (np.zeros((8, 6), dtype), FOR_ALL),
    }


def patterns(dtype):
    return float_patterns(dtype) if dtype in FLOATS else integer_patterns(dtype)


PAIRS = [(dtype, name) for dtype in (*FLOATS, *INTEGERS) for name in patterns(dtype)]
FIRST = [("float16", "a mean of 60000s"), ("float32", "all kinds"), ("int32", "quarters that wrap")]
PAIRS = PAIRS if WHOLE else FIRST + random.Random(SEED).sample(PAIRS, 1)
LAYOUTS = 3 if WHOLE else 1
OPS = 1000 if WHOLE else 16


@pytest.mark.parametrize(("dtype", "name"), PAIRS)
def test_extreme_numbers(dtype, name, record_property):
    seed = random.Random(f"{SEED} {dtype} {name}")
    checked = 0
    with x64(dtype):
        array, table = patterns(dtype)[name]
        x = mx.tensor(array, (n, m))
        chosen = {op: table[op] for op in seed.sample(sorted(table), min(OPS, len(table)))}
        fns = {op: pair[0] for op, pair in chosen.items()}
        refs = {op: pair[1] for op, pair in chosen.items() if pair[1] is not None and dtype not in X64}
        if dtype == "float8_e4m3fn":  # JAX passes by 464 on the way, and this dtype has NaN for infinity
            refs = {op: ref for op, ref in refs.items() if not op.startswith("logsumexp")}
        whole, wrong = unsplit(fns, refs, [x])
        for mesh in map(mx.Mesh, ("x:4", "x:2 y:4") if WHOLE else ("x:4",)):
            layouts = [layout for layout in sampled_layouts(mesh, ("n", "m", "o"), [x], 1000, "") if layout.rules]
            for layout in seed.sample(layouts, LAYOUTS):
                count, found = wrong_ones(fns, whole, [x], mesh, layout)
                checked, wrong = checked + count, wrong + found
    assert not wrong, "\n".join(wrong)
    record_property("checked", checked)
