"""The one promise of meshax, as a harness: an op under any layout equals the op on whole arrays, gradient too.

Inputs depend on position, sizes are distinct, and every element of padding holds NaN (or an absurd integer).
"""

import itertools
import os
import random

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

import meshax as mx
from meshax.layout import Setting, canonical, partition_spec
from meshax.tensor import Tensor

MESHES = ("x:1", "x:2", "x:8", "x:2 y:4", "x:4 y:1", "x:2 y:2 z:2")
WHOLE = os.environ.get("MESHAX_INVARIANTS") == "all"
TOLERANCE = {"float32": (2e-5, 2e-5), "bfloat16": (4e-2, 4e-2), "float64": (1e-9, 1e-9)}
PLANTED_INTEGER = -(10**6)


def layouts_of(mesh, names):
    """Returns all layouts of these dims: each dim over any axes in any order, the illegal ones included.

    On three axes, where they are tens of thousands, those in which no axis is used twice, and a seeded sample.
    """
    axes = list(mesh.axes)
    splits = [p for n in range(len(axes) + 1) for p in itertools.permutations(axes, n)]
    every = itertools.product(splits, repeat=len(names))
    if len(axes) == 3:
        once = [c for c in every if len(set(sum(c, ()))) == len(sum(c, ()))]
        rest = random.Random(0)
        every = once + [tuple(rest.choice(splits) for _ in names) for _ in range(60)]
    return [mx.Layout({name: split for name, split in zip(names, choice) if split}) for choice in every]


def sampled_layouts(mesh, names, inputs, count, seed):
    """Returns all layouts that can place the inputs in the whole run, a seeded sample of them otherwise."""
    every = [layout for layout in layouts_of(mesh, names) if _can_place(inputs, Setting(mesh, layout))]
    return every if WHOLE or len(every) <= count else random.Random(f"{seed} {mesh}").sample(every, count)


def _can_place(inputs, setting):
    try:
        return all(setting.placement(x.dims, x.role) is not None for x in inputs)
    except mx.LayoutError:
        return False


def place_with_garbage(x, setting):
    """Places a tensor on the mesh, with NaN in its padding."""
    placement = canonical(setting, x.dims, x.role)
    shape = setting.padded_shape(x.dims, placement)
    garbage = np.nan if jnp.issubdtype(x.dtype, jnp.inexact) else np.asarray(PLANTED_INTEGER).astype(x.dtype)
    host = np.full(shape, garbage, x.dtype)
    host[tuple(slice(d.size) for d in x.dims)] = np.asarray(x.array)
    return Tensor(jax.device_put(host, NamedSharding(setting.mesh.jax_mesh, partition_spec(placement))), x.dims, x.role)


def weights_like(x):
    """Returns numbers that differ from place to place, to weigh a result with: a gradient of ones hides errors."""
    n = np.prod([d.size for d in x.dims], dtype=int)
    return mx.tensor((1 + 0.37 * np.arange(n) % 1.7).reshape([d.size for d in x.dims]).astype(np.float32), x.dims)


def forward_and_gradient(fn, is_float):
    """Returns a function that gives what `fn` gives, and the gradients of a weighted sum of it."""

    def loss(floats, rest):
        floats, rest = iter(floats), iter(rest)
        outs = fn(*(next(floats) if f else next(rest) for f in is_float))
        outs = outs if isinstance(outs, tuple) else (outs,)
        parts = [mx.sum(o.astype(jnp.float32) * weights_like(o)) for o in outs if jnp.issubdtype(o.dtype, jnp.inexact)]
        total = sum(parts[1:], parts[0]) if parts else mx.sum(mx.zeros(()))
        return total, outs

    def both(*xs):
        floats = [x for x, f in zip(xs, is_float) if f]
        rest = [x for x, f in zip(xs, is_float) if not f]
        (_, outs), grads = mx.value_and_grad(loss, has_aux=True)(floats, rest)
        return outs, grads

    return both


def reference(ref, arrays, is_float):
    """Returns values and gradients of a function of whole arrays, by JAX alone."""

    def loss(floats, rest):
        floats, rest = iter(floats), iter(rest)
        outs = ref(*(next(floats) if f else next(rest) for f in is_float))
        outs = outs if isinstance(outs, tuple) else (outs,)
        total = jnp.float32(0)
        for o in outs:
            if jnp.issubdtype(o.dtype, jnp.inexact):
                weights = (1 + 0.37 * np.arange(o.size) % 1.7).reshape(o.shape).astype(np.float32)
                total += jnp.sum(o.astype(jnp.float32) * weights)
        return total, outs

    floats = [jnp.asarray(a) for a, f in zip(arrays, is_float) if f]
    rest = [jnp.asarray(a) for a, f in zip(arrays, is_float) if not f]
    (_, outs), grads = jax.value_and_grad(loss, has_aux=True)(floats, rest)
    return outs, grads


def assert_same(got, wanted, what):
    assert len(got) == len(wanted), what
    for x, y in zip(got, wanted):
        x, y = x.numpy(), np.asarray(y)
        assert x.dtype == y.dtype and x.shape == y.shape, f"{what}: {x.dtype}{x.shape}, not {y.dtype}{y.shape}"
        rtol, atol = TOLERANCE.get(str(y.dtype), (0, 0))
        np.testing.assert_allclose(x.astype(np.float64), y.astype(np.float64), rtol, atol, err_msg=what)


def check_group(mesh, layout, cases, inputs):
    """Runs all cases of one signature as one program under a layout; returns how many were legal and right.

    A case whose dims collide under the layout is left out, and must say so with a LayoutError.
    """
    is_float = [jnp.issubdtype(x.dtype, jnp.inexact) for x in inputs]
    setting = Setting(mesh, layout)

    def program(*xs):
        results = {}
        for case in cases:
            try:
                results[case.name] = forward_and_gradient(case.fn, is_float)(*xs)
            except mx.LayoutError as collision:
                assert "split over the same mesh axis" in str(collision)
        return results

    placed = [place_with_garbage(x, setting) for x in inputs]
    results = mx.spmd(program, mesh, layout)(*placed)
    for case in cases:
        if case.name in results:
            outs, grads = results[case.name]
            wanted_outs, wanted_grads = case.wanted
            what = f"{case.name} under {layout} on {mesh}"
            assert_same(outs, wanted_outs, what)
            assert_same(grads, wanted_grads, f"gradient of {what}")
    return len(results)
