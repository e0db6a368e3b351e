"""Elementwise operations, by name."""

import operator

import jax.numpy as jnp
import numpy as np
import pytest

import meshax as mx
from messages import pinned
from samples import counting

batch, length = mx.dims(batch=6, length=4)


def test_any_elementwise_function_can_be_lifted():
    hypot = mx.lift(jnp.hypot)

    assert hypot.__name__ == "hypot"
    np.testing.assert_allclose(hypot(counting(batch), 2.0).numpy(), np.hypot(np.arange(6), 2.0), rtol=1e-6)


def test_keywords_are_passed_on():
    np.testing.assert_array_equal(mx.clip(counting(batch), min=1, max=3).numpy(), [1, 1, 2, 3, 3, 3])


def test_where_leaks_nothing_from_the_branch_not_taken():
    def loss(taken, other):
        return mx.sum(mx.where(taken >= 0, taken * taken, other))

    taken, other = counting(batch), mx.full(batch, np.nan)
    value, gradients = mx.value_and_grad(loss, argnums=(0, 1))(taken, other)

    assert float(value) == 55
    np.testing.assert_array_equal(gradients[0].numpy(), 2 * taken.numpy())
    np.testing.assert_array_equal(gradients[1].numpy(), np.zeros(6))


def test_no_gradient_flows_through_stop_gradient():
    x = counting(batch)

    gradient = mx.grad(lambda x: mx.sum(x * mx.stop_gradient(x)))(x)

    np.testing.assert_array_equal(gradient.numpy(), x.numpy())


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.int32, jnp.bool_])
def test_astype(dtype):
    x = counting(batch)

    cast = x.astype(dtype)

    assert cast.dtype == dtype
    np.testing.assert_array_equal(cast.numpy(), x.numpy().astype(dtype))


def test_a_result_has_the_role_that_all_operands_share():
    x, w = counting(batch), mx.param(counting(batch))

    assert (w + w).role == (2.0 * w).role == mx.tanh(w).role == "param"
    assert (w + x).role is None and (x + w).role is None


ARITHMETIC = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "**": operator.pow}
WHOLE = {"//": operator.floordiv, "%": operator.mod, "&": operator.and_, "|": operator.or_, "^": operator.xor}
COMPARISONS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
EQUALITIES = {"==": operator.eq, "!=": operator.ne}
SYMBOLS = ARITHMETIC | WHOLE | COMPARISONS | EQUALITIES


@pytest.mark.parametrize("symbol", SYMBOLS)
def test_an_operator_is_called_by_its_symbol(symbol):
    with pytest.raises(mx.ShapeError) as raised:
        SYMBOLS[symbol](counting(batch), np.ones(6))
    assert str(raised.value).startswith(f"operator {symbol} takes tensors, not an array.\n  values: float64[6]\n")


def scaled_by_its_slice(layout):
    return mx.spmd(lambda x: x * jnp.sum(x.array), mx.Mesh("rows:2 cols:4"), layout)(counting(batch))


def test_a_number_that_is_the_same_on_all_processors():
    np.testing.assert_array_equal(scaled_by_its_slice("").numpy(), 15 * np.arange(6))


MISTAKES = {
    "two sizes of one name": (
        mx.ShapeError,
        lambda: counting(batch, length) + counting(mx.Dim("length", 5), batch),
        """
        dim 'length' has size 4 in one operand and 5 in another.
          values: [batch:6, length:4] and [length:5, batch:6]
          rule: operands meet by name, and dims of one name have one size.
          fix: rename the dim of one operand if another dim is meant, or slice it to the same size.
        """,
    ),
    "a number that differs between processors": (
        mx.LayoutError,
        lambda: scaled_by_its_slice("batch:rows"),
        """
        an array without names differs between processors.
          values: float32[] over rows
          rule: inside a program, only a tensor can be split: its dims say how the slices fit together.
          fix: use the tensor itself, not its .array.
        """,
    ),
    "an array as operand": (
        mx.ShapeError,
        lambda: counting(batch) + np.ones(6),
        """
        operator + takes tensors, not an array.
          values: float64[6]
          rule: an array takes part in an operation through the names of its dims.
          fix: name them: mx.tensor(array, "batch hidden").
        """,
    ),
}

test_messages = pinned(MISTAKES)
