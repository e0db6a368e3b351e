"""Mesh-TensorFlow's defects that ours must not have, and what is kept of it on purpose.

Elsewhere: reshapes (invariants/test_reshapes.py), trace size (test_communication.py), its numbers (golden/).
"""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshax as mx
from example_tensors import counting
from extent import some
from meshax import optim

batch, length, hidden = mx.dims(batch=6, length=4, hidden=10)
mx.Dim.declare({"items": "length, renamed", "units": "hidden, renamed"})
mesh = mx.Mesh("rows:2 cols:4")
LAYOUTS = [None, "", "hidden:cols", "hidden:rows+cols", "batch:cols hidden:rows"]


def under(layout, fn, *args):
    """Runs outside a program if there is no layout."""
    return fn(*args) if layout is None else mx.spmd(fn, mesh, layout)(*args)


@pytest.mark.parametrize("rules", ["hiden:cols", "hidden:clos", "batch:rows hidden:col"])
def test_a_typo_in_a_rule_is_an_error(rules):
    with pytest.raises(mx.LayoutError, match="did you mean"):
        mx.spmd(lambda x: x, mesh, rules)


@pytest.mark.parametrize(
    "make",
    [
        lambda: mx.dims("hidden:10 hidden:10"),
        lambda: mx.zeros((hidden, hidden)),
        lambda: mx.tensor(np.zeros((10, 10)), "hidden hidden"),
        lambda: counting(batch, hidden).rename(batch="hidden"),
        lambda: mx.einsum(counting(batch, hidden), out=(hidden, hidden)),
    ],
)
def test_two_dims_of_one_name_are_an_error(make):
    with pytest.raises(mx.DimError, match="one shape has two dims of the name 'hidden'."):
        make()


@pytest.mark.parametrize("size", some([1, 3, 8, 13], 3))
def test_sizes_need_not_divide_and_a_dim_may_have_several_axes(size):
    dim = mx.Dim("hidden", size)
    x, w = counting(batch, dim) + 1, counting(dim, length) + 1

    for layout in LAYOUTS[1:]:
        product, mean = under(layout, lambda x, w: (mx.einsum(x, w, over="hidden"), mx.mean(x)), x, w)
        np.testing.assert_allclose(product.numpy(), x.numpy() @ w.numpy(), rtol=1e-6)
        np.testing.assert_allclose(float(mean), x.numpy().mean(), rtol=1e-6)


@pytest.mark.parametrize("layout", some(LAYOUTS, None, "batch:cols hidden:rows"))
def test_slice_pad_concat_and_stack_are_legal_along_a_split_dim(layout):
    def fn(x):
        first, last = mx.slice(x, hidden, 0, 4), mx.slice(x, hidden, 7, 3)
        joined = mx.concat([mx.pad(last, "hidden", 1, 0), first], "hidden")
        return joined, mx.stack(mx.unstack(x, hidden)[::-1], hidden)

    x = counting(batch, hidden)
    joined, turned = under(layout, fn, x)

    wanted = np.concatenate([np.zeros((6, 1)), x.numpy()[:, 7:], x.numpy()[:, :4]], axis=1)
    np.testing.assert_array_equal(joined.numpy(), wanted)
    np.testing.assert_array_equal(turned.numpy(), x.numpy().T[::-1])


@pytest.mark.parametrize("layout", ["", "hidden:cols", "length:cols"])
def test_gather_scatter_and_cumsum_multiply_nothing(layout):
    def fn(x, ids):
        return mx.gather(x, ids, hidden), mx.scatter_add(x, ids, mx.ones(length), hidden), mx.cumsum(x, hidden)

    ids = mx.tensor(np.int32([0, 9, 3, 3]), length)
    x = counting(batch, hidden)
    program = mx.spmd(fn, mesh, layout)

    text = str(program.trace(x, ids).jaxpr)
    assert " = gather[" in text and " = scatter-add[" in text and "dot_general" not in text
    taken, added, sums = program(x, ids)
    np.testing.assert_array_equal(taken.numpy(), x.numpy()[:, [0, 9, 3, 3]])
    np.testing.assert_array_equal(added.numpy(), x.numpy() + np.float32([1, 0, 0, 2, 0, 0, 0, 0, 0, 1]))
    np.testing.assert_array_equal(sums.numpy(), x.numpy().cumsum(1))


@pytest.mark.parametrize("layout", some(LAYOUTS, None, "batch:cols hidden:rows"))
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_where_leaks_nothing_from_the_branch_not_taken(layout, bad):
    def loss(taken, other):
        return mx.sum(mx.where(mx.arange(hidden) < 11, taken * taken, other))

    args = counting(batch, hidden), mx.full(hidden, bad)
    value, (of_taken, of_other) = under(layout, mx.value_and_grad(loss, argnums=(0, 1)), *args)

    assert float(value) == (args[0].numpy() ** 2).sum()
    np.testing.assert_array_equal(of_taken.numpy(), 2 * args[0].numpy())
    np.testing.assert_array_equal(of_other.numpy(), np.zeros(10))


@pytest.mark.parametrize("exponent", [3, 3.0, 2, -1, mx.tensor(3.0, ""), mx.tensor(2, "")], ids=str)
def test_a_power_of_a_negative_number(exponent):
    x = mx.tensor(np.float32([-2, -1.5, 1, -3]), length)
    number = float(exponent)

    value, gradient = mx.value_and_grad(lambda x: mx.sum(x**exponent))(x)

    np.testing.assert_allclose(float(value), (x.numpy() ** number).sum(), rtol=1e-6)
    np.testing.assert_allclose(gradient.numpy(), number * x.numpy() ** (number - 1), rtol=1e-6)


@pytest.mark.parametrize("layout", some(LAYOUTS, None, "batch:cols hidden:rows"))
@pytest.mark.parametrize("op", [mx.max, mx.min])
def test_ties_share_the_gradient_of_an_extremum(layout, op):
    sign = 1 if op is mx.max else -1
    x = np.tile(np.float32([1, 7, 7, 2, 7, 0, 3, 1, 7, 5]), (6, 1))
    x[5] = 4  # all the same

    gradient = under(layout, mx.grad(lambda x: mx.sum(op(x, hidden))), mx.tensor(sign * x, (batch, hidden)))

    np.testing.assert_allclose(gradient.numpy(), np.where(x == 7, 1 / 4, 0) + np.where(x == 4, 1 / 10, 0), rtol=1e-6)


@pytest.mark.parametrize("layout", some(LAYOUTS, None, "batch:cols hidden:rows"))
@pytest.mark.parametrize("op", [mx.maximum, mx.minimum])
def test_gradients_under_broadcasting_have_the_shape_of_the_input(layout, op):
    sign = 1 if op is mx.maximum else -1
    x, y = counting(batch, hidden) * sign, mx.full(hidden, 12.0) * sign

    of_x, of_y = under(layout, mx.grad(lambda x, y: mx.sum(op(x, y)), argnums=(0, 1)), x, y)

    share = (x.numpy() * sign > 12) + 0.5 * (x.numpy() * sign == 12)
    assert (of_x.dims, of_y.dims) == ((batch, hidden), (hidden,))
    np.testing.assert_array_equal(of_x.numpy(), share)
    np.testing.assert_array_equal(of_y.numpy(), (1 - share).sum(0))


@pytest.mark.parametrize(
    "layout", ["batch:rows", "batch:rows hidden:cols", mx.Layout("batch:rows", params="hidden:rows")], ids=str
)
def test_training_is_deterministic(layout):
    """Two runs, from the first trace on, give the same bits; under every layout about the same numbers."""
    optimizer = optim.from_optax(optax.sgd(0.1, momentum=0.9))
    draw = lambda n, *dims: mx.param(mx.random.normal(jax.random.key(n), dims))  # noqa: E731
    w, x = (
        {"in": draw(0, length, hidden), "out": draw(1, hidden, length)},
        mx.random.normal(jax.random.key(2), (batch, length)),
    )

    def loss(w, x, key):
        h = mx.random.dropout(key, mx.tanh(mx.einsum(x, w["in"], over=length)), 0.2)
        return mx.mean(mx.square(mx.einsum(h, w["out"], over=hidden) - x))

    def step(w, state, x, key):
        value, grads = mx.value_and_grad(loss)(w, x, key)
        return *optimizer.apply(grads, state, w), value

    def train(run):
        weights, state, losses = w, run(optimizer.init)(w), []
        program = run(step)
        for n in range(10):
            weights, state, value = program(weights, state, x, jax.random.key(n))
            losses.append(value.numpy().item())
        return losses, [leaf.numpy() for leaf in weights.values()]

    on_mesh = lambda fn: mx.spmd(fn, mesh, layout)  # noqa: E731
    (first, weights), (second, again), (whole, _) = train(on_mesh), train(on_mesh), train(lambda fn: fn)

    assert first == second
    assert all(a.tobytes() == b.tobytes() for a, b in zip(weights, again))
    np.testing.assert_allclose(first, whole, rtol=1e-5)
    assert first[-1] < first[0]


def test_random_numbers_are_seeded_and_the_same_under_every_layout():
    def draw(key):
        return mx.random.normal(key, (batch, hidden)), mx.random.bernoulli(key, hidden, 0.3)

    drawn = [under(layout, draw, jax.random.key(5)) for layout in LAYOUTS]
    other, _ = draw(jax.random.key(6))

    assert len({x.numpy().tobytes() for x, _ in drawn}) == len({x.numpy().tobytes() for _, x in drawn}) == 1
    assert not np.any(drawn[0][0].numpy() == other.numpy())


@pytest.mark.parametrize("layout", some(LAYOUTS, None, "batch:cols hidden:rows"))
def test_scan_and_cond_differentiate(layout):
    def loss(x, w):
        def body(carry, x):
            grown = mx.cond(mx.sum(x) > 20, lambda c: c * w, lambda c: c + w, carry)
            return mx.tanh(grown + x / 50), mx.sum(grown)

        carry, sums = mx.scan(body, mx.zeros(hidden), x, over=batch)
        return mx.sum(carry) + mx.sum(sums)

    def wanted(x, w):
        def body(carry, x):
            grown = jnp.where(jnp.sum(x) > 20, carry * w, carry + w)
            return jnp.tanh(grown + x / 50), jnp.sum(grown)

        carry, sums = jax.lax.scan(body, jnp.zeros(10), x)
        return jnp.sum(carry) + jnp.sum(sums)

    x, w = counting(batch, hidden) / 20, mx.cos(counting(hidden))
    gradients = under(layout, mx.grad(loss, argnums=(0, 1)), x, w)

    for got, expected in zip(gradients, jax.grad(wanted, argnums=(0, 1))(x.numpy(), w.numpy())):
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-5, atol=1e-6)


MOVES = {  # a function of [length:4, hidden:10/cols], and the one collective that it takes
    "all-to-all": lambda x: x.rename(hidden="units", length="items"),
    "all-gather": lambda x: x.rename(hidden="units"),
    "all-reduce": lambda x: mx.sum(x, hidden),
    "reduce-scatter": lambda x: mx.sum(x, hidden).rename(length="items"),
    "permute": lambda x: mx.shift(x, hidden, 1),
}


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16, jnp.int32])
@pytest.mark.parametrize("kind", MOVES)
def test_each_collective_is_its_own_and_in_its_own_dtype(kind, dtype):
    program = mx.spmd(MOVES[kind], mx.Mesh("cols:4", abstract=True), "hidden:cols items:cols")
    x = mx.tensor(jax.ShapeDtypeStruct((4, 10), dtype), (length, hidden))

    found = Counter((c.kind, c.dtype) for c in program.explain(x).collectives)

    if dtype == jnp.float16 and kind in ("all-reduce", "reduce-scatter"):  # whose parts may overflow where it does not
        assert found == {("all-reduce", "float32"): 1}
    else:
        assert found == {(kind, jnp.dtype(dtype).name): 1}


def test_large_integers_are_summed_exactly():
    large = mx.tensor(np.full(10, 2**24 + 1, np.int32), hidden)

    assert int(under("hidden:cols", mx.sum, large)) == 10 * (2**24 + 1)


# Kept on purpose.


@pytest.mark.parametrize("layout", some(LAYOUTS, None, "batch:cols hidden:rows"))
def test_an_index_out_of_range_gathers_zeros_and_is_one_hot_nowhere(layout):
    ids = mx.tensor(np.int32([-1, 0, 9, 10]), length)

    taken, hot = under(layout, lambda x, i: (mx.gather(x, i, hidden), mx.one_hot(i, hidden)), counting(hidden) + 1, ids)

    np.testing.assert_array_equal(taken.numpy(), [0, 1, 10, 0])
    np.testing.assert_array_equal(hot.numpy(), np.eye(12)[[10, 0, 9, 10], :10])


@pytest.mark.parametrize("layout", some(LAYOUTS, None, "batch:cols hidden:rows"))
def test_broadcasting_is_by_name_the_left_dims_first(layout):
    x, y = counting(hidden, batch), counting(length, hidden)

    total = under(layout, lambda x, y: x - y, x, y)

    assert total.dims == (hidden, batch, length)
    np.testing.assert_array_equal(total.numpy(), x.numpy()[:, :, None] - y.numpy().T[:, None, :])


@pytest.mark.parametrize("separator", [";", ",", " "])
def test_parts_are_separated_by_a_semicolon_a_comma_or_a_space(separator):
    assert mx.dims(separator.join(["batch:6", "hidden:10"])) == (batch, hidden)
    assert mx.Mesh(separator.join(["rows:2", "cols:4"])).axes == {"rows": 2, "cols": 4}
    assert mx.Layout(separator.join(["batch:rows", "hidden:cols"])) == mx.Layout({"batch": "rows", "hidden": "cols"})
