"""Gradients of gradients, by us and by others: the same under every layout, first order and second."""

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshax as mx
from extent import WHOLE

b, d, v, steps = mx.dims(b=6, d=5, v=7, steps=3)
mx.Dim.declare({"microbatches": "parts of b"})
mesh = mx.Mesh("rows:2 cols:4")
LAYOUTS = {
    "even": mx.Layout("b:rows"),
    "uneven": mx.Layout("b:cols"),
    "both dims": mx.Layout("b:cols d:rows"),
    "stored": mx.Layout("b:rows", params="d:cols"),
    "fully sharded": mx.Layout("b:rows", params="d:rows"),
    "over microbatches": mx.Layout("b:rows microbatches:cols"),
}


def values(*dims, seed):
    return mx.tensor(np.random.RandomState(seed).normal(size=[k.size for k in dims]).astype(np.float32), dims)


CHECKED = list(LAYOUTS) if WHOLE else ["uneven"]

w, x = mx.param(values(d, v, seed=0)), values(b, d, seed=1)
two = jnp.float32(2)


def inner(w, x):
    return mx.mean(mx.tanh(mx.einsum(x, w, out="b v")))


def size(gradient):
    return mx.sum(mx.square(gradient))


def by_jax(fn):
    return lambda w, x: jax.grad(lambda w: fn(w, x).array)(w)


def unrolled(update):
    def trained(w, x):
        w, _ = mx.scan(lambda w, _: (update(w, x), mx.sum(w)), w, over=steps)
        return inner(w, x)

    return trained


@jax.custom_vjp
def by_hand(w, x):
    return mx.tanh(mx.einsum(x, w, out="b v"))


def by_hand_backward(saved, g):
    w, x, y = saved
    g = g * (1 - y * y)
    of_w = mx.param(mx.einsum(x, g, out="d v"))
    return of_w + 0.0 * w, mx.einsum(g, w, out="b d")


by_hand.defvjp(lambda w, x: (by_hand(w, x), (w, x, by_hand(w, x))), by_hand_backward)


@equinox.filter_custom_vjp
def by_equinox(w, x):
    return mx.sum(mx.square(mx.einsum(x, w, out="b v")))


by_equinox.def_fwd(lambda perturbed, w, x: (by_equinox(w, x), (w, x)))
by_equinox.def_bwd(
    lambda saved, g, perturbed, w, x: mx.param(2 * g * mx.einsum(x, mx.einsum(x, w, out="b v"), out="d v")) + 0.0 * w
)


def with_aux(w, x):
    return inner(w, x), {"positive": w > 0, "twice": w * 2}


clipped = jax.custom_vjp(lambda array: array)  # its rule is not linear: of parts of a gradient it makes something else
clipped.defvjp(lambda array: (array, None), lambda _, g: (jnp.clip(g, -0.01, 0.01),))


def after(rule):
    """Trains on parameters that a rule by hand has seen."""
    return lambda w, x: mx.sum(mx.tanh(mx.einsum(x, rule(w), out="b v")))


def transposed(w, x):
    y = mx.tanh(mx.einsum(x, w, out="b v"))
    (back,) = jax.linear_transpose(lambda w: mx.einsum(x, w, out="b v"), w)(y)
    return mx.sum(mx.sin(back))


def called_linearly(w, x):
    y = mx.einsum(x, w, out="b v")
    double = lambda a: jax.custom_derivatives.linear_call(lambda _, a: 2 * a, lambda _, g: 2 * g, (), a)  # noqa: E731
    return mx.sum(mx.sin(jax.tree.map(double, y)))


PROGRAMS = {
    "ours in ours": mx.value_and_grad(lambda w, x: size(mx.grad(inner)(w, x))),
    "three deep": mx.grad(lambda w, x: size(mx.grad(lambda w, x: size(mx.grad(inner)(w, x)))(w, x))),
    "by the examples": mx.grad(lambda w, x: size(mx.grad(inner, argnums=1)(w, x))),
    "jax in ours": mx.value_and_grad(lambda w, x: size(by_jax(inner)(w, x))),
    "jitted, jax in ours": mx.value_and_grad(lambda w, x: size(jax.grad(jax.jit(lambda w: inner(w, x).array))(w))),
    "jax by another array": mx.value_and_grad(
        lambda w, x: (
            inner(w, x) + mx.sum(w) * mx.tensor(jax.grad(jax.jit(lambda s: mx.sum(mx.square(w * s)).array))(two), ())
        )
    ),
    "ours in jax": by_jax(lambda w, x: size(mx.grad(inner)(w, x))),
    "ours in jax, with aux": by_jax(lambda w, x: size(mx.grad(with_aux, has_aux=True)(w, x)[1]["twice"] * w)),
    "outer microbatches": mx.value_and_grad(lambda w, x: size(mx.grad(inner)(w, x)), microbatches=3, over="b"),
    "inner microbatches": mx.value_and_grad(lambda w, x: size(mx.grad(inner, microbatches=2, over="b")(w, x))),
    "unrolled training": mx.value_and_grad(unrolled(lambda w, x: mx.param(w - 0.5 * mx.grad(inner)(w, x)))),
    "unrolled training by jax": mx.value_and_grad(
        unrolled(lambda w, x: jax.tree.map(lambda p, g: p - 0.5 * g, w, by_jax(inner)(w, x)))
    ),
    "recomputed": mx.value_and_grad(lambda w, x: size(mx.remat(lambda w: mx.grad(inner)(w, x))(w))),
    "of what is recomputed": mx.value_and_grad(lambda w, x: size(mx.grad(mx.remat(inner))(w, x))),
    "a rule by hand": mx.value_and_grad(lambda w, x: mx.mean(mx.square(by_hand(w, x)))),
    "a rule by hand, jitted": mx.value_and_grad(jax.jit(lambda w, x: mx.mean(mx.square(by_hand(w, x))))),
    "a rule by hand, recomputed": mx.value_and_grad(mx.remat(lambda w, x: mx.mean(mx.square(by_hand(w, x))))),
    "a rule by equinox": mx.value_and_grad(by_equinox),
    "a rule that clips, lifted": mx.grad(after(mx.lift(clipped))),
    "a rule that clips, by trees": mx.grad(after(lambda w: jax.tree.map(clipped, w))),
    "a rule that clips, jitted": mx.grad(after(lambda w: jax.tree.map(jax.jit(lambda a: clipped(2 * a)), w))),
    "a rule that clips slices": mx.grad(after(lambda w: mx.local(clipped, w, out="d v", splittable="d v"))),
    "a rule that clips, in microbatches": mx.grad(after(mx.lift(clipped)), microbatches=2, over="b"),
    "a rule that clips, in a gradient": mx.grad(lambda w, x: size(mx.grad(after(mx.lift(clipped)))(w, x))),
    "a linear transpose": mx.value_and_grad(transposed),
    "a linear call": mx.value_and_grad(called_linearly),
    "ours, by jax.vjp, in ours": mx.grad(lambda w, x: mx.sum(jax.vjp(lambda w: mx.grad(inner)(w, x), w)[1](w)[0])),
    "auxiliary copies": mx.grad(with_aux, has_aux=True),
    "a hidden parameter": mx.value_and_grad(lambda w, x: size(mx.grad(lambda h, x: inner(h * h, x))(mx.tanh(w), x))),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_derivatives_do_not_depend_on_the_layout(name):
    wanted = jax.tree.leaves(PROGRAMS[name](w, x))
    for layout in (LAYOUTS[chosen] for chosen in CHECKED):
        made = mx.spmd(PROGRAMS[name], mesh, layout)(w, x)
        leaves = [leaf.numpy() for leaf in jax.tree.leaves(made, is_leaf=lambda leaf: isinstance(leaf, mx.Tensor))]
        for one, other in zip(leaves, wanted, strict=True):
            assert one.dtype == other.dtype, layout
            np.testing.assert_allclose(one, other, rtol=2e-4, atol=1e-6, err_msg=f"{name} under {layout}")


def test_a_rule_on_activations_costs_nothing():
    """Slices are not copies: such a kernel leaves the gradients to be summed once."""
    traces = []

    def loss(w, x):
        traces.append(1)
        kernel = mx.local(clipped, mx.einsum(x, w, out="b v"), out="b v", splittable="b v")
        return mx.sum(mx.lift(clipped)(kernel))

    program = mx.spmd(mx.grad(loss), mesh, LAYOUTS["even"])
    np.testing.assert_allclose(program(w, x).numpy(), mx.grad(loss)(w, x).numpy(), rtol=1e-5)
    assert len(traces) == 2, "once each"
    assert [one.kind for one in program.explain(w, x).collectives] == ["all-reduce"]


def test_errors_that_have_nothing_to_do_with_copies_are_raised_as_they_are():
    def wrong(w, x):
        raise TypeError("of the user's")

    with pytest.raises(TypeError, match="of the user's"):
        mx.spmd(mx.grad(wrong), mesh, LAYOUTS["even"])(w, x)


def test_derivatives_by_others_cost_a_second_trace_and_ours_do_not():
    traces = []

    def counted(fn):
        return lambda w, x: (traces.append(1), fn(w, x))[1]

    for name, times in {"ours in ours": 1, "ours in jax": 1, "three deep": 1, "jax in ours": 2}.items():
        traces.clear()
        mx.spmd(counted(PROGRAMS[name]), mesh, LAYOUTS["even"])(w, x)
        assert len(traces) == times, name


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_microbatches_keep_the_dtype_of_the_loss(dtype):
    step = mx.value_and_grad(inner, microbatches=2, over="b")

    value, gradient = mx.spmd(step, mesh, "b:rows")(w.astype(dtype), x.astype(dtype))

    assert value.dtype == gradient.dtype == dtype
