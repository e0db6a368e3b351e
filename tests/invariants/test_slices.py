"""JAX code that sees a slice: it gives what it gives on the whole, or raises; never another number.

`jax.tree.map`, `.array` and optax reach the array inside a tensor, which in a program is one processor's slice. Code
that works element by element is right there. Code that combines elements along a split dim is not, and has to raise.
"""

import random

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from slices import ALONG_THE_WHOLE, COMBINING, ELEMENTWISE, HARMLESS, PLACES

import meshax as mx
from layouts import WHOLE
from meshax.layout import Setting
from meshax.testing import place_with_garbage

h, uneven, k = mx.Dim("h", 8), mx.Dim("h", 6), mx.Dim("k", 4)
SPLIT = {  # the tensor's dims and role, the mesh and the layout
    "even": ((h, k), None, "m:4", mx.Layout("h:m")),
    "uneven": ((uneven, k), None, "m:4", mx.Layout("h:m")),
    "two axes": ((h, k), None, "m:2 n:2", mx.Layout("h:n+m")),
    "stored": ((uneven, k), "param", "m:2 n:2", mx.Layout("", params="h:m+n")),
}
WHOLES = {
    "no rule": ((h, k), None, "m:4", mx.Layout("")),
    "an axis of size 1": ((h, k), None, "m:1", mx.Layout("h:m")),
    "another dim's rule": ((h, k), None, "m:4", mx.Layout("j:m")),
}
mx.Dim.declare({"j": "what no input has"})


def made(dims, role):
    x = mx.tensor((1.2 * np.sin(1 + 2.3 * np.arange(dims[0].size * 4))).reshape(-1, 4).astype(np.float32), dims)
    return mx.param(x) if role else x


def sample(table, count, seed):
    """Returns the whole table in the whole run, a seeded sample of it otherwise."""
    return (
        table
        if WHOLE or count > len(table)
        else {name: table[name] for name in random.Random(seed).sample(sorted(table), count)}
    )


def on_arrays(table):
    return {name: lambda x, fn=fn: jax.tree.map(fn, x) for name, fn in table.items()}


def outcomes(fns, case):
    """Runs functions of a tensor under a layout; returns what each gives or raises, and what it gives unsplit.

    Tracing shows which ones raise; the others are compiled as one program.
    """
    dims, role, mesh, layout = case
    mesh, x = mx.Mesh(mesh), made(dims, role)
    found = {}
    for name, fn in fns.items():
        try:
            mx.spmd(fn, mesh, layout).trace(x)
        except Exception as error:  # what kind it is, the test asks
            found[name] = error
    left = {name: fn for name, fn in fns.items() if name not in found}
    program = mx.spmd(lambda x: {name: fn(x) for name, fn in left.items()}, mesh, layout)
    found |= program(place_with_garbage(x, Setting(mesh, layout))) if left else {}
    wanted = jax.jit(lambda x: {name: fn(x) for name, fn in fns.items()})(x)
    return {name: (found[name], wanted[name]) for name in fns}


def numbers(result):
    return [np.asarray(leaf.numpy() if isinstance(leaf, mx.Tensor) else leaf) for leaf in _leaves(result)]


def _leaves(result):
    return jax.tree.leaves(result, is_leaf=lambda leaf: isinstance(leaf, mx.Tensor))


def differ(got, wanted):
    try:
        for one, other in zip(numbers(got), numbers(wanted), strict=True):
            np.testing.assert_allclose(one, other, 2e-4, 2e-4)
    except AssertionError:
        return True
    return False


def wrong_ones(fns, case, may_raise):
    """Returns a line for each function that gives other numbers, or that raises what or when it should not."""
    found = []
    for name, (got, wanted) in outcomes(fns, case).items():
        if isinstance(got, Exception):
            if not (may_raise and isinstance(got, mx.MeshaxError)):
                found.append(f"{name}: {type(got).__name__}: {str(got)[:300]}")
        elif differ(got, wanted):
            found.append(f"{name}: other numbers than unsplit")
    return found


def assert_right(wrong, where=""):
    assert not wrong, "\n".join([where, *wrong])


@pytest.mark.parametrize("case", SPLIT)
def test_code_that_combines_elements_of_a_split_dim_raises(case, record_property):
    fns = on_arrays(sample(COMBINING, 10, case))
    assert_right(wrong_ones(fns, SPLIT[case], may_raise=True))
    record_property("checked", len(fns))


@pytest.mark.parametrize("case", WHOLES)
def test_code_that_combines_elements_of_a_whole_dim_works(case, record_property):
    fns = on_arrays(sample(COMBINING, 4, case))
    assert_right(wrong_ones(fns, WHOLES[case], may_raise=False))
    record_property("checked", len(fns))


@pytest.mark.parametrize("case", SPLIT)
def test_elementwise_code_works_on_slices(case, record_property):
    fns = on_arrays(sample(ELEMENTWISE, 6, case))
    assert_right(wrong_ones(fns, SPLIT[case], may_raise=False))
    record_property("checked", len(fns))


@pytest.mark.parametrize("case", SPLIT)
def test_code_along_a_dim_that_is_not_split_works_on_slices(case, record_property):
    fns = on_arrays(sample(ALONG_THE_WHOLE, 5, case))
    assert_right(wrong_ones(fns, SPLIT[case], may_raise=False))
    record_property("checked", len(fns))


@pytest.mark.parametrize("case", SPLIT)
def test_code_that_moves_elements_to_no_effect_is_right_or_raises(case, record_property):
    fns = on_arrays(HARMLESS)
    assert_right(wrong_ones(fns, SPLIT[case], may_raise=True))
    record_property("checked", len(fns))


CHOSEN = (
    "sum of all",
    "norm along it",
    "softmax",
    "cumsum",
    "sort",
    "flip",
    "first",
    "arange",
    "dot",
    "roll",
    "normal",
)
RIGHT = ("arithmetic", "functions", "comparisons", "relu and gelu", "loops")
EACH, PLACES_AT_ONCE = (100, 1) if WHOLE else (1, 8)  # functions of a kind, and places in one program


def together(places):
    """Returns the names of places, some at a time: those of one test are compiled as one program."""
    names = list(places)
    return [names[at : at + PLACES_AT_ONCE] for at in range(0, len(names), PLACES_AT_ONCE)]


def at_places(places, names, table, names_of_functions, count):
    """Returns some functions of a table at each of those places."""
    chosen = {place: sample({n: table[n] for n in names_of_functions}, count, place) for place in names}
    return {f"{n}, {place}": places[place](fn) for place, fns in chosen.items() for n, fn in fns.items()}


@pytest.mark.parametrize("names", together(PLACES), ids=lambda names: names[0])
def test_wherever_such_code_stands(names, record_property):
    combining = at_places(PLACES, names, COMBINING, CHOSEN, EACH)
    working = at_places(PLACES, names, ELEMENTWISE, RIGHT, EACH)
    working |= at_places(PLACES, names, ALONG_THE_WHOLE, ("softmax", "cumsum", "matrix"), 1)
    for case in SPLIT if WHOLE else ("uneven",):
        found = wrong_ones(on_arrays(combining), SPLIT[case], may_raise=True)
        found += wrong_ones(on_arrays(working), SPLIT[case], may_raise=False)
        assert_right(found, case)
    record_property("checked", len(combining) + len(working))


def _weighted(x):
    weights = np.cos(np.arange(x.size, dtype=np.float32)).reshape([dim.size for dim in x.dims])
    return mx.sum(x * mx.tensor(weights, x.dims))


def alike(x, y):
    """Stores y as x is: only then are they trees of one structure."""
    return mx.param(y) if x.role else y


def _times(x, number):
    return jax.tree.map(lambda a: a * number, x)


# Where our own functions call the user's code, or use what it gives: from a function of arrays, one of tensors.
OURS = {
    "value_and_grad": lambda fn: mx.value_and_grad(lambda x: _weighted(jax.tree.map(fn, x) * x)),
    "jax.grad": lambda fn: jax.grad(lambda x: _weighted(jax.tree.map(fn, x) * x).array),
    "second order": lambda fn: mx.grad(
        lambda x: _weighted(mx.square(mx.grad(lambda x: _weighted(mx.square(jax.tree.map(fn, x))))(x)))
    ),
    "microbatches": lambda fn: (
        lambda x: mx.grad(lambda w, x: _weighted(jax.tree.map(fn, x * w)), microbatches=2, over="k")(mx.ones(()), x)
    ),
    "remat": lambda fn: mx.remat(lambda x: jax.tree.map(fn, x)),
    "scan": lambda fn: (
        lambda x: mx.scan(
            lambda c, part: (alike(x, jax.tree.map(fn, c) + 0 * part), c),
            x * 1.0,
            mx.zeros((mx.Dim("turns", 2), *x.dims)),
            over="turns",
        )
    ),
    "while_loop": lambda fn: (
        lambda x: mx.while_loop(
            lambda c: c[0] < 2, lambda c: (c[0] + 1, jax.tree.map(fn, c[1])), (mx.tensor(0, ()), x)
        )[1]
    ),
    "cond": lambda fn: lambda x: mx.cond(mx.sum(x * x) > 0, lambda x: jax.tree.map(fn, x), lambda x: x * 1.0, x),
    "after an operation": lambda fn: lambda x: jax.tree.map(fn, mx.tanh(x) + mx.sum(x, k)),
    "before a reduction": lambda fn: lambda x: mx.sum(jax.tree.map(fn, x), h.name),
    "of an outer product": lambda fn: lambda x: jax.tree.map(fn, mx.einsum(x, mx.sum(x, k), out=x.dims)),
    "of a renamed tensor": lambda fn: lambda x: jax.tree.map(fn, x.rename(k="j")),
    "the array itself": lambda fn: lambda x: jax.tree.unflatten(jax.tree.structure(x), [fn(x.array)]),
    "jit over tensors": lambda fn: lambda x: jax.jit(lambda x: jax.tree.map(fn, x) * x)(x),
    "lax.scan over tensors": lambda fn: (
        lambda x: jax.lax.scan(lambda c, _: (jax.tree.map(fn, c), None), x * 1.0, None, length=2)[0]
    ),
    "optax.tree": lambda fn: lambda x: jax.tree.map(fn, jax.tree.map(lambda p, g: p - 0.1 * g, x, alike(x, x * 2))),
}


@pytest.mark.parametrize("names", together(OURS), ids=lambda names: names[0])
def test_wherever_our_functions_meet_such_code(names, record_property):
    combining = at_places(OURS, names, COMBINING, CHOSEN, EACH)
    right = at_places(OURS, names, ELEMENTWISE, RIGHT, EACH)
    for case in SPLIT if WHOLE else ("uneven",):
        found = wrong_ones(combining, SPLIT[case], may_raise=True)
        found += wrong_ones(right, SPLIT[case], may_raise=False)
        assert_right(found, case)
    record_property("checked", len(combining) + len(right))


def _backward(fn):
    """An elementwise function whose backward rule is not."""
    f = jax.custom_vjp(jnp.sin)
    f.defvjp(lambda a: (jnp.sin(a), a), lambda a, ct: (fn(ct * jnp.cos(a)),))
    return f


# Numbers that JAX code makes of a slice, and what leaves the program or meets tensors then.
NUMBERS = {
    "a sum that leaves": lambda x: jnp.sum(x.array),
    "a sum that scales": lambda x: x * jnp.sum(x.array),
    "a sum that is named": lambda x: x * mx.tensor(jnp.sum(x.array), ()),
    "a norm that scales": lambda x: x / optax.tree.norm(x),
    "a norm of a tree": lambda x: jax.tree.map(lambda a: a / optax.tree.norm(x), x),
    "a row that is named": lambda x: x * mx.tensor(x.array[0], "k"),
    "a sum along the whole that is named": lambda x: x * mx.tensor(jnp.sum(x.array, 1), "h"),
    "a gradient by a number": lambda x: mx.grad(lambda s: mx.sum(_times(x, s.array)))(mx.ones(())),
    "a gradient by a number of JAX": lambda x: jax.grad(lambda s: mx.sum(_times(x, s)).array)(2.0),
    "a gradient by a number in a logarithm": lambda x: mx.grad(
        lambda s: mx.sum(jax.tree.map(lambda a: jnp.log(a * a) * s.array, x))
    )(mx.ones(())),
    "a gradient by a row": lambda x: mx.grad(lambda w: mx.sum(jax.tree.map(lambda a: a * w.array, x)))(mx.ones((k,))),
    "a backward rule with a sum": lambda x: mx.grad(
        lambda x: _weighted(jax.tree.map(_backward(lambda ct: jnp.cumsum(ct, 0)), x))
    )(x),
    "a backward rule with a norm": lambda x: mx.grad(
        lambda x: _weighted(jax.tree.map(_backward(lambda ct: ct / jnp.linalg.norm(ct)), x))
    )(x),
    "all of two tensors": lambda x: jax.tree.map(lambda a, b: a * jnp.vdot(a, b), x, alike(x, mx.tanh(x))),
    "a sum of two tensors": lambda x: jax.tree.map(jnp.add, x, alike(x, mx.tanh(x))),
    "a tensor made inside": lambda x: jax.tree.map(jnp.add, x, alike(x, mx.ones(x.dims))),
    "a tensor that is closed over": lambda x: jax.tree.map(jnp.add, x, alike(x, OUTSIDE[x.dims])),
    "zeros of its shape": lambda x: x + jax.tree.map(jnp.zeros_like, x),
    "ones of its shape": lambda x: x + jax.tree.map(lambda a: jnp.ones(a.shape), x),
}
OUTSIDE = {dims: made(dims, None) for dims in ((h, k), (uneven, k))}


@pytest.mark.parametrize("case", SPLIT)
def test_numbers_made_of_slices(case, record_property):
    fns = sample(NUMBERS, 5, case)
    assert_right(wrong_ones(fns, SPLIT[case], may_raise=True))
    record_property("checked", len(fns))


def test_the_message_says_what_met_and_where():
    dims, role, mesh, layout = SPLIT["even"]

    def clip(x):
        return jax.tree.map(lambda a: a / jnp.linalg.norm(a), x)

    with pytest.raises(mx.SliceError) as caught:
        mx.spmd(clip, mx.Mesh(mesh), layout)(made(dims, role))
    assert isinstance(caught.value, mx.MeshaxError)
    assert "h:8/m" in str(caught.value)
    assert any("test_slices.py" in note for note in caught.value.__notes__)
