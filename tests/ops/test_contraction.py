"""Products summed over dims."""

import jax.numpy as jnp
import numpy as np
import pytest

import meshax as mx
from example_tensors import counting
from extent import some
from messages import pinned

batch, length, hidden = mx.dims(batch=6, length=4, hidden=10)

x, w = counting(batch, hidden), counting(hidden, length)


@pytest.mark.parametrize(
    ("dims", "equation"),
    [
        ({"out": (batch, length)}, "bh,hl->bl"),
        ({"out": "length batch"}, "bh,hl->lb"),
        ({"out": ()}, "bh,hl->"),
        ({"over": hidden}, "bh,hl->bl"),
        ({"over": "hidden batch"}, "bh,hl->l"),
        ({"over": ()}, "bh,hl->bhl"),
    ],
    ids=str,
)
def test_out_names_what_stays_and_over_what_goes(dims, equation):
    np.testing.assert_array_equal(mx.einsum(x, w, **dims).numpy(), np.einsum(equation, x.numpy(), w.numpy()))


def test_one_operand_is_a_sum_and_three_are_one_product():
    scale = counting(batch) + 1

    np.testing.assert_array_equal(mx.einsum(x, out=hidden).numpy(), x.numpy().sum(0))
    np.testing.assert_array_equal(
        mx.einsum(x, w, scale, out=(length, batch)).numpy(),
        np.einsum("bh,hl,b->lb", x.numpy(), w.numpy(), scale.numpy()),
    )


mesh = mx.Mesh("rows:2 cols:4")
LAYOUTS = [
    "",
    "hidden:rows",
    "hidden:cols",
    "hidden:rows+cols",
    "batch:cols",
    "hidden:cols slots:cols",
    "hidden:rows length:cols",
]
mx.Dim.declare({"slots": "batch, renamed"})


@pytest.mark.parametrize("layout", some(LAYOUTS, "hidden:cols slots:cols"))
def test_a_product_of_truth_values_says_whether_any_is_true(layout):
    a = mx.tensor(np.arange(60).reshape(6, 10) % 7 == 3, (batch, hidden))
    b = mx.tensor(np.arange(40).reshape(10, 4) % 6 == 1, (hidden, length))

    def products(a, b):
        product = mx.einsum(a, b, out=(batch, length))
        return product, product.rename(batch="slots"), mx.sum(product, batch), product & product, ~product

    found = mx.spmd(products, mesh, layout)(a, b)

    wanted = np.einsum("bh,hl->bl", a.numpy().astype(int), b.numpy().astype(int)) > 0
    for x, y in zip(found, [wanted, wanted, wanted.sum(0, dtype=np.int32), wanted, ~wanted]):
        np.testing.assert_array_equal(x.numpy(), y, strict=True)


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.int32, np.float16, np.float32])
@pytest.mark.parametrize("layout", some(["", "hidden:cols", "hidden:cols length:cols"], "hidden:cols length:cols"))
def test_a_dim_that_only_one_operand_has_keeps_the_dtype(dtype, layout):
    a, b = (mx.tensor(x.numpy().astype(dtype), x.dims) for x in (counting(batch, hidden), counting(length)))

    found = mx.spmd(lambda a, b: mx.einsum(a, b, out=(batch, length)), mesh, layout)(a, b)

    wanted = np.asarray(jnp.einsum("bh,l->bl", a.numpy(), b.numpy()))
    assert found.dtype == dtype
    np.testing.assert_allclose(found.numpy().astype(float), wanted.astype(float), rtol=2e-3)


@pytest.mark.parametrize("layout", some(LAYOUTS, "hidden:cols slots:cols"))
def test_halves_overflow_only_where_the_result_does(layout):
    signs = np.where(np.arange(10) < 5, 1, -1)
    a = mx.tensor((signs * 30000 + np.arange(60).reshape(6, 10) % 5 * 32).astype(np.float16), (batch, hidden))
    ones = mx.ones((hidden, length), jnp.float16)

    def product(a, ones):
        def gradient(a, scale):
            return mx.grad(lambda a: mx.sum(mx.square(mx.einsum(a, ones, over=hidden) / scale)))(a)

        twice = mx.grad(lambda a: mx.sum(gradient(a, 4.0) * a))
        return mx.einsum(a, ones, out=(batch, length)), gradient(a, 64.0), twice(mx.abs(a / 32768.0))

    found, first, second = mx.spmd(product, mesh, layout)(a, ones)
    assert found.dtype == first.dtype == second.dtype == jnp.float16

    whole = a.numpy().astype(np.float64).sum(1)[:, None]
    np.testing.assert_allclose(found.numpy(), np.broadcast_to(whole, (6, 4)), rtol=1e-3)
    np.testing.assert_allclose(first.numpy(), np.broadcast_to(8 * whole / 64**2, (6, 10)), rtol=1e-2)
    positive = np.abs(a.numpy().astype(np.float64)).sum(1)[:, None] / 32768
    np.testing.assert_allclose(second.numpy(), np.broadcast_to(16 * positive / 4**2, (6, 10)), rtol=1e-2)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2fnuz", "float8_e8m0fnu"])
@pytest.mark.parametrize("layout", some(LAYOUTS, "hidden:cols slots:cols"))
def test_products_of_floats_of_a_byte(dtype, layout):
    a, b = (mx.tensor(jnp.asarray(2.0 ** (x.numpy() % 3), dtype), x.dims) for x in (x, w))

    found = mx.spmd(lambda a, b: mx.einsum(a, b, out=(batch, length)), mesh, layout)(a, b)

    wanted = a.numpy().astype(np.float32) @ b.numpy().astype(np.float32)
    np.testing.assert_array_equal(found.numpy(), wanted.astype(dtype))


MISTAKES = {
    "no operand": (
        mx.ShapeError,
        lambda: mx.einsum(out=batch),
        """
        mx.einsum needs at least one tensor.
          fix: write for example mx.einsum(x, w, out=(batch, hidden)).
        """,
    ),
    "neither out nor over": (
        mx.ShapeError,
        lambda: mx.einsum(x, w),
        """
        mx.einsum takes either out= or over=.
          values: [batch:6, hidden:10] and [hidden:10, length:4]
          fix: name the dims of the result (out=), or the dims to sum over (over=).
        """,
    ),
    "both out and over": (
        mx.ShapeError,
        lambda: mx.einsum(x, w, out=batch, over=hidden),
        """
        mx.einsum takes either out= or over=.
          values: [batch:6, hidden:10] and [hidden:10, length:4]
          fix: name the dims of the result (out=), or the dims to sum over (over=).
        """,
    ),
    "different dtypes": (
        mx.DtypeError,
        lambda: mx.einsum(x, w.astype(jnp.bfloat16), over=hidden),
        """
        the operands of mx.einsum have different dtypes.
          values: [batch:6, hidden:10] float32 and [hidden:10, length:4] bfloat16
          rule: a product is computed in one dtype, so that none is slower than it looks.
          fix: cast one operand: x.astype(w.dtype).
        """,
    ),
    "two sizes of one name": (
        mx.ShapeError,
        lambda: mx.einsum(x, counting(mx.Dim("hidden", 9)), over="hidden"),
        """
        dim 'hidden' has size 10 in one operand and 9 in another.
          values: [batch:6, hidden:10] and [hidden:9]
          rule: operands meet by name, and dims of one name have one size.
          fix: rename the dim of one operand if another dim is meant, or slice it to the same size.
        """,
    ),
    "a result dim that no operand has": (
        mx.ShapeError,
        lambda: mx.einsum(x, w, out="batch lengths"),
        """
        there is no dim 'lengths' here.
          values: [batch:6, hidden:10, length:4]
          fix: did you mean "length"?
        """,
    ),
    "a summed dim that no operand has": (
        mx.ShapeError,
        lambda: mx.einsum(x, w, over="vocab"),
        """
        there is no dim 'vocab' here.
          values: [batch:6, hidden:10, length:4]
          fix: known names: batch, hidden, length.
        """,
    ),
    "a result dim twice": (
        mx.DimError,
        lambda: mx.einsum(x, w, out="batch batch"),
        """
        one shape has two dims of the name 'batch'.
          values: [batch:6, batch:6]
          rule: the dims of a tensor have different names.
          fix: name it once; if another dim is meant, rename that first: x.rename(length="memory_length").
        """,
    ),
    "a result dim of another size": (
        mx.ShapeError,
        lambda: mx.einsum(x, w, out=mx.Dim("batch", 3)),
        """
        dim 'batch' has size 6 here, not 3.
          values: [batch:6, hidden:10, length:4]
          rule: dims of one name have one size.
          fix: use the dim's name, or x.dim('batch'), where the size may vary.
        """,
    ),
}

test_messages = pinned(MISTAKES)
