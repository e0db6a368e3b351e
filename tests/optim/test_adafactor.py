"""Adafactor: optax's where the two define the same; each layer of a stack as if alone; small state, few collectives.

That every layout gives the unsplit result is tested in test_contract.py.
"""

import itertools
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshax as mx
from extent import WHOLE, some
from meshax import optim
from meshax.testing import layout_invariance
from messages import pinned

layers, rows, cols = mx.dims(layers=3, rows=12, cols=10)


def draw(dims, seed, scale=1.0, dtype=np.float32):
    values = np.random.RandomState(seed).normal(size=[d.size for d in dims]) * scale
    return mx.param(mx.tensor(jnp.asarray(values, dtype), dims))


def steps_of(optimizer, params, gradients):
    state = optimizer.init(params)
    for grads in gradients:
        params, state = optimizer.apply(grads, state, params)
    return params, state


def array(tree):
    return jax.tree.map(lambda x: x.numpy(), tree, is_leaf=lambda x: isinstance(x, mx.Tensor))


SAME = {
    "relative step": {},
    "no clipping": {"clip": None},
    "absolute step": {"multiply_by_parameter_scale": False},
    "tight clipping": {"clip": 0.3},
    "momentum": {"momentum": 0.9},
    "weight decay": {"weight_decay": 0.01, "momentum": 0.5},
    "not factored": {"min_dim_size": 11},
    "decay": {"decay_exponent": 0.6},
    "schedule": {"rate": optim.schedules.linear(0.1, steps=5)},
}
IN_OPTAX = {
    "rate": "learning_rate",
    "clip": "clipping_threshold",
    "weight_decay": "weight_decay_rate",
    "decay_exponent": "decay_rate",
    "min_dim_size": "min_dim_size_to_factor",
}


@pytest.mark.parametrize("name", SAME)
def test_matrices_and_vectors_are_updated_as_by_optax(name):
    options = {"rate": 0.1, "min_dim_size": 4, **SAME[name]}
    params = {"matrix": draw((rows, cols), 0), "vector": draw((cols,), 1), "tiny": draw((rows, cols), 2, 1e-5)}
    gradients = [{key: draw(p.dims, 10 * i, 10.0**-i) for key, p in params.items()} for i in range(5)]

    theirs = optax.adafactor(**{IN_OPTAX.get(key, key): value for key, value in options.items()})
    wanted, state = array(params), theirs.init(array(params))
    for grads in gradients:
        updates, state = theirs.update(array(grads), state, wanted)
        wanted = optax.apply_updates(wanted, updates)

    got, _ = steps_of(optim.Adafactor(**options), params, gradients)
    for key in params:
        np.testing.assert_allclose(got[key].numpy(), wanted[key], rtol=2e-5, atol=1e-8, err_msg=key)


@pytest.mark.parametrize("shape", [(), (rows,), (rows, cols), (rows, cols, mx.Dim("depth", 4))], ids=len)
def test_each_layer_of_a_stack_is_updated_as_if_alone(shape):
    """Also if one layer's update is clipped, its gradient vanishes, or its parameter is tiny: no other notices."""
    optimizer = optim.Adafactor(0.1, min_dim_size=4, clip=0.5, momentum=0.9)
    size = mx.tensor(np.array([1.0, 1e-6, 100.0], np.float32), (layers,))
    params = mx.param(draw((layers, *shape), 0) * size)
    gradients = [mx.param(draw((layers, *shape), 1 + i) * size / 10**i) for i in range(3)]

    stack, _ = steps_of(optimizer, params, gradients)

    for i in range(layers.size):
        alone = lambda x: mx.param(mx.unstack(x, layers)[i])  # noqa: B023, E731
        one, _ = steps_of(optimizer, alone(params), [alone(g) for g in gradients])
        np.testing.assert_allclose(alone(stack).numpy(), one.numpy(), rtol=2e-5)


def test_stacked_may_name_other_dims():
    optimizer = optim.Adafactor(0.1, min_dim_size=2, stacked="layers rows")
    state = optimizer.init(draw((layers, rows, cols), 0))
    assert state.moments[0].dims == (layers, rows, cols)


def test_state_is_rows_and_columns_in_float32():
    params = {"stack": draw((layers, rows, cols), 0, dtype=jnp.bfloat16), "small": draw((layers, cols), 1)}
    state = optim.Adafactor(min_dim_size=4).init(params)
    assert [x.dims for x in state.moments["stack"]] == [(layers, cols), (layers, rows)]
    assert [x.dims for x in state.moments["small"]] == [(layers, cols)]
    assert {x.dtype for x in jax.tree.leaves(state.moments)} == {np.dtype("float32")}
    assert state.momentum is None
    assert optim.Adafactor(momentum=0.9).init(params).momentum["stack"].dtype == jnp.float32


def test_dims_smaller_than_min_dim_size_are_not_factored():
    assert len(optim.Adafactor(min_dim_size=10).init(draw((rows, cols), 0)).moments) == 2
    assert len(optim.Adafactor(min_dim_size=11).init(draw((rows, cols), 0)).moments) == 1


def test_bfloat16_parameters_stay_so_and_are_computed_in_float32():
    optimizer = optim.Adafactor(0.1, min_dim_size=4)
    gradients = [draw((rows, cols), i, dtype=jnp.bfloat16) for i in range(1, 4)]
    wide = lambda x: mx.param(x.astype(jnp.float32))  # noqa: E731
    params = draw((rows, cols), 0, dtype=jnp.bfloat16)
    got, state = steps_of(optimizer, params, gradients[:1])
    wanted, wide_state = steps_of(optimizer, wide(params), [wide(g) for g in gradients[:1]])
    assert got.dtype == jnp.bfloat16
    np.testing.assert_array_equal(got.numpy(), wanted.astype(jnp.bfloat16).numpy())
    for a, b in zip(state.moments, wide_state.moments, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_the_default_rate_is_the_papers():
    rate = optim.Adafactor().rate
    np.testing.assert_allclose([rate(0), rate(9_999), rate(39_999)], [0.01, 0.01, 0.005], rtol=1e-6)


def test_padding_never_counts():
    """Parameters and gradients arrive with NaN in their padding."""
    optimizer = optim.Adafactor(0.1, min_dim_size=4)
    stack = mx.tensor(draw((layers, rows, cols), 0).numpy(), (layers, rows, cols))

    def update(params, grads):
        return steps_of(optimizer, params, [grads, grads])[0]

    assert layout_invariance(
        update, stack, stack * stack, meshes=["x:2 y:4", "x:8"], layouts=8 if WHOLE else 2, gradients=False
    )


def collectives_of(optimizer, layout, params):
    program = mx.spmd(optimizer.apply, mx.Mesh("data:2 model:4"), layout)
    found = Counter()
    for c in program.explain(params, optimizer.init(params), params).collectives:
        found[c.kind, c.axes, c.elements] += c.count
    return found


def test_an_update_reduces_row_and_column_means_and_all_sizes_together():
    params = {"a": draw((rows, cols), 0), "b": draw((layers, rows, cols), 1), "c": draw((cols,), 2)}
    optimizer = optim.Adafactor(0.1, min_dim_size=4)
    assert not collectives_of(optimizer, "", params)
    # column means of a and b; the sizes of the updates and parameters a and of each layer of b
    assert collectives_of(optimizer, "rows:data", params) == {
        ("all-reduce", ("data",), 10): 1,
        ("all-reduce", ("data",), 30): 1,
        ("all-reduce", ("data",), 2 * (1 + 3)): 1,
    }
    # row means too, the means of all of a and of each layer of b, and the sizes of c
    assert collectives_of(optimizer, "rows:data cols:model", params) == {
        ("all-reduce", ("data",), 3): 1,
        ("all-reduce", ("data",), 9): 1,
        ("all-reduce", ("model",), 6): 1,
        ("all-reduce", ("model",), 18): 1,
        ("all-reduce", ("data",), 1 + 3): 1,
        ("all-reduce", ("data", "model"), 2 * (1 + 3 + 1)): 1,
    }


def test_zero_1_gathers_each_parameter_once_more():
    params = {"a": draw((rows, cols), 0), "c": draw((cols,), 2)}
    layout = mx.Layout("", optimizer="rows:data")
    assert collectives_of(optim.Adafactor(0.1, min_dim_size=4), layout, params) == {
        ("all-reduce", ("data",), 10): 1,
        ("all-reduce", ("data",), 2): 1,
        ("all-gather", ("data",), 60): 1,
    }


MATRIX = draw((rows, cols), 0)
TIED = sorted({shape for n in (2, 3, 4) for shape in itertools.product((4, 5, 8), repeat=n) if len(set(shape)) < n})


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(16))
def test_of_equal_dims_the_last_are_factored_as_by_optax(seed):
    ours = optim.Adafactor(rate=0.1, min_dim_size=4, stacked=())
    theirs = optax.adafactor(learning_rate=0.1, min_dim_size_to_factor=4)
    shapes = TIED[seed::16]
    dims = [tuple(mx.Dim(f"side{i}", n) for i, n in enumerate(shape)) for shape in shapes]
    params, grads = ([draw(d, seed + i) for d in dims] for i in (0, 10))

    found, _ = steps_of(ours, params, [grads, params])

    values, state = array(params), theirs.init(array(params))
    for g in (grads, params):
        updates, state = jax.jit(theirs.update)(array(g), state, values)
        values = optax.apply_updates(values, updates)
    for shape, x, y in zip(shapes, found, values):
        np.testing.assert_allclose(x.numpy(), y, rtol=2e-4, atol=1e-5, err_msg=str(shape))


@pytest.mark.parametrize(
    "layout", some(["", "side0:rows", "side2:cols", "side0:cols side1:rows"], "side0:cols side1:rows")
)
def test_equal_dims_under_every_layout(layout):
    dims = mx.dims(side0=4, side1=8, side2=4)
    optimizer = optim.Adafactor(rate=0.1, min_dim_size=4)
    params, grads = draw(dims, 0), draw(dims, 1)
    step = lambda p, g: optimizer.apply(g, optimizer.init(p), p)[0]  # noqa: E731

    found = mx.spmd(step, mx.Mesh("rows:2 cols:4"), mx.Layout(layout, optimizer="" if layout else "side0:rows"))

    np.testing.assert_allclose(found(params, grads).numpy(), step(params, grads).numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dims", [mx.dims(high=65536, wide=32768), mx.dims(long=2**33 + 7, kept=2)], ids=str)
def test_parameters_beyond_32_bits(dims):
    given = mx.param(mx.tensor(jax.ShapeDtypeStruct([d.size for d in dims], np.float32), dims))
    optimizer = optim.Adafactor(min_dim_size=2)
    step = lambda p, g: optimizer.apply(g, optimizer.init(p), p)[0]  # noqa: E731
    layout = mx.Layout("high:data wide:model", params="long:data", optimizer="long:model")

    assert mx.spmd(step, mx.Mesh("data:64 model:64", abstract=True), layout).trace(given, given).results.dims == dims


test_messages = pinned(
    {
        "a name for a rate": (
            mx.ArgumentError,
            lambda: optim.Adafactor("cosine"),
            """
            a learning rate is a number or a function of the step, not 'cosine'.
              fix: make a function with optim.schedules.by_name.
            """,
        ),
        "a clip of 0": (
            mx.ArgumentError,
            lambda: optim.Adafactor(0.1, clip=0.0),
            """
            updates cannot be clipped to a root mean square of 0.0.
              fix: choose a positive number, or None for no clipping.
            """,
        ),
        "a momentum of 1": (
            mx.ArgumentError,
            lambda: optim.Adafactor(0.1, momentum=1.0),
            """
            a momentum is at least 0 and less than 1, not 1.0.
              fix: for example 0.9, or None for no momentum.
            """,
        ),
        "a stack of nothing": (
            mx.ArgumentError,
            lambda: optim.Adafactor(0.1, stacked="row").init(MATRIX),
            """
            no parameter is stacked along 'row'.
              fix: did you mean "rows"?
            """,
        ),
        "an array": (
            mx.ShapeError,
            lambda: optim.Adafactor(0.1).init({"w": jnp.zeros((2, 3))}),
            """
            optim.Adafactor takes tensors, not an array.
              values: float32[2, 3]
              rule: an array takes part in an operation through the names of its dims.
              fix: name them: mx.tensor(array, "batch hidden").
            """,
        ),
    }
)
