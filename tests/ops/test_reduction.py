"""Reductions over dims."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshax as mx
from example_tensors import counting
from extent import some
from meshax.layout import Setting
from meshax.testing import place_with_garbage
from messages import pinned

batch, length, hidden = mx.dims(batch=6, length=4, hidden=10)

x = counting(batch, length, hidden)


@pytest.mark.parametrize("op", ["sum", "mean", "var", "prod", "max", "min"])
@pytest.mark.parametrize(
    ("over", "axis"), [(None, None), (length, 1), ("hidden batch", (2, 0)), ((batch, "length"), (0, 1))]
)
def test_over_some_dims_or_all(op, over, axis):
    small = x / 1000 + 0.9

    reduced = getattr(mx, op)(small, over)

    np.testing.assert_allclose(reduced.numpy(), getattr(np, op)(small.numpy(), axis=axis), rtol=2e-4)


@pytest.mark.parametrize("name", ["all", "any", "argmax", "argmin", "max", "mean", "min", "prod", "sum", "var"])
def test_methods_are_the_functions(name):
    x = counting(*mx.dims("a:3 b:4"))
    for over in [("b",)] if name.startswith("arg") else [(), ("b",), (["b", "a"],)]:
        wanted = getattr(mx, name)(x, *over)
        result = getattr(x, name)(*over)
        assert result.dims == wanted.dims and result.numpy().tobytes() == wanted.numpy().tobytes()
    function, axis = getattr(np, name), {"axis": 1}
    np.testing.assert_array_equal(function(x, **axis), function(x.numpy(), **axis))  # numpy sees the value


def test_means_of_integers_are_floats():
    mean = mx.mean(counting(batch, dtype=np.int32))

    assert (mean.dtype, float(mean)) == (np.float32, 2.5)


def test_the_first_of_equal_extrema_counts():
    x = mx.tensor([[3.0, 7.0, 7.0], [1.0, 1.0, 0.0]], "row col")

    np.testing.assert_array_equal(mx.argmax(x, "col").numpy(), [1, 0])
    np.testing.assert_array_equal(mx.argmin(x, "col").numpy(), [0, 2])


@pytest.mark.parametrize(("dtype", "size"), [("bfloat16", 2), ("float16", 2), ("float32", 4)])
@pytest.mark.parametrize("op", ["max", "min"])
def test_extrema_across_processors_are_exact_and_no_wider_than_their_dtype(op, dtype, size):
    columns = [[1.5, -2.5, 0, -0.0], [np.inf, -np.inf, 3, 4], [1, np.nan, 3, 4], [1, 2, -np.nan, 5], [-1, -3, -2, -3e4]]
    given = mx.tensor(np.float32(columns).T, "row col").astype(dtype)
    program = mx.spmd(lambda x: getattr(mx, op)(x, "row"), mx.Mesh("rows:4"), "row:rows")

    (sent,) = program.explain(given).collectives
    assert (sent.kind, sent.bytes) == ("all-reduce", 5 * size)
    wanted = getattr(np, op)(given.numpy().astype(np.float32), axis=0)
    np.testing.assert_array_equal(program(given).numpy().astype(np.float32), wanted)


def test_a_reduced_parameter_is_stored_as_one():
    assert mx.sum(mx.param(x), hidden).role == "param"


mesh = mx.Mesh("rows:2 cols:4")
even, odd = mx.dims(even=8, odd=7)
SPLITS = ["", "even:rows odd:rows", "even:cols odd:cols", "even:rows+cols odd:rows+cols"]


def under(layout, fn, *args):
    """Runs a program on arguments whose padding is NaN, or an absurd integer."""
    setting = Setting(mesh, mx.Layout(layout))
    return mx.spmd(fn, mesh, layout)(*(place_with_garbage(x, setting) for x in args))


@pytest.mark.parametrize("layout", some(SPLITS, SPLITS[2]))
@pytest.mark.parametrize("dim", some([even, odd], odd), ids=str)
@pytest.mark.parametrize("op", ["max", "min", "logsumexp"])
def test_second_derivatives_of_extrema(op, dim, layout):
    def second(extremum):
        first = mx.grad(lambda x: mx.square(extremum(x * x - 3.0 * x)))
        return mx.grad(lambda x: mx.sum(mx.square(first(x)) * x))

    reference = {"max": jnp.max, "min": jnp.min, "logsumexp": jax.nn.logsumexp}[op]
    first = jax.grad(lambda a: reference(a * a - 3 * a) ** 2)
    wanted = jax.grad(lambda a: jnp.sum(first(a) ** 2 * a))(jnp.arange(dim.size, dtype=jnp.float32))

    found = under(layout, second(getattr(mx, op)), counting(dim))

    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layout", some(SPLITS, *SPLITS[2:]))
@pytest.mark.parametrize("dim", some([even, odd], odd), ids=str)
@pytest.mark.parametrize("op", ["max", "min", "logsumexp"])
def test_second_derivatives_of_extrema_in_a_loop(op, dim, layout):
    """JAX mistakes the constants of a `custom_vjp` for its operands there: NaN, or an error about shapes."""

    def second(turns, total, grad, extremum):
        first = grad(lambda x: total(turns(lambda x: (x * extremum(x) - 0.1 * x * x) / 4, x) ** 2))
        return grad(lambda x: total(first(x) ** 2 * x))

    reference = {"max": jnp.max, "min": jnp.min, "logsumexp": jax.nn.logsumexp}[op]
    by_hand = second(lambda fn, x: fn(fn(x)), jnp.sum, jax.grad, reference)
    turn = mx.Dim("turn", 2)
    in_a_loop = second(
        lambda fn, x: mx.scan(lambda x, _: (fn(x), None), x, None, over=turn)[0], mx.sum, mx.grad, getattr(mx, op)
    )
    x = counting(dim) - 2.5

    found = under(layout, in_a_loop, x)

    wanted = by_hand(jnp.asarray(x.numpy()))
    np.testing.assert_allclose(found.numpy(), wanted, rtol=2e-4, atol=2e-4 * np.abs(wanted).max())


FLOAT8 = [name for name in dir(jnp) if name.startswith("float8")]
NARROW = [*FLOAT8, "float4_e2m1fn"]


def eighths(dtype, *dims):
    """Numbers below zero, where there are any, so that zeros in padding would win."""
    count = np.prod([dim.size for dim in dims])
    values = 2.0 ** -(np.arange(count) % 11) if "e8m0" in dtype else -(1 + np.arange(count) * 5 % 23) / 8
    return mx.tensor(jnp.asarray(values.reshape([dim.size for dim in dims]), jnp.float32).astype(dtype), dims)


@pytest.mark.parametrize(
    "layout", some(["", "odd:cols", "odd:rows+cols", "batch:cols", "batch:rows odd:cols"], "odd:cols")
)
@pytest.mark.parametrize("dtype", some(NARROW, "float8_e4m3fnuz", "float8_e5m2", "float4_e2m1fn"))
def test_floats_of_a_byte_or_less(dtype, layout):
    given = eighths(dtype, batch, odd)
    wide = given.numpy().astype(np.float32)

    def reduce(x):
        ops = (mx.max, mx.min, mx.sum, mx.mean, mx.prod, mx.logsumexp, mx.argmax, mx.argmin)
        return [op(x, odd) for op in ops]

    found = under(layout, reduce, given)

    wanted = [f(wide, axis=1) for f in (np.max, np.min, np.sum, np.mean, np.prod)]
    for x, y in zip(found, wanted):
        assert x.dtype == given.dtype
        np.testing.assert_array_equal(x.numpy().astype(np.float32), y.astype(given.dtype).astype(np.float32))
    alone = mx.logsumexp(given, odd)
    np.testing.assert_array_equal(found[5].numpy().astype(np.float32), alone.numpy().astype(np.float32))
    np.testing.assert_array_equal(found[6].numpy(), np.argmax(wide, axis=1))
    np.testing.assert_array_equal(found[7].numpy(), np.argmin(wide, axis=1))


@pytest.mark.parametrize("layout", some(["", "length:rows", "length:cols", "length:rows+cols"], "length:cols"))
def test_halves_overflow_only_where_the_result_does(layout):
    same = mx.tensor(np.full(4, 60000, np.float16), length)
    mixed = mx.tensor(np.float16([60000, 60000, -60000, -59968]), length)
    factors = mx.tensor(np.float16([1000, 500, 0.001, 0.25]), length)

    found = under(
        layout, lambda s, m, f: [mx.mean(s), mx.mean(m), mx.sum(m), mx.sum(s), mx.prod(f)], same, mixed, factors
    )

    assert [x.dtype for x in found] == [np.float16] * 5
    np.testing.assert_allclose([float(x) for x in found], [60000, 8, 32, np.inf, 125], rtol=1e-3)


@pytest.mark.parametrize("layout", some(["", "length:rows", "length:cols"], "length:rows"))
def test_means_of_bfloat16_are_added_up_in_float32(layout):
    values = (256 + np.arange(40) % 3).reshape(4, 10)
    given = mx.tensor(jnp.asarray(values, jnp.bfloat16), (length, hidden))

    mean = under(layout, mx.mean, given)

    assert mean.dtype == jnp.bfloat16
    np.testing.assert_allclose(float(mean), values.mean(), rtol=2**-8)


def test_parts_of_a_mean_are_pending():
    seen = []

    def mean(x):
        seen.append(repr(mx.mean(x)))
        return mx.mean(x) + mx.mean(x * x)

    given = mx.tensor(jnp.asarray([1, 2, 3, 4], jnp.bfloat16), length)

    assert [c.kind for c in mx.spmd(mean, mesh, "length:cols").explain(given).collectives] == ["all-reduce"]
    assert set(seen) == {"Tensor[] bfloat16 pending over cols"}


@pytest.mark.parametrize("layout", some(["", "hidden:rows", "hidden:cols", "batch:cols hidden:rows"], "hidden:cols"))
def test_a_sum_of_a_sum_wraps_around_in_its_own_dtype(layout):
    given = mx.tensor((np.arange(60) * 7 % 100).reshape(6, 10).astype(np.int8), (batch, hidden))

    found = under(layout, lambda x: mx.sum(mx.einsum(x, x, over=hidden)), given)

    wrapped = (given.numpy().astype(np.int64) ** 2).sum(1).astype(np.int8)
    assert int(found) == int(wrapped.astype(np.int32).sum())


HUGE = mx.Mesh("data:64 model:64", abstract=True)
high, wide, long = mx.dims(high=65536, wide=32768, long=2**33 + 7)
REDUCTIONS = ["sum", "mean", "var", "max", "prod", "logsumexp"]


@pytest.mark.parametrize("layout", ["", "high:data wide:model long:data+model", "long:model"])
@pytest.mark.parametrize("dims", [(high, wide), (long,)], ids=str)
def test_more_elements_than_32_bits_count(dims, layout):
    given = mx.tensor(jax.ShapeDtypeStruct([dim.size for dim in dims], np.float32), dims)

    def reduce(x):
        return mx.grad(lambda x: mx.mean(x * x))(x), [getattr(mx, op)(x) for op in REDUCTIONS]

    gradient, reduced = mx.spmd(reduce, HUGE, layout).trace(given).results

    assert gradient.dims == dims
    assert [x.dims for x in reduced] == [()] * len(REDUCTIONS)


MISTAKES = {
    "places that do not fit": (
        mx.ShapeError,
        lambda: mx.spmd(lambda: mx.argmax(mx.zeros(long), "long"), HUGE, "long:data+model").trace(),
        """
        mx.argmax counts places along dim long:8589934599, which do not fit into int32.
          rule: places along a dim are int32: at most 2147483648 of them.
          fix: use two dims in its place, for example of 65536 and the rest.
        """,
    ),
    "a dim that is not there": (
        mx.ShapeError,
        lambda: mx.sum(x, over="lenght"),
        """
        there is no dim 'lenght' here.
          values: [batch:6, length:4, hidden:10]
          fix: did you mean "length"?
        """,
    ),
    "a dim of another size": (
        mx.ShapeError,
        lambda: mx.max(x, over=mx.Dim("length", 5)),
        """
        dim 'length' has size 4 here, not 5.
          values: [batch:6, length:4, hidden:10]
          rule: dims of one name have one size.
          fix: use the dim's name, or x.dim('length'), where the size may vary.
        """,
    ),
    "a dim twice": (
        mx.DimError,
        lambda: mx.mean(x, over=(length, "length")),
        """
        one shape has two dims of the name 'length'.
          values: [length:4, length:4]
          rule: the dims of a tensor have different names.
          fix: name it once; if another dim is meant, rename that first: x.rename(length="memory_length").
        """,
    ),
    "a number instead of a dim": (
        mx.DimError,
        lambda: mx.sum(x, over=0),
        """
        not a dim, nor the name of one: 0.
          rule: dims are named, not numbered.
          fix: name them, or pass dims made by mx.dims("batch:128 hidden:1024").
        """,
    ),
    "the place over a number": (
        mx.DimError,
        lambda: mx.argmin(x, over=-1),
        """
        not a dim, nor the name of one: -1.
          rule: dims are named, not numbered.
          fix: name them, or pass dims made by mx.dims("batch:128 hidden:1024").
        """,
    ),
    "the place over two dims": (
        mx.ShapeError,
        lambda: mx.argmax(x, over=(batch, length)),
        """
        one dim is meant here, not 2.
          values: [batch:6, length:4, hidden:10]
          fix: name one dim.
        """,
    ),
    "the place over no dim": (
        mx.ShapeError,
        lambda: mx.argmin(x, over=()),
        """
        one dim is meant here, not 0.
          values: [batch:6, length:4, hidden:10]
          fix: name one dim.
        """,
    ),
    "the place over a dim that is not there": (
        mx.ShapeError,
        lambda: mx.argmax(x, over="vocab"),
        """
        there is no dim 'vocab' here.
          values: [batch:6, length:4, hidden:10]
          fix: known names: batch, hidden, length.
        """,
    ),
}

test_messages = pinned(MISTAKES)


@pytest.mark.parametrize("layout", ["", "hidden:cols", "batch:rows"])
def test_the_variance_of_complex_numbers_is_real(layout):
    z = np.arange(24.0, dtype=np.float32).reshape(4, 6) * np.exp(1j * np.arange(24.0).reshape(4, 6))
    x = mx.tensor(z.astype(np.complex64), "batch hidden")
    got = mx.spmd(lambda x: mx.var(x, "hidden"), mx.Mesh("rows:2 cols:4"), layout)(x).numpy()
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, np.var(z, axis=1), rtol=1e-5)
