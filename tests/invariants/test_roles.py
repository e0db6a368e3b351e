"""Stored parameters: whatever rules split them where they are stored, results and gradients are the same."""

import random

import jax
import numpy as np
import pytest

import meshax as mx
from cases import BINARY, CONTROL, EINSUM, INDEX, LOSS, REDUCTION, RENAME, RESHAPE
from extent import some
from layouts import WHOLE, check_group
from meshax.layout import Setting
from meshax.testing import can_place

MESHES = ("x:8", "x:2 y:4", "x:2 y:2 z:2")
LAYOUTS = 40 if WHOLE else 1
GROUPS = [BINARY, EINSUM, REDUCTION, INDEX, LOSS, RENAME, RESHAPE, CONTROL]


def random_layouts(mesh, names, inputs, count, seed):
    """Returns layouts whose rules are partly the parameters' alone; a dim may have a rule of both kinds."""
    r = random.Random(seed)
    found = []
    while len(found) < count:
        rules = [{}, {}]
        for axis in mesh.axes:
            kind, name = r.choice((0, 1, 1)), r.choice(names)
            rules[kind][name] = (*rules[kind].get(name, ()), axis)
        layout = mx.Layout(rules[0], params=rules[1])
        if layout.params and can_place(inputs, Setting(mesh, layout)):
            found.append(layout)
    return found


PAIRS = [
    pytest.param(group, mesh, id=f"{group.name}-{mesh}", marks=[] if (n - m) % 3 == 0 else pytest.mark.exhaustive)
    for n, group in enumerate(GROUPS)
    for m, mesh in enumerate(MESHES)
]


@pytest.mark.parametrize(("group", "mesh"), PAIRS)
def test_stored_parameters_give_the_same_result(group, mesh, record_property):
    group.prepare()
    mesh = mx.Mesh(mesh)
    inputs = [mx.param(x) for x in group.inputs]
    layouts = random_layouts(mesh, group.names, inputs, LAYOUTS, f"{group.name} {mesh}")
    checked = sum(len(check_group(mesh, layout, group.cases, inputs)) for layout in layouts)
    record_property("checked", checked)
    assert checked


MICROBATCHED = ["", "batch:x", "batch:x+y", "batch:y hidden:x", "hidden:x+y"]


@pytest.mark.parametrize("layout", some(MICROBATCHED, "batch:x+y", "batch:y hidden:x"))
@pytest.mark.parametrize("params", some(["", "pixels:z"], "pixels:z"))
def test_microbatches_average_to_the_whole_batch(layout, params):
    batch, pixels, hidden = mx.dims(batch=24, pixels=5, hidden=6)
    values = lambda *dims: np.sin(np.arange(np.prod([d.size for d in dims]))).reshape([d.size for d in dims])  # noqa: E731
    w = {
        "in": mx.param(mx.tensor(values(pixels, hidden), (pixels, hidden))),
        "bias": mx.param(mx.tensor(values(hidden), (hidden,))),
    }
    x = mx.tensor(values(batch, pixels), (batch, pixels))
    y = mx.tensor(np.arange(24) % 6, (batch,))

    def loss(w, x, y):
        logits = mx.tanh(mx.einsum(x, w["in"], over=pixels) + w["bias"])
        each = mx.softmax_cross_entropy(logits, y, over=hidden)
        return mx.mean(each), each

    whole, parts = (mx.value_and_grad(loss, has_aux=True, **o) for o in ({}, {"microbatches": 3, "over": batch}))
    (value, each), grads = whole(w, x, y)
    program = mx.spmd(parts, mx.Mesh("x:2 y:2 z:2"), mx.Layout(layout, params=params))
    (got, got_each), got_grads = program(w, x, y)
    np.testing.assert_allclose(float(got), float(value), rtol=1e-5)
    assert str(got_each.dims) == "(microbatches:3, batch:8)"
    np.testing.assert_allclose(got_each.numpy().T.reshape(-1), each.numpy(), rtol=1e-5)  # part i holds i, i + 3, ...
    for name in w:
        np.testing.assert_allclose(got_grads[name].numpy(), grads[name].numpy(), rtol=2e-5, atol=1e-6)
        assert got_grads[name].role == "param"
    assert jax.tree.structure(got_grads) == jax.tree.structure(w)
