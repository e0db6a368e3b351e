"""Random reshapes and renames between random named shapes equal numpy's, gradients too, on 1, 2 and 3 mesh axes."""

import random

import jax.numpy as jnp
import numpy as np
import pytest

import meshax as mx
from extent import some
from layouts import WHOLE, assert_same, reference
from meshax.layout import Setting
from meshax.testing import forward_and_gradient, place_with_garbage

MESHES = ("x:2", "x:8", "x:3", "x:2 y:2", "x:2 y:4", "x:3 y:2", "x:2 y:2 z:2")
NAMES = [f"p{i}" for i in range(9)]
PROGRAMS, MOVES = (25, 20) if WHOLE else (1, 8)
SIZES = (24, 36, 40, 30, 64, 60, 7, 16)


def random_factors(r, product):
    """Returns sizes of that product, ones among them."""
    sizes = []
    while product > 1:
        factor = r.choice([f for f in range(2, product + 1) if product % f == 0])
        sizes.append(factor)
        product //= factor
    for _ in range(r.choice([0, 0, 1])):
        sizes.insert(r.randrange(len(sizes) + 1), 1)
    return sizes


def random_move(r):
    """Returns the dims before and after: a reshape, or a rename of some dims."""
    before = random_factors(r, r.choice(SIZES))
    after = before if r.random() < 0.3 else random_factors(r, int(np.prod(before)))
    pick = lambda sizes: tuple(mx.Dim(n, s) for n, s in zip(r.sample(NAMES, len(sizes)), sizes))  # noqa: E731
    return pick(before), pick(after)


def random_layout(r, mesh):
    axes = list(mesh.axes)
    return mx.Layout({n: r.sample(axes, r.randint(1, len(axes))) for n in NAMES if r.random() < 0.6})


def is_legal(setting, dims):
    try:
        setting.placement(dims)
    except mx.LayoutError:
        return False
    return True


@pytest.mark.parametrize("mesh", some(MESHES, "x:8", "x:3 y:2", "x:2 y:2 z:2"))
def test_random_reshapes_and_renames(mesh, record_property):
    r = random.Random(f"moves {mesh}")
    mesh = mx.Mesh(mesh)
    checked = 0
    for _ in range(PROGRAMS):
        mx.Dim.declare(dict.fromkeys(NAMES, "what a reshape may make"))
        setting = Setting(mesh, random_layout(r, mesh))
        moves = []
        while len(moves) < MOVES:
            before, after = random_move(r)
            if is_legal(setting, before) and is_legal(setting, after):
                moves.append((before, after))
        check_moves(setting, moves)
        checked += len(moves)
    record_property("checked", checked)


def check_moves(setting, moves):
    def move(x, before, after):
        if [d.size for d in before] == [d.size for d in after]:
            x = mx.rename(x, {d.name: n for d, n in zip(before, after)})
        else:
            x = mx.reshape(x, after)
        return x * x

    def program(*xs):
        return [forward_and_gradient(lambda x: move(x, *m), [x])(x) for x, m in zip(xs, moves)]  # noqa: B023

    inputs = []
    for before, _ in moves:
        shape = [d.size for d in before]
        inputs.append(mx.tensor(np.sin(np.arange(np.prod(shape))).reshape(shape).astype(np.float32), before))
    results = mx.spmd(program, setting.mesh, setting.layout)(*(place_with_garbage(x, setting) for x in inputs))
    for x, (before, after), (outs, grads) in zip(inputs, moves, results):
        shape = [d.size for d in after]
        wanted, wanted_grads = reference(lambda a: jnp.square(a.reshape(shape)), [x.numpy()], [True])  # noqa: B023
        what = f"{before} to {after} under {setting.layout} on {setting.mesh}"
        assert_same(outs, wanted, what)
        assert_same(grads, wanted_grads, f"gradient of {what}")


FAILURES_OF_MESH_TENSORFLOW = [
    ("a:4 b:4", "b:4 a:4", "a:r b:s"),
    ("c:4 e:4", "f:4 d:4", "f:s d:r e:s"),
    ("e:16", "f:4 d:2 c:2", "e:s f:r"),
    ("a:4 e:4", "d:16", "d:r a:s"),
]


@pytest.mark.parametrize("before, after, layout", FAILURES_OF_MESH_TENSORFLOW)
def test_reshapes_that_mesh_tensorflow_gets_wrong(before, after, layout):
    check_moves(Setting(mx.Mesh("r:2 s:2"), mx.Layout(layout)), [(mx.dims(before), mx.dims(after))])
