"""Random programs: compositions of 5 to 15 ops under random layouts equal the same program on whole arrays."""

from collections import Counter

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import seed as hypothesis_seed
from hypothesis import strategies as st

import meshax as mx
from layouts import SEED, WHOLE
from meshax.layout import Setting
from meshax.testing import forward_and_gradient, place_with_garbage

# Hypothesis begins each chunk with the same simplest program: 40 chunks of 51 are 2,001 different ones.
CHUNKS, PROGRAMS = (40, 51) if WHOLE else (1, 3)
MESHES = ("x:8", "x:2 y:4", "x:4 y:2", "x:2 y:2 z:2")
SIZES = {"i": 6, "j": 5, "k": 4, "l": 3}
RENAMED = {"i": "u", "j": "v", "k": "w", "l": "m"}  # other names of the same sizes, with rules of their own
LARGEST = 1500  # elements


def size_of(x):
    return int(np.prod([d.size for d in x.dims]))


def base(name):
    return next((old for old, new in RENAMED.items() if new == name), name)


# Each maker draws the choices of one op and returns a function of the pool of tensors, or None if it does not apply.
def unary(draw, pool):
    at, fn = (
        draw(st.integers(0, len(pool) - 1)),
        draw(st.sampled_from([mx.tanh, mx.sin, mx.sigmoid, lambda x: x * 0.7 - 0.1])),
    )
    return lambda pool: fn(pool[at])


def binary(draw, pool):
    a, b = (draw(st.integers(0, len(pool) - 1)) for _ in "ab")
    fn = draw(
        st.sampled_from(
            [lambda x, y: x + y, lambda x, y: x * y, lambda x, y: x - y, lambda x, y: mx.where(x > 0.1, x, y)]
        )
    )
    return lambda pool: fn(pool[a], pool[b])


def contract(draw, pool):
    a, b = (draw(st.integers(0, len(pool) - 1)) for _ in "ab")
    names = sorted({d.name for d in pool[a].dims} | {d.name for d in pool[b].dims})
    if not names:
        return None
    over = draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True))
    return lambda pool: mx.einsum(pool[a], pool[b], over=over) * 0.3


def along_a_dim(draw, pool):
    at = draw(st.integers(0, len(pool) - 1))
    if not pool[at].dims:
        return None
    dim = draw(st.sampled_from([d.name for d in pool[at].dims]))
    size = pool[at].dim(dim).size
    number = draw(st.integers(1, max(1, size - 1)))
    still = mx.stop_gradient  # ties that rounding breaks would send gradients elsewhere
    fn = draw(
        st.sampled_from(
            [
                lambda x: mx.sum(x, dim),
                lambda x: mx.mean(x, dim),
                lambda x: mx.softmax(x, dim),
                lambda x: mx.logsumexp(x, dim),
                lambda x: mx.cumsum(x, dim) * 0.3,
                lambda x: mx.cumsum(x, dim, exclusive=True, reverse=True) * 0.3,
                lambda x: mx.flip(x, dim),
                lambda x: mx.shift(x, dim, number),
                lambda x: mx.shift(x, dim, -number, wrap=True),
                lambda x: mx.max(still(x), dim),
                lambda x: mx.sort(still(x), dim),
                lambda x: mx.top_k(still(x), dim, mx.Dim(dim, number))[0],
                lambda x: mx.rename(x, {dim: RENAMED.get(dim, base(dim))}),
                lambda x: mx.gather(
                    x.rename(**{dim: "table"}), (mx.arange(x.dim(dim)) * 7 + number) % (size + 1), "table"
                ),
                lambda x: mx.one_hot((mx.arange(x.dim(dim)) + number) % size, mx.Dim("h", 3)) + x,
                lambda x: mx.windows(x, dim, mx.Dim("h", 2), before=1),
                lambda x: mx.random.dropout(jax.random.key(number), x, 0.3),
                lambda x: mx.remat(lambda x: mx.tanh(mx.sum(x, dim)))(x),
                lambda x: mx.scan(lambda c, y: (mx.tanh(c + y), c), mx.sum(x, dim) * 0, x, over=dim)[0],
            ]
        )
    )
    return lambda pool: fn(pool[at])


def resize(draw, pool):
    """Slice or pad, and back to the same size, so that dims of one name keep one size."""
    at = draw(st.integers(0, len(pool) - 1))
    if not pool[at].dims:
        return None
    dim = draw(st.sampled_from([d.name for d in pool[at].dims]))
    size = pool[at].dim(dim).size
    cut = draw(st.integers(1, size))
    if draw(st.booleans()):
        return lambda pool: mx.pad(mx.slice(pool[at], dim, size - cut, cut), dim, size - cut, 0, 0.5)
    return lambda pool: mx.slice(mx.concat([mx.flip(pool[at], dim), pool[at]], dim), dim, cut, size)


def merge(draw, pool):
    """Reads all elements as one dim, and back in another order of dims."""
    at = draw(st.integers(0, len(pool) - 1))
    dims = pool[at].dims
    if not dims:
        return None
    order = draw(st.permutations(dims))
    flat = mx.Dim("flat", size_of(pool[at]))
    return lambda pool: mx.reshape(mx.reshape(mx.transpose(pool[at], order), flat) * 0.9, order)


MAKERS = [unary, binary, binary, contract, along_a_dim, along_a_dim, along_a_dim, resize, merge]


@st.composite
def programs(draw):
    """Draws inputs, ops one after the other (run on whole arrays to know their dims), a mesh and a layout."""
    shapes = [draw(st.lists(st.sampled_from(list(SIZES)), min_size=1, max_size=3, unique=True)) for _ in range(3)]
    inputs = []
    for n, names in enumerate(shapes):
        shape = [SIZES[name] for name in names]
        inputs.append(mx.tensor(np.sin(1.7 * np.arange(np.prod(shape)) + n).reshape(shape).astype(np.float32), names))
    steps, pool = [], list(inputs)
    wanted = draw(st.integers(5, 15))
    while len(steps) < wanted:
        step = draw(st.sampled_from(MAKERS))(draw, pool)
        if step is None:
            continue
        try:
            result = step(pool)
        except (mx.ShapeError, mx.DimError):  # dims that a rename or a window made meet, of other sizes
            continue
        if size_of(result) <= LARGEST:
            steps.append(step)
            pool.append(result)
    mesh = mx.Mesh(draw(st.sampled_from(MESHES)))
    names = [*SIZES, *RENAMED.values(), "flat", "table", "h"]
    mx.Dim.declare(dict.fromkeys(names, "what a random program may make"))
    rules = {}
    for axis in mesh.axes:
        for name in draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True)):
            rules.setdefault(name, []).append(axis)
    return inputs, steps, mesh, mx.Layout(rules)


def check_random_program(inputs, steps, mesh, layout):
    """Checks one program; returns whether its layout is legal. One under which dims collide must say so."""

    def run(*inputs):
        pool = list(inputs)
        for step in steps:
            pool.append(step(pool))
        return pool[-1], pool[len(inputs)]

    both = forward_and_gradient(run, inputs)
    try:
        got = mx.spmd(both, mesh, layout)(*(place_with_garbage(x, Setting(mesh, layout)) for x in inputs))
    except mx.LayoutError as collision:
        assert "split over the same mesh axis" in str(collision)
        return False
    for kind, one, other in zip(("result", "gradient"), got, both(*inputs)):
        for x, y in zip(one, other):
            scale = max(1.0, float(np.abs(y.numpy()).max()))
            np.testing.assert_allclose(
                x.numpy(), y.numpy(), 1e-4, 5e-5 * scale, err_msg=f"{kind} under {layout} on {mesh}"
            )
    return True


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_programs(chunk, record_property):
    seed, counts = SEED * 1000 + chunk, Counter()

    @hypothesis_seed(seed)
    @settings(max_examples=PROGRAMS, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(programs())
    def check(program):
        if not check_random_program(*program):
            counts["collisions"] += 1
            reject()  # Hypothesis draws another one instead
        counts["right"] += 1

    chosen = f"seed {seed}: chunk {chunk} with MESHAX_SEED={SEED}"
    print(chosen)
    try:
        check()
    except BaseException as error:
        error.add_note(chosen)
        raise
    print(dict(counts))
    record_property("checked", counts["right"])
    assert counts["right"] >= PROGRAMS, f"{chosen}: {dict(counts)}"
