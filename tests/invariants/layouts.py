"""The one promise of meshax, as a harness: an op under any layout equals the op on whole arrays, gradient too.

Inputs depend on position, sizes are distinct, and every element of padding holds NaN (or an absurd integer).
"""

import os
import random

import jax
import jax.numpy as jnp
import numpy as np

import meshax as mx
from extent import WHOLE
from meshax.layout import Setting
from meshax.testing import TOLERANCE, can_place, forward_and_gradient, layouts_of, place_with_garbage, weights_of

MESHES = ("x:1", "x:2", "x:8", "x:2 y:4", "x:4 y:1", "x:2 y:2 z:2")
SEED = int(os.environ.get("MESHAX_SEED", "0"))  # chooses the samples and the random programs


def sampled_layouts(mesh, names, inputs, count, seed):
    """Returns all layouts that can place the inputs in the whole run, a seeded sample of them otherwise."""
    every = [layout for layout in layouts_of(mesh, names) if can_place(inputs, Setting(mesh, layout))]
    return every if WHOLE or len(every) <= count else random.Random(f"{seed} {mesh}").sample(every, count)


def reference(ref, arrays, is_float):
    """Returns values and gradients of a function of whole arrays, by JAX alone."""

    def loss(floats, rest):
        floats, rest = iter(floats), iter(rest)
        outs = ref(*(next(floats) if f else next(rest) for f in is_float))
        outs = outs if isinstance(outs, tuple) else (outs,)
        total = jnp.float32(0)
        for o in outs:
            if jnp.issubdtype(o.dtype, jnp.inexact):
                total += jnp.sum(o.astype(jnp.float32) * weights_of(o.shape))
        return total, outs

    floats = [jnp.asarray(a) for a, f in zip(arrays, is_float) if f]
    rest = [jnp.asarray(a) for a, f in zip(arrays, is_float) if not f]
    (_, outs), grads = jax.value_and_grad(loss, has_aux=True)(floats, rest)
    return outs, grads


def is_collision(error):
    """Whether a layout is not legal for an op: its dims collide, or its function does not take slices."""
    return "split over the same mesh axis" in str(error) or "does not work on slices" in str(error)


def assert_same(got, wanted, what, scaled=False, computed_in=None):
    """Asserts that values, dtypes and shapes are the same; if scaled, rounding is relative to the largest value.

    Rounding is that of the dtype, or of a narrower one that the values were computed in.
    """
    got = got if isinstance(got, tuple | list) else (got,)
    assert len(got) == len(wanted), what
    for x, y in zip(got, wanted):
        x, y = x.numpy(), np.asarray(y)
        assert x.dtype == y.dtype and x.shape == y.shape, f"{what}: {x.dtype}{x.shape}, not {y.dtype}{y.shape}"
        allowed = TOLERANCE.get(computed_in or str(y.dtype), 0)
        size = max(1.0, float(np.max(np.abs(y), initial=0))) if scaled else 1.0
        np.testing.assert_allclose(x.astype(np.float64), y.astype(np.float64), allowed, allowed * size, err_msg=what)


def check_group(mesh, layout, cases, inputs):
    """Runs all cases of one signature as one program under a layout; returns the names of those legal and right.

    A case whose dims collide under the layout is left out, and must say so with a LayoutError.
    """

    def program(*xs):
        results = {}
        for case in cases:
            try:
                results[case.name] = forward_and_gradient(case.fn, xs)(*xs)
            except mx.LayoutError as collision:
                assert is_collision(collision), case.name
        return results

    placed = [place_with_garbage(x, Setting(mesh, layout)) for x in inputs]
    results = mx.spmd(program, mesh, layout)(*placed)
    for case in cases:
        if case.name in results:
            outs, grads = results[case.name]
            wanted_outs, wanted_grads = case.wanted
            what = f"{case.name} under {layout} on {mesh}"
            assert_same(outs, wanted_outs, what)
            assert_same(grads, wanted_grads, f"gradient of {what}")
    return set(results)
