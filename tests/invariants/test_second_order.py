"""Second order: for every op, the gradient of a squared gradient under a layout is that of whole arrays.

Each op is differentiated twice by its inputs, in a loop too; and by a factor on the first of them while the inputs are
the batch, as in a gradient penalty. NaN stands in the padding of inputs, flows back through that of every result, and
through that of every gradient.
"""

import random

import jax
import jax.numpy as jnp
import pytest

import meshax as mx
from cases import GROUPS
from layouts import MESHES, SEED, WHOLE, assert_same, is_collision, sampled_layouts
from meshax.layout import Setting
from meshax.testing import place_with_garbage, weights_of, with_poisoned_gradient

LAYOUTS, AT_ONCE = (12, 4) if WHOLE else (5, 5)  # of each group and mesh; in one test, of a sample until one is legal
CASES = None if WHOLE else 2  # of each group
# A sum of bfloat16s, twice differentiated, is rounded too often to tell an error from it.
TURNS = 1.0, 0.875
CHOSEN = [group for group in GROUPS if group.dtype != jnp.bfloat16 and 0 not in group.integer]


def is_float(x):
    return bool(jnp.issubdtype(x.dtype, jnp.inexact))


def floats_of(outs):
    return [out for out in (outs if isinstance(outs, tuple | list) else (outs,)) if is_float(out)]


def number_of(outs):
    """Returns a number whose gradient by each result depends on that result: a sum would be too simple."""
    total = mx.zeros(())
    for out in map(with_poisoned_gradient, floats_of(outs)):
        weights = mx.tensor(weights_of([dim.size for dim in out.dims]), out.dims)
        total = total + mx.sum((out + 0.5 * out * out).astype(jnp.float32) * weights)
    return total


def number_of_arrays(outs):
    parts = [jnp.sum((out + 0.5 * out * out).astype(jnp.float32) * weights_of(out.shape)) for out in floats_of(outs)]
    return sum(parts, jnp.float32(0))


def penalty(loss, kind="mx in mx"):
    """Returns the gradient of the squared gradient of a function of a list of tensors, and of others."""

    def squares(floats, others):
        if kind == "jax in mx":
            grads = jax.grad(lambda floats: loss(floats, others).array)(floats)
        else:
            grads = mx.grad(loss)(floats, others)
        return sum((mx.sum(mx.square(with_poisoned_gradient(g))) for g in grads), mx.zeros(()))

    if kind == "mx in jax":
        return lambda floats, others: jax.grad(lambda floats: squares(floats, others).array)(floats)
    return mx.grad(squares)


def penalty_of_arrays(loss):
    def squares(floats, others):
        return sum(jnp.sum(jnp.square(g)) for g in jax.grad(loss)(floats, others))

    return jax.grad(squares)


def by_inputs(fn, number, inputs):
    """Returns a function of the floating inputs and the others, these, and none of the inputs for a batch."""
    floating = [is_float(x) for x in inputs]

    def loss(floats, others):
        floats, others = iter(floats), iter(others)
        return number(fn(*(next(floats) if f else next(others) for f in floating)))

    parts = [[x for x, f in zip(inputs, floating) if f is kind] for kind in (True, False)]
    return loss, *parts


def by_a_factor(fn, number, inputs, factor):
    """Returns a function of a factor on the first input and of all inputs, which are a batch then; and these."""
    return lambda floats, batch: number(fn(batch[0] * floats[0], *batch[1:])), [factor], list(inputs)


def in_a_loop(loss, floats, others):
    """Returns a function that adds up what another one gives in each turn of a loop, and its arguments."""

    def looped(floats, others):
        return mx.scan(
            lambda total, turn: (total + loss([x * turn.astype(x.dtype) for x in floats], others), None),
            mx.zeros(()), mx.tensor(jnp.float32(TURNS), (mx.Dim("_turns", len(TURNS)),)), over="_turns",
        )[0]  # fmt: skip

    return looped, floats, others


def in_turns(loss, floats, others):
    """Does as `in_a_loop`, with arrays and without a loop."""
    return (
        lambda floats, others: sum(loss([x * x.dtype.type(t) for x in floats], others) for t in TURNS),
        floats,
        others,
    )


def factor_of(group):
    """Returns a tensor of the last dim of the first input, to multiply that with."""
    dim = group.dims[0][-1]
    return mx.tensor(1 + 0.1 * weights_of([dim.size]), (dim,))


def wanted(group, case):
    """Returns the second gradients of whole arrays, by JAX alone."""
    arrays, factor = [jnp.asarray(x.numpy()) for x in group.inputs], jnp.asarray(factor_of(group).numpy())

    def all_ways(arrays, factor):
        by_all = by_inputs(case.ref, number_of_arrays, arrays)
        ways = by_all, by_a_factor(case.ref, number_of_arrays, arrays, factor), in_turns(*by_all)
        return [penalty_of_arrays(loss)(floats, others) for loss, floats, others in ways]

    return jax.jit(all_ways)(arrays, factor)


def check(mesh, layout, cases, group, kind):
    """Runs the cases as one program under a layout; returns how many were legal and right."""

    def program(factor, *inputs):
        results = {}
        for name, case in cases.items():
            try:
                by_all = by_inputs(case.fn, number_of, inputs)
                ways = by_all, by_a_factor(case.fn, number_of, inputs, factor), in_a_loop(*by_all)
                results[name] = [penalty(loss, kind)(floats, others) for loss, floats, others in ways]
            except mx.LayoutError as collision:
                assert is_collision(collision), name
        return results

    placed = [place_with_garbage(x, Setting(mesh, layout)) for x in (factor_of(group), *group.inputs)]
    results = mx.spmd(program, mesh, layout)(*placed)
    for name, found in results.items():
        for way, got, right in zip(("inputs", "a factor", "inputs in a loop"), found, wanted(group, cases[name])):
            what = f"second gradient of {name} by {way} ({kind}) under {layout} on {mesh}"
            assert_same(got, right, what, scaled=True, computed_in="bfloat16" if name == "astype" else None)
    return len(results)


def parts():
    """A group, a mesh and some layouts for each test."""
    chosen = CHOSEN if WHOLE else random.Random(SEED).sample(CHOSEN, 4)
    for number, group in enumerate(chosen):
        for mesh in map(mx.Mesh, MESHES if WHOLE else [MESHES[1 + number % (len(MESHES) - 1)]]):
            layouts = sampled_layouts(mesh, group.names, group.inputs, 100, f"second {group.name}")
            layouts = random.Random(f"{SEED} {group.name}").sample(layouts, min(LAYOUTS, len(layouts)))
            for first in range(0, len(layouts), AT_ONCE):
                yield pytest.param(group, mesh, layouts[first : first + AT_ONCE], id=f"{group.name}-{mesh}-{first}")


@pytest.mark.parametrize(("group", "mesh", "layouts"), list(parts()))
def test_second_gradients_are_those_of_whole_arrays(group, mesh, layouts, record_property):
    cases = {case.name: case for case in group.cases}
    chosen = random.Random(f"{SEED} {group.name} {mesh}").sample(sorted(cases), min(CASES or 1000, len(cases)))
    checked = 0
    for layout in layouts:
        checked += check(mesh, layout, {name: cases[name] for name in chosen}, group, "mx in mx")
        if checked and not WHOLE:
            break
    record_property("checked", checked)
    assert checked


MIXED = ["reduction", "einsum", "binary", "index", "loss", "rename", "control", "indexing"]


@pytest.mark.parametrize("kind", ["jax in mx", "mx in jax"])
@pytest.mark.parametrize("group", [g for g in GROUPS if g.name in MIXED[: 8 if WHOLE else 1]], ids=lambda g: g.name)
def test_gradients_of_jax_and_ours_nest(group, kind, record_property):
    seed = random.Random(f"{SEED} {group.name} {kind}")
    cases = {case.name: case for case in seed.sample(group.cases, min(6 if WHOLE else 1, len(group.cases)))}
    checked = 0
    for spec in ("x:2 y:4", "x:8") if WHOLE else ("x:2 y:4",):
        layouts = sampled_layouts(mx.Mesh(spec), group.names, group.inputs, 100, group.name)
        for layout in seed.sample(layouts, min(4 if WHOLE else 1, len(layouts))):
            checked += check(mx.Mesh(spec), layout, cases, group, kind)
    record_property("checked", checked)
