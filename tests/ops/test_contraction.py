"""Products summed over dims."""

import jax.numpy as jnp
import numpy as np
import pytest

import meshax as mx
from messages import pinned
from samples import counting

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
