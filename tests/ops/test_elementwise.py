"""Elementwise operations, by name."""

import operator
from decimal import Decimal
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshax as mx
from example_tensors import counting
from extent import some
from messages import pinned

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


SUMS = ["", "batch:rows", "batch:cols", "batch:rows+cols"]
# What is made of sums of float32, int32, int8 and truth values, and whether it stays pending.
SCALED = {
    "plus": (lambda f, i, s, t: f + f, True),
    "minus": (lambda f, i, s, t: f - 2.0 * f, True),
    "negated": (lambda f, i, s, t: -f, True),
    "times a number": (lambda f, i, s, t: f * 0.5, True),
    "times an integer": (lambda f, i, s, t: 3 * f, True),
    "times numpy's": (lambda f, i, s, t: f * np.float32(0.5), True),
    "over a number": (lambda f, i, s, t: f / 4, True),
    "integers plus": (lambda f, i, s, t: i + i, True),
    "integers negated": (lambda f, i, s, t: -i, True),
    "integers times an integer": (lambda f, i, s, t: i * 3, True),
    "short integers times an integer": (lambda f, i, s, t: s * 3, True),
    "over zero": (lambda f, i, s, t: f / 0.0, False),
    "times zero": (lambda f, i, s, t: f * 0.0, False),
    "times infinity": (lambda f, i, s, t: f * np.inf, False),
    "over infinity": (lambda f, i, s, t: f / -np.inf, False),
    "times nan": (lambda f, i, s, t: f * np.nan, False),
    "times what is zero in its dtype": (lambda f, i, s, t: f * 1e-60, False),
    "a number over it": (lambda f, i, s, t: 1.0 / f, False),
    "integers over an integer": (lambda f, i, s, t: i / 4, False),
    "integers over, rounded": (lambda f, i, s, t: i // 4, False),
    "integers times a number": (lambda f, i, s, t: i * 0.25, False),
    "integers times zero": (lambda f, i, s, t: i * 0, False),
    "short integers times a wider one": (lambda f, i, s, t: s * np.int32(3), False),
    "two dtypes": (lambda f, i, s, t: f + i, False),
    "truth values negated": (lambda f, i, s, t: ~t, False),
    "truth values times an integer": (lambda f, i, s, t: t * 3, False),
    "truth values plus": (lambda f, i, s, t: t + t, False),
    "truth values times a truth value": (lambda f, i, s, t: t * True, False),
}


@pytest.mark.parametrize("layout", SUMS)
def test_a_pending_sum_is_scaled_only_where_that_is_exact(layout):
    floats = mx.tensor(np.float32([1, -1, 5, 2, -3, 7]), batch)
    wide = mx.tensor(np.int32([2**30] * 4 + [5, 6]), batch)
    short = mx.tensor(np.arange(90, 96).astype(np.int8), batch)
    truths = mx.tensor(np.array([True, False, True, True, False, False]), batch)
    pending = {}

    def all_of_them(floats, wide, short, truths):
        alike = lambda x: mx.einsum(x, x.astype(x.dtype), over=batch)  # noqa: E731
        ones = lambda x: mx.einsum(x, mx.ones(batch, x.dtype), over=batch)  # noqa: E731
        sums = ones(floats), ones(wide), ones(short), alike(truths)
        made = {name: fn(*sums) for name, (fn, _) in SCALED.items()}
        pending.update({name: "pending" in repr(x) for name, x in made.items()})
        return made

    found = mx.spmd(all_of_them, mx.Mesh("rows:2 cols:4"), layout)(floats, wide, short, truths)
    if layout:
        assert pending == {name: stays for name, (_, stays) in SCALED.items()}

    alone = all_of_them(floats, wide, short, truths)
    for name, x in found.items():
        np.testing.assert_array_equal(x.numpy(), alone[name].numpy(), err_msg=name, strict=True)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.float8_e4m3fn])
def test_narrow_floats_do_not_stay_pending(dtype):
    """Their parts may overflow where the whole does not."""
    given = mx.tensor(jnp.asarray([200, 200, -200, -200, 3, 4], dtype) * jnp.asarray(2, dtype), batch)
    seen = []

    def total(x):
        seen.append(repr(mx.sum(x) * 2.0))
        return mx.sum(x) * 2.0

    found = mx.spmd(total, mx.Mesh("rows:2"), "batch:rows")(given)

    assert "pending" not in "".join(seen)
    assert float(found) == 28


MISTAKES = {
    "a number that JAX does not have": (
        mx.DtypeError,
        lambda: counting(batch) * Fraction(1, 2),
        """
        operator * does not know numbers of the type Fraction.
          values: Fraction(1, 2)
          rule: an element is a truth value, an integer, a floating or a complex number of JAX's.
          fix: convert it first, for example with float.
        """,
    ),
    "a number that JAX does not have, in a function": (
        mx.DtypeError,
        lambda: mx.maximum(counting(batch), Decimal("0.5")),
        """
        mx.maximum does not know numbers of the type Decimal.
          values: Decimal('0.5')
          rule: an element is a truth value, an integer, a floating or a complex number of JAX's.
          fix: convert it first, for example with float.
        """,
    ),
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


@pytest.mark.parametrize(
    "layout", some(["", "b:rows", "b:cols", "b:rows+cols", "b:cols d:rows", "d:cols"], "b:cols d:rows")
)
def test_a_lifted_function_lets_nothing_flow_back_through_padding(layout):
    """Padding may be zero, and its logarithm infinite: what the function closes over must not get its gradient."""
    b, d = mx.dims(b=6, d=5)
    mesh = mx.Mesh("rows:2 cols:4")
    x = mx.tensor(np.random.RandomState(0).normal(size=(6, 5)).astype(np.float32), (b, d))
    c = mx.tensor(np.arange(1.0, 6.0, dtype=np.float32), (d,))

    def loss(s, c, x, by_keyword):
        if by_keyword:
            made = mx.lift(lambda a, c, s: jnp.log(a * a) * s / c)(x, c, s=s)
        else:
            made = mx.lift(lambda a, c: jnp.log(a * a) * s / c)(x, c)
        return mx.sum(made) + mx.sum(mx.lift(lambda a: s / a)(x.rename(d="whole")))

    for by_keyword in (True, False):
        fn = mx.grad(lambda s, c, x: loss(s, c, x, by_keyword), argnums=(0, 1, 2))  # noqa: B023
        made, wanted = mx.spmd(fn, mesh, layout)(jnp.float32(1), c, x), fn(jnp.float32(1), c, x)
        np.testing.assert_allclose(made[0], wanted[0], rtol=1e-4)
        for one, other in zip(made[1:], wanted[1:], strict=True):
            np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-4)


@pytest.mark.parametrize("op", ["softplus", "relu"])
def test_second_derivatives_at_zero_are_in_a_loop_as_elsewhere(op):
    """JAX forgets rules for derivatives there: the plain ones of a kink would be taken."""
    op = getattr(mx, op)
    x = mx.tensor([-100.0, -1.5, -0.0, 0.0, 0.25, 100.0], "x")
    turns = mx.Dim("turns", 2)

    def second(loop):
        turn = lambda x: op(x * 0.5) + 0.5 * x  # noqa: E731
        first = mx.grad(lambda x: mx.sum(mx.square(loop(turn)(x)) + x * loop(turn)(x)))
        return mx.grad(lambda x: mx.sum(mx.square(first(x) + 1)))(x).numpy()

    in_a_loop = second(lambda fn: lambda x: mx.scan(lambda x, _: (fn(x), None), x, None, over=turns)[0])
    np.testing.assert_allclose(in_a_loop, second(lambda fn: lambda x: fn(fn(x))), rtol=1e-5)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int32", "uint32", "float16", "bfloat16", "float32"])
@pytest.mark.parametrize("op", ["softplus", "relu"])
def test_functions_with_derivatives_of_their_own_have_the_values_of_jax(op, dtype):
    x = jnp.asarray([0, 1, 1, 5, 0, 100], dtype)
    if not jnp.issubdtype(dtype, jnp.unsignedinteger) and dtype != "bool":
        x = jnp.concatenate([x, -x])
    if jnp.issubdtype(dtype, jnp.floating):
        x = jnp.concatenate([x, jnp.asarray([jnp.nan, jnp.inf, -jnp.inf, -0.0], dtype)])
    wanted = {"softplus": jax.nn.softplus, "relu": lambda x: jnp.maximum(x, 0)}[op](x)
    got = getattr(mx, op)(mx.tensor(x, "x"))
    assert got.dtype == wanted.dtype
    np.testing.assert_array_equal(np.asarray(got.numpy(), np.float64), np.asarray(wanted, np.float64))
