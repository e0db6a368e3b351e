"""Top-k, sort and cumulative sums."""

import jax.numpy as jnp
import numpy as np
import pytest

import meshax as mx
from example_tensors import counting
from extent import some
from messages import pinned

batch, length, hidden, k = mx.dims(batch=3, length=4, hidden=10, k=4)
mesh = mx.Mesh("rows:2 cols:4")
LAYOUTS = ["", "hidden:cols", "hidden:rows+cols", "batch:rows hidden:cols", "hidden:rows k:cols", "hidden:cols k:cols"]

SMALL_FLOATS = [name for name in dir(jnp) if name.startswith("float8")] + ["float4_e2m1fn"]
ALONG = ["", "hidden:rows", "hidden:cols", "hidden:rows+cols"]
TIES = np.float32([[2, 7, 7, 1, 7, 2, 0, 7, 7, 2], [5] * 10, [-np.inf, 3, -np.inf, 3, 3, 0, 0, 3, np.inf, 3]])
x, ties = counting(batch, length), mx.tensor(TIES, (batch, hidden))


def under(layout, fn, *args):
    return fn(*args) if layout is None else mx.spmd(fn, mesh, layout)(*args)


@pytest.mark.parametrize("layout", [None, *some(LAYOUTS, "batch:rows hidden:cols")])
@pytest.mark.parametrize("count", [1, 4, 10])
def test_top_k_descends_and_the_first_of_ties_comes_first(layout, count):
    values, places = under(layout, lambda x: mx.top_k(x, over=hidden, k=mx.Dim("k", count)), ties)

    order = np.argsort(-TIES, axis=1, kind="stable")[:, :count]
    assert values.dims == places.dims == (batch, mx.Dim("k", count))
    np.testing.assert_array_equal(places.numpy(), order.astype(np.int32), strict=True)
    np.testing.assert_array_equal(values.numpy(), np.take_along_axis(TIES, order, 1), strict=True)


@pytest.mark.parametrize("layout", [None, *some(["hidden:cols", "hidden:rows+cols"], "hidden:cols")])
def test_top_k_of_nothing_but_the_lowest_value_names_places_of_the_dim(layout):
    lowest = mx.full(hidden, -np.inf)

    _, places = under(layout, lambda x: mx.top_k(x, over=hidden, k=mx.Dim("k", 10)), lowest)

    np.testing.assert_array_equal(places.numpy(), np.arange(10))


@pytest.mark.parametrize("layout", [None, *some(["hidden:cols", "hidden:rows+cols"], "hidden:cols")])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_nan_of_either_sign_is_the_largest(layout, dtype):
    given = np.float32([1, -np.nan, 3, -np.inf, np.nan, 0, -np.inf, -np.inf, -np.nan, 2])
    assert np.signbit(given[[1, 8]]).all() and not np.signbit(given[4])

    def order(x):
        return *mx.top_k(x, over=hidden, k=mx.Dim("k", 10)), mx.argsort(x, hidden), mx.argmax(x, hidden)

    values, places, ascending, first = under(layout, order, mx.tensor(given, hidden).astype(dtype))

    np.testing.assert_array_equal(places.numpy(), [1, 4, 8, 2, 9, 0, 5, 3, 6, 7])
    np.testing.assert_array_equal(values.numpy().astype(np.float32), given[places.numpy()])
    np.testing.assert_array_equal(ascending.numpy(), [3, 6, 7, 5, 0, 9, 2, 1, 4, 8])
    assert int(first) == 1


@pytest.mark.parametrize("layout", [None, *some(["hidden:cols", "hidden:rows+cols"], "hidden:cols")])
def test_top_k_of_nothing_but_negative_nan_names_places_of_the_dim(layout):
    _, places = under(layout, lambda x: mx.top_k(x, over=hidden, k=mx.Dim("k", 10)), mx.full(hidden, -np.nan))

    np.testing.assert_array_equal(places.numpy(), np.arange(10))


def test_k_stands_where_the_dim_stood():
    cube = counting(batch, hidden, length)

    values, places = mx.top_k(cube, over="hidden", k=k)

    assert values.dims == places.dims == (batch, k, length)
    np.testing.assert_array_equal(values.numpy(), cube.numpy()[:, :5:-1])
    np.testing.assert_array_equal(places.numpy()[0, :, 0], [9, 8, 7, 6])


def test_k_may_have_the_name_of_the_dim():
    assert mx.top_k(ties, over=hidden, k=mx.Dim("hidden", 2))[0].dims == (batch, mx.Dim("hidden", 2))


@pytest.mark.parametrize("layout", [None, "hidden:cols", "hidden:cols batch:rows"])
def test_gradients_go_to_the_elements_chosen(layout):
    weights = mx.tensor(np.float32([[1, 2, 3, 4]]).repeat(3, 0), (batch, k))

    gradient = under(layout, mx.grad(lambda x: mx.sum(mx.top_k(x, over=hidden, k=k)[0] * weights)), ties)

    wanted = np.zeros_like(TIES)
    np.put_along_axis(wanted, np.argsort(-TIES, axis=1, kind="stable")[:, :4], weights.numpy(), 1)
    np.testing.assert_array_equal(gradient.numpy(), wanted)


@pytest.mark.parametrize("layout", [None, *some(LAYOUTS[:4], "batch:rows hidden:cols")])
def test_sort_ascends_and_ties_keep_their_order(layout):
    ordered, places = under(layout, lambda x: (mx.sort(x, hidden), mx.argsort(x, "hidden")), ties)

    assert ordered.dims == places.dims == (batch, hidden)
    np.testing.assert_array_equal(ordered.numpy(), np.sort(TIES, axis=1), strict=True)
    order = np.argsort(TIES, axis=1, kind="stable").astype(np.int32)
    np.testing.assert_array_equal(places.numpy(), order, strict=True)


@pytest.mark.parametrize("layout", [None, "hidden:cols"])
def test_places_undo_a_sort(layout):
    def sorted_by_places(x):
        return mx.gather(x, mx.argsort(x, hidden).rename(hidden="place"), hidden)

    made = under(layout, sorted_by_places, ties)

    np.testing.assert_array_equal(made.numpy(), np.sort(TIES, axis=1))


SUMS = {
    (False, False): [1, 3, 6, 10, 15, 21, 28, 36, 45, 55],
    (True, False): [0, 1, 3, 6, 10, 15, 21, 28, 36, 45],
    (False, True): [55, 54, 52, 49, 45, 40, 34, 27, 19, 10],
    (True, True): [54, 52, 49, 45, 40, 34, 27, 19, 10, 0],
}


@pytest.mark.parametrize("layout", [None, *some(LAYOUTS[:4], "batch:rows hidden:cols")])
@pytest.mark.parametrize("dtype", some([jnp.float32, jnp.int32, jnp.int8, jnp.bfloat16], jnp.int8))
def test_cumulative_sums(layout, dtype):
    def all_four(x):
        return [mx.cumsum(x, "hidden", exclusive=exclusive, reverse=reverse) for exclusive, reverse in SUMS]

    made = under(layout, all_four, (counting(hidden) + 1).astype(dtype))

    for sums, wanted in zip(made, SUMS.values()):
        assert (sums.dims, sums.dtype) == ((hidden,), dtype)
        np.testing.assert_array_equal(sums.numpy(), np.array(wanted).astype(dtype))


@pytest.mark.parametrize("layout", [None, *some(["hidden:cols", "hidden:rows+cols"], "hidden:cols")])
def test_truth_values_are_counted(layout):
    sums = under(layout, lambda x: mx.cumsum(x > 3, hidden), counting(hidden))

    np.testing.assert_array_equal(sums.numpy(), np.int32([0, 0, 0, 0, 1, 2, 3, 4, 5, 6]), strict=True)


@pytest.mark.parametrize("layout", [None, *some(["hidden:cols", "hidden:rows+cols"], "hidden:cols")])
def test_an_infinite_element_is_left_out_of_its_own_exclusive_sum(layout):
    given = mx.tensor(np.float32([1, 2, 3, 4, np.inf, 5, 6, 7, 8, 9]), hidden)

    sums = under(layout, lambda x: mx.cumsum(x, hidden, exclusive=True), given)

    np.testing.assert_array_equal(sums.numpy(), [0, 1, 3, 6, 10] + 5 * [np.inf])


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.int8, jnp.uint8])
@pytest.mark.parametrize("layout", [None, "hidden:cols"])
def test_dtypes_are_kept(layout, dtype):
    def all_of_them(x):
        x = x.astype(dtype)
        values, places = mx.top_k(x, over=hidden, k=k)
        return values, mx.sort(x, hidden), places, mx.argsort(x, hidden)

    made = under(layout, all_of_them, counting(hidden))

    assert [x.dtype for x in made] == [dtype, dtype, jnp.int32, jnp.int32]
    np.testing.assert_array_equal(made[0].numpy(), np.array([9, 8, 7, 6], dtype))


@pytest.mark.parametrize("layout", some(LAYOUTS, "hidden:cols"))
@pytest.mark.parametrize("dtype", some(SMALL_FLOATS, "float8_e4m3fnuz", "float4_e2m1fn"))
def test_floats_of_a_byte_or_less(dtype, layout):
    values = 2.0 ** -(np.arange(30) % 7) if "e8m0" in dtype else -(1 + np.arange(30) * 7 % 11) / 8
    given = mx.tensor(jnp.asarray(values.reshape(3, 10), jnp.float32).astype(dtype), (batch, hidden))
    wide = given.numpy().astype(np.float32)

    def order(x):
        return *mx.top_k(x, over=hidden, k=k), mx.sort(x, hidden), mx.argsort(x, hidden), mx.cumsum(x, hidden)

    largest, places, ordered, order_, summed = under(layout, order, given)

    assert largest.dtype == ordered.dtype == summed.dtype == given.dtype
    first = np.argsort(-wide, axis=1, kind="stable")[:, :4]
    np.testing.assert_array_equal(places.numpy(), first)
    np.testing.assert_array_equal(largest.numpy(), np.take_along_axis(given.numpy(), first, 1))
    np.testing.assert_array_equal(order_.numpy(), np.argsort(wide, axis=1, kind="stable"))
    np.testing.assert_array_equal(ordered.numpy().astype(np.float32), np.sort(wide, axis=1))
    wanted = np.cumsum(wide, axis=1).astype(given.dtype)
    np.testing.assert_array_equal(summed.numpy().astype(np.float32), wanted.astype(np.float32))


@pytest.mark.parametrize("layout", [None, *some(ALONG, "hidden:cols")])
@pytest.mark.parametrize("dtype", some(["float8_e4m3fnuz", "float8_e5m2", "float16"], "float8_e4m3fnuz"))
def test_nan_is_the_largest_of_all_dtypes(layout, dtype):
    values = np.float32([1, np.nan, 3, 2, -1, 0, np.nan, 5, 4, 1])
    given = mx.tensor(jnp.asarray(values).astype(dtype), hidden)

    _, places = under(layout, lambda x: mx.top_k(x, over=hidden, k=k), given)

    np.testing.assert_array_equal(places.numpy(), [1, 6, 7, 8])


@pytest.mark.parametrize("layout", [None, *some(ALONG, "hidden:cols")])
def test_sums_of_halves_overflow_only_where_they_do(layout):
    values = [60000, 60000, -60000, -59968, 8, -60000, -60000, 60000, 60000, 1]

    summed = under(layout, lambda x: mx.cumsum(x, hidden), mx.tensor(np.float16(values), hidden))

    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(summed.numpy(), np.cumsum(values).astype(np.float16), strict=True)


@pytest.mark.parametrize("op", ["top_k", "argsort"])
def test_places_along_a_dim_beyond_32_bits(op):
    long = mx.Dim("long", 2**31 + 1)
    call = lambda: getattr(mx, op)(mx.zeros(long), long, *([k] if op == "top_k" else []))  # noqa: E731

    with pytest.raises(mx.ShapeError, match=f"mx.{op} counts places along dim long:2147483649, which do not fit"):
        mx.spmd(call, mx.Mesh("data:64", abstract=True), "long:data").trace()


MISTAKES = {
    "more than there are": (
        mx.ArgumentError,
        lambda: mx.top_k(x, over=length, k=mx.Dim("k", 5)),
        """
        dim length:4 does not have 5 largest elements.
          fix: choose a smaller k.
        """,
    ),
    "a k without a size": (
        mx.ShapeError,
        lambda: mx.top_k(x, over=length, k="k"),
        """
        mx.top_k does not know the size of 'k'.
          rule: a new tensor is made of dims, which have sizes.
          fix: pass dims, for example mx.dims("batch:32 hidden:64").
        """,
    ),
    "a k of two dims": (
        mx.ShapeError,
        lambda: mx.top_k(x, over=length, k=mx.dims("first:2 second:2")),
        """
        mx.top_k takes one dim, not 2.
          values: [first:2, second:2]
          fix: pass one dim.
        """,
    ),
    "a k whose name is taken": (
        mx.DimError,
        lambda: mx.top_k(x, over=length, k=mx.Dim("batch", 2)),
        """
        one shape has two dims of the name 'batch'.
          values: [batch:3, batch:2]
          rule: the dims of a tensor have different names.
          fix: name it once; if another dim is meant, rename that first: x.rename(length="memory_length").
        """,
    ),
    "a k that is a number": (
        mx.DimError,
        lambda: mx.top_k(x, over=length, k=3),
        """
        not a dim, nor the name of one: 3.
          rule: dims are named, not numbered.
          fix: name them, or pass dims made by mx.dims("batch:128 hidden:1024").
        """,
    ),
}


@pytest.mark.parametrize("name", ["top_k", "sort", "argsort", "cumsum"])
def test_each_takes_a_tensor_and_one_of_its_dims(name):
    op, args = getattr(mx, name), (k,) if name == "top_k" else ()

    with pytest.raises(mx.ShapeError, match=f"mx.{name} takes tensors, not an array."):
        op(x.numpy(), length, *args)
    with pytest.raises(mx.ShapeError, match=r"there is no dim 'lenght' here.(.|\n)*did you mean \"length\"\?"):
        op(x, "lenght", *args)
    with pytest.raises(mx.ShapeError, match="one dim is meant here, not 2."):
        op(x, (batch, length), *args)


test_messages = pinned(MISTAKES)
