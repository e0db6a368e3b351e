"""Loops and branches over tensors."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshax as mx
from example_tensors import counting
from messages import pinned

batch, length = mx.dims(batch=6, length=4)

x, xs = counting(batch), counting(length, batch)
SPLIT = mx.Layout("", params="batch:cols")


def test_scan_slices_and_stacks_along_a_dim():
    total, sums = mx.scan(lambda carry, x: (carry + x, carry + x), mx.zeros(batch), xs, over=length)

    np.testing.assert_array_equal(total.numpy(), xs.numpy().sum(0))
    assert sums.dims == (length, batch)
    np.testing.assert_array_equal(sums.numpy(), xs.numpy().cumsum(0))


def test_scan_over_an_inner_dim_of_a_tree():
    def body(carry, x):
        return carry + mx.sum(x["a"]) + x["b"], None

    total, ys = mx.scan(body, mx.zeros(()), {"a": xs, "b": counting(batch)}, over="batch")

    assert (float(total), ys) == (xs.numpy().sum() + 15, None)


def test_scan_without_xs_repeats():
    doubled, _ = mx.scan(lambda carry, _: (carry * 2, None), mx.ones(batch), over=length)

    np.testing.assert_array_equal(doubled.numpy(), np.full(6, 16))


def test_while_loop():
    steps, value = mx.while_loop(
        lambda state: mx.max(state[1]) < 100,
        lambda state: (state[0] + 1, state[1] * 2),
        (mx.zeros((), jnp.int32), x + 1),
    )

    assert int(steps) == 5
    np.testing.assert_array_equal(value.numpy(), 32 * (x.numpy() + 1))


@pytest.mark.parametrize("pred", [True, False, mx.tensor(True, ""), np.bool_(False), jnp.array(True)])
def test_cond(pred):
    chosen = mx.cond(pred, lambda x: x + 1, lambda x: x * 2, x)

    np.testing.assert_array_equal(chosen.numpy(), x.numpy() + 1 if bool(pred) else x.numpy() * 2)


@pytest.mark.parametrize("policy", [None, "collectives", jax.checkpoint_policies.dots_saveable])
def test_remat_changes_no_result(policy):
    def loss(x):
        return mx.sum(mx.tanh(x) * x)

    again = mx.grad(mx.remat(loss, policy=policy))(x)

    np.testing.assert_allclose(again.numpy(), mx.grad(loss)(x).numpy(), rtol=1e-6)


def around(fn):
    return functools.wraps(fn)(lambda *args: fn(*args))


@pytest.mark.parametrize(
    ("size", "body", "is_apart"),
    [(4, mx.remat, False), (1, mx.remat, True), (4, lambda fn: around(mx.remat(fn)), True)],
)
def test_what_a_loop_computes_again_is_not_kept_from_the_compiler(size, body, is_apart):
    """A turn of the backward pass is in another loop than that of the forward pass, if there is more than one."""
    steps = counting(mx.Dim("step", size), batch)

    def loss(x):
        def turn(carry, x):
            return mx.sin(carry) * x, None

        return mx.sum(mx.scan(body(turn), x, steps, over="step")[0])

    def by_hand(x):
        for step in steps.numpy():
            x = jnp.sin(x) * step
        return jnp.sum(x)

    program = mx.spmd(
        lambda x: (mx.grad(loss)(x), mx.grad(lambda x: mx.sum(mx.square(mx.grad(loss)(x))))(x)),
        mx.Mesh("cols:4"),
        "batch:cols",
    )
    gradient, of_gradient = program(x)
    assert (
        f"prevent_cse={is_apart}" in (text := str(program.trace(x).jaxpr)),
        f"prevent_cse={not is_apart}" in text,
    ) == (True, False)
    np.testing.assert_allclose(gradient.numpy(), jax.grad(by_hand)(x.numpy()), rtol=1e-5)
    expected = jax.grad(lambda x: jnp.sum(jax.grad(by_hand)(x) ** 2))(x.numpy())
    np.testing.assert_allclose(of_gradient.numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize(
    "run", [lambda fn, *args: fn(*args), lambda fn, *args: mx.spmd(fn, mx.Mesh("cols:4"), SPLIT)(*args)]
)
def test_a_carry_whose_role_changes_is_refused(run):
    def descend(w, g):
        return mx.scan(lambda w, _: (w - g, None), w, over=length)

    with pytest.raises(mx.ShapeError, match=r"does not come out as it went in(.|\n)* float32 param, then "):
        run(descend, mx.param(x), x)


def test_branches_whose_roles_differ_are_refused():
    with pytest.raises(mx.ShapeError, match=r"branches of mx.cond return different things(.|\n)* float32 param\n"):
        mx.cond(True, lambda x: x, mx.param, x)


def test_a_carry_that_keeps_its_role():
    def descend(w, g):
        return mx.scan(lambda w, _: (mx.param(w - g), None), w, over=length)[0]

    for fn in (descend, mx.spmd(descend, mx.Mesh("cols:4"), SPLIT)):
        moved = fn(mx.param(x), x)
        assert moved.role == "param"
        np.testing.assert_array_equal(moved.numpy(), -3 * x.numpy())


def scanned(body, init):
    return mx.scan(lambda carry, _: (body(carry), None), init, over=length)


MISTAKES = {
    "a carry whose dims change": (
        mx.ShapeError,
        lambda: scanned(lambda c: c.rename(batch="items"), x),
        """
        the carry of mx.scan does not come out as it went in.
          values: first [batch:6] float32, then [items:6] float32
          rule: what a loop carries keeps its structure, dims, their order, dtypes and roles.
          fix: rename, transpose, cast or mark it (mx.param) as it was, at the end of the body.
        """,
    ),
    "a carry whose dims change order": (
        mx.ShapeError,
        lambda: scanned(lambda c: mx.transpose(c, "batch length"), xs),
        """
        the carry of mx.scan does not come out as it went in.
          values: first [length:4, batch:6] float32, then [batch:6, length:4] float32
          rule: what a loop carries keeps its structure, dims, their order, dtypes and roles.
          fix: rename, transpose, cast or mark it (mx.param) as it was, at the end of the body.
        """,
    ),
    "a carry that loses a dim": (
        mx.ShapeError,
        lambda: scanned(lambda c: mx.sum(c), x),
        """
        the carry of mx.scan does not come out as it went in.
          values: first [batch:6] float32, then [] float32
          rule: what a loop carries keeps its structure, dims, their order, dtypes and roles.
          fix: rename, transpose, cast or mark it (mx.param) as it was, at the end of the body.
        """,
    ),
    "a carry whose dtype changes": (
        mx.ShapeError,
        lambda: scanned(lambda c: c.astype(jnp.bfloat16), x),
        """
        the carry of mx.scan does not come out as it went in.
          values: first [batch:6] float32, then [batch:6] bfloat16
          rule: what a loop carries keeps its structure, dims, their order, dtypes and roles.
          fix: rename, transpose, cast or mark it (mx.param) as it was, at the end of the body.
        """,
    ),
    "a carry whose structure changes": (
        mx.ShapeError,
        lambda: scanned(lambda c: {"x": c["x"]}, {"x": x, "y": x}),
        """
        the carry of mx.scan does not come out as it went in.
          values: first PyTreeDef({'x': *, 'y': *}), then PyTreeDef({'x': *})
          rule: what a loop carries keeps its structure, dims, their order, dtypes and roles.
          fix: rename, transpose, cast or mark it (mx.param) as it was, at the end of the body.
        """,
    ),
    "a carry of which two leaves change": (
        mx.ShapeError,
        lambda: scanned(lambda c: (c[0] > 0, c[1], mx.sum(c[2])), (x, x, xs)),
        """
        the carry of mx.scan does not come out as it went in.
          values: first [batch:6] float32, then [batch:6] bool; first [length:4, batch:6] float32, then [] float32
          rule: what a loop carries keeps its structure, dims, their order, dtypes and roles.
          fix: rename, transpose, cast or mark it (mx.param) as it was, at the end of the body.
        """,
    ),
    "an array whose shape changes": (
        mx.ShapeError,
        lambda: scanned(lambda c: c[:2], np.ones(3, np.float32)),
        """
        the carry of mx.scan does not come out as it went in.
          values: first float32[3], then float32[2]
          rule: what a loop carries keeps its structure, dims, their order, dtypes and roles.
          fix: rename, transpose, cast or mark it (mx.param) as it was, at the end of the body.
        """,
    ),
    "a stacked dim twice": (
        mx.DimError,
        lambda: mx.scan(lambda c, x: (c, xs), x, xs, over=length),
        """
        one shape has two dims of the name 'length'.
          values: [length:4, length:4, batch:6]
          rule: the dims of a tensor have different names.
          fix: name it once; if another dim is meant, rename that first: x.rename(length="memory_length").
        """,
    ),
    "a scan of unknown length": (
        mx.ShapeError,
        lambda: mx.scan(lambda c, _: (c, None), x, over="length"),
        """
        mx.scan does not know the size of 'length'.
          fix: pass a Dim where xs hold no tensor.
        """,
    ),
    "a scan over a dim that is not there": (
        mx.ShapeError,
        lambda: mx.scan(lambda c, x: (c, None), x, xs, over="lengths"),
        """
        there is no dim 'lengths' here.
          values: [length:4, batch:6]
          fix: did you mean "length"?
        """,
    ),
    "a scan over two sizes": (
        mx.ShapeError,
        lambda: mx.scan(lambda c, x: (c, None), x, (xs, counting(mx.Dim("length", 5))), over="length"),
        """
        dim 'length' has size 4 in one operand and 5 in another.
          values: [length:4] and [length:5]
          rule: operands meet by name, and dims of one name have one size.
          fix: rename the dim of one operand if another dim is meant, or slice it to the same size.
        """,
    ),
    "a body that returns no pair": (
        mx.ShapeError,
        lambda: mx.scan(lambda c, x: c + x, x, xs, over=length),
        """
        the body of mx.scan returns the next carry and a y.
          values: Tensor
          fix: return (carry, y), with None for y if there is none.
        """,
    ),
    "a body that returns nothing": (
        mx.ShapeError,
        lambda: mx.scan(lambda c, x: None, x, xs, over=length),
        """
        the body of mx.scan returns the next carry and a y.
          values: NoneType
          fix: return (carry, y), with None for y if there is none.
        """,
    ),
    "the carry of a while loop changes": (
        mx.ShapeError,
        lambda: mx.while_loop(lambda c: c < 3, lambda c: c + 0.5, mx.zeros((), jnp.int32)),
        """
        the carry of mx.while_loop does not come out as it went in.
          values: first [] int32, then [] float32
          rule: what a loop carries keeps its structure, dims, their order, dtypes and roles.
          fix: rename, transpose, cast or mark it (mx.param) as it was, at the end of the body.
        """,
    ),
    "the condition of a while loop has dims": (
        mx.ShapeError,
        lambda: mx.while_loop(lambda c: c < 3, lambda c: c + 1, x),
        """
        a condition is one truth value.
          values: [batch:6]
          fix: reduce it with mx.any or mx.all.
        """,
    ),
    "branches whose dims differ": (
        mx.ShapeError,
        lambda: mx.cond(True, lambda x: x, mx.sum, x),
        """
        the branches of mx.cond return different things.
          values: first [batch:6] float32, then [] float32
          rule: both return the same structure, dims, in the same order, dtypes and roles.
          fix: rename, transpose, cast or mark (mx.param) the result of one branch.
        """,
    ),
    "branches whose dtypes differ": (
        mx.ShapeError,
        lambda: mx.cond(True, lambda x: x, lambda x: x > 0, x),
        """
        the branches of mx.cond return different things.
          values: first [batch:6] float32, then [batch:6] bool
          rule: both return the same structure, dims, in the same order, dtypes and roles.
          fix: rename, transpose, cast or mark (mx.param) the result of one branch.
        """,
    ),
    "branches whose structures differ": (
        mx.ShapeError,
        lambda: mx.cond(True, lambda x: x, lambda x: (x, x), x),
        """
        the branches of mx.cond return different things.
          values: first PyTreeDef(*), then PyTreeDef((*, *))
          rule: both return the same structure, dims, in the same order, dtypes and roles.
          fix: rename, transpose, cast or mark (mx.param) the result of one branch.
        """,
    ),
    "a predicate with dims": (
        mx.ShapeError,
        lambda: mx.cond(x > 2, lambda x: x, lambda x: -x, x),
        """
        a condition is one truth value.
          values: [batch:6]
          fix: reduce it with mx.any or mx.all.
        """,
    ),
    "a policy that there is not": (
        mx.ArgumentError,
        lambda: mx.remat(mx.sum, policy="dots"),
        """
        there is no policy 'dots'.
          fix: use None, "collectives", or one of jax.checkpoint_policies.
        """,
    ),
}

test_messages = pinned(MISTAKES)
