"""Random training programs: a small model, its loss and a step under random layouts equal those of whole arrays.

A program draws the layers of a model, what is made of its loss (a gradient, with microbatches, a gradient of gradients,
steps of an optimizer, a loop of steps), a mesh, and rules for tensors, parameters and the optimizer's state. Layers
call users' functions that divide by zero on zeros, mix dtypes, loop, recompute, and take gradients of their own. NaN
stands in the padding of every input.
"""

import os
import random
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshax as mx
from layouts import SEED, WHOLE, is_collision
from meshax import optim
from meshax.layout import Setting
from meshax.testing import place_with_garbage

# Program n with MESHAX_SEED=s is always the same. MESHAX_PROGRAMS=5000 checks so many, MESHAX_PROGRAM=17 only that one.
PROGRAMS = int(os.environ.get("MESHAX_PROGRAMS", "2000" if WHOLE else "6"))
CHUNK = 25
MESHES = ("x:4", "x:2 y:2", "x:3", "x:2 y:2 z:2")
b, i, j, v, layers = mx.dims("b:6 i:3 j:5 v:7 layers:2")
NAMES = ("b", "i", "j", "v", "layers", "jj", "bb")
mx.Dim.declare(dict.fromkeys(NAMES, "what a random training may make"))


def _values(*dims, phase, dtype=np.float32):
    shape = [dim.size for dim in dims]
    return mx.tensor((0.9 * np.sin(phase + 1.7 * np.arange(np.prod(shape)))).reshape(shape).astype(dtype), dims)


def parameters(half):
    """Returns what is learned: tensors, some of them in bfloat16, and a number."""
    tensors = {
        "in": _values(i, j, phase=0.3),
        "bias": _values(j, phase=1.1, dtype=jnp.bfloat16 if half else np.float32),
        "stack": _values(layers, j, phase=2.2),
        "table": _values(v, j, phase=3.1),
    }
    return {name: mx.param(x) for name, x in tensors.items()} | {"number": jnp.float32(1.2)}


BATCH = {"x": _values(b, i, phase=5.0), "y": mx.tensor(np.int32([1, 6, 0, 3, 4, 2]), (b,))}


# Layers: functions of the parameters, the batch and a tensor of dims b and j, to another such tensor.


def _whole_rows(fn, h, *others):
    """Calls a function of arrays that needs the dim j whole."""
    renamed = [x.rename(j="jj") for x in (h, *others)]
    return mx.local(fn, *renamed, out="b jj", splittable="b").rename(jj="j")


def _closed_over(w, h):
    number = w["number"]
    return mx.lift(lambda a: a / jnp.sqrt(a * a) * number + a)(h)


def _by_rule(w, batch, h):
    """Our operations in a rule of JAX's."""
    product = jax.custom_vjp(lambda x, kernel: mx.einsum(x, kernel, over=i))
    product.defvjp(
        lambda x, kernel: (mx.einsum(x, kernel, over=i), (x, kernel)),
        lambda kept, ct: (mx.einsum(ct, kept[1], out="b i"), mx.param(mx.einsum(kept[0], ct, out="i j"))),
    )
    return h + product(batch["x"], w["in"])


def _inner(w, batch):
    return mx.mean(mx.tanh(mx.einsum(batch["x"], w["in"], over=i)) * w["bias"])


LAYERS = {
    "bias": lambda w, batch, h: mx.tanh(h + w["bias"]),
    "scaled": lambda w, batch, h: h * w["bias"] * w["number"],
    "softmax": lambda w, batch, h: mx.softmax(h, over=j) * w["bias"],
    "embedding": lambda w, batch, h: h + mx.gather(w["table"], batch["y"], v),
    "largest": lambda w, batch, h: h - mx.max(h, j) * 0.5,
    "normed": lambda w, batch, h: h * mx.rsqrt(mx.mean(h * h, j) + 0.1),
    "stack": lambda w, batch, h: mx.scan(
        lambda c, kernel: (mx.tanh(c * kernel + 0.2), None), h, w["stack"], over=layers
    )[0],
    "stack, recomputed": lambda w, batch, h: mx.scan(
        mx.remat(lambda c, kernel: (mx.sin(c + kernel), None)), h, w["stack"], over=layers
    )[0],
    "recomputed": lambda w, batch, h: mx.remat(lambda h, bias: mx.tanh(h * bias) + h)(h, w["bias"]),
    "rows by local": lambda w, batch, h: _whole_rows(lambda a: a / jnp.linalg.norm(a, axis=1, keepdims=True), h),
    "rows by local, scaled": lambda w, batch, h: _whole_rows(
        lambda a, c: a / jnp.linalg.norm(a, axis=1, keepdims=True) * c, h, w["bias"]
    ),
    "elements by local": lambda w, batch, h: mx.local(lambda a: jnp.log(a * a), h, out="b j", splittable="b j"),
    "lift": lambda w, batch, h: mx.lift(lambda a, c: jnp.log(a * a) * c)(h, w["bias"]),
    "lift by keyword": lambda w, batch, h: mx.lift(lambda a, s: jnp.log(a * a) * s)(h, s=w["number"]),
    "lift, closed over": lambda w, batch, h: _closed_over(w, h),
    "tree.map": lambda w, batch, h: jax.tree.map(lambda a: jnp.tanh(a) * 0.7, h),
    "half": lambda w, batch, h: (h.astype(jnp.bfloat16) * w["bias"]).astype(jnp.float32),
    "where": lambda w, batch, h: mx.where(batch["y"] > 2, h, w["bias"]),
    "attention": lambda w, batch, h: mx.einsum(
        mx.softmax(mx.einsum(h, h.rename(b="bb"), out="b bb"), over="bb"), h.rename(b="bb"), out="b j"
    ),
    "scattered": lambda w, batch, h: h + mx.gather(mx.scatter_add(w["table"], batch["y"], h, v), batch["y"], v) * 0.3,
    "cond": lambda w, batch, h: mx.cond(mx.sum(h) > 0, lambda h: h * 0.5, lambda h: mx.sin(h), h),
    "a rule of JAX": _by_rule,
    "a gradient": lambda w, batch, h: h + mx.sum(mx.grad(_inner)(w, batch)["in"], i),
    "a gradient by its input": lambda w, batch, h: h
    + mx.sum(mx.grad(lambda x: _inner(w, batch | {"x": x}))(batch["x"]), i),
    "cumsum": lambda w, batch, h: mx.cumsum(h, j) * 0.3,
    "shifted": lambda w, batch, h: h + mx.shift(h, "b", 1),
}  # fmt: skip
LOSSES = {
    "mean square": lambda w, batch, h: mx.mean(h * h),
    "cross entropy": lambda w, batch, h: mx.mean(mx.softmax_cross_entropy(h, batch["y"] % 5, over=j)),
    "weighted": lambda w, batch, h: mx.sum(h * h * w["bias"]) / 4,
}


def _loss(chosen, last):
    def loss(w, batch):
        h = mx.einsum(batch["x"], w["in"], over=i)
        for name in chosen:
            h = LAYERS[name](w, batch, h)
        return LOSSES[last](w, batch, h).astype(jnp.float32)

    return loss


# What is made of a loss: functions of the parameters and the batch.


def _penalty(loss, inner=mx.grad, outer=mx.value_and_grad):
    def squares(w, batch):
        grads = inner(loss)(w, batch)
        return sum((mx.sum(mx.square(grads[name])) for name in ("in", "stack", "table")), loss(w, batch))

    return outer(squares)


def _of_jax(loss):
    return lambda w, batch: jax.grad(lambda w: loss(w, batch).array)(w)


def _inner_steps(loss):
    """One step of descent inside the loss, as in meta-learning."""

    def after(w, batch):
        grads = mx.grad(loss)(w, batch)
        return loss(w | {name: mx.param(w[name] - 0.1 * grads[name]) for name in ("in", "stack")}, batch)

    return mx.value_and_grad(after)


def _trained(make, steps=2, microbatches=None):
    """Steps of an optimizer; the number among the parameters stays."""
    options = {"microbatches": microbatches, "over": b} if microbatches else {}

    def run(loss):
        def of_tensors(w, batch, number):
            return loss(w | {"number": number}, batch)

        def train(w, batch):
            number, w = w["number"], {name: x for name, x in w.items() if name != "number"}
            optimizer, losses = make(), []
            state = optimizer.init(w)
            for _ in range(steps):
                value, grads = mx.value_and_grad(of_tensors, **options)(w, batch, number)
                w, state = optimizer.apply(grads, state, w)
                losses.append(value)
            return losses, w, state

        return train

    return run


def _loop_of_steps(loss):
    def train(w, batch):
        def step(w, _):
            value, grads = mx.value_and_grad(loss)(w, batch)
            return jax.tree.map(lambda p, g: (p - 0.05 * g).astype(p.dtype), w, grads), value

        return mx.scan(step, w, mx.zeros((mx.Dim("steps", 2),)), over="steps")

    return train


def _adam():
    return optim.from_optax(optax.adam(0.1, eps=0.1))


def _adafactor():
    return optim.Adafactor(0.1, min_dim_size=3, epsilon=1e-2, smallest_scale=1e-2, momentum=0.9)


KINDS = {
    "gradient": mx.value_and_grad,
    "gradient of jax": _of_jax,
    "microbatches": lambda loss: mx.value_and_grad(loss, microbatches=3, over=b),
    "penalty": _penalty,
    "penalty, jax inside": lambda loss: _penalty(loss, inner=_of_jax),
    "penalty, jax outside": lambda loss: _penalty(loss, outer=_of_jax),
    "penalty, microbatches": lambda loss: _penalty(loss, outer=lambda f: mx.value_and_grad(f, microbatches=2, over=b)),
    "inner step": _inner_steps,
    "adam": _trained(_adam),
    "adam, microbatches": _trained(_adam, 1, 2),
    "adafactor": _trained(_adafactor),
    "clipped": _trained(lambda: optim.clipped(_adam(), 0.2)),
    "loop of steps": _loop_of_steps,
}


def program(number):
    """Draws the names of a program, a mesh, and a layout in which each axis splits some dims in some roles."""
    draw = random.Random(f"{SEED} {number}")
    kind = draw.choice(sorted(KINDS))
    chosen = draw.choices(sorted(LAYERS), k=draw.randint(1, 2 if "penalty" in kind or "inner" in kind else 3))
    mesh = mx.Mesh(draw.choice(MESHES))
    rules = {"rules": {}, "params": {}, "optimizer": {}}
    for axis in mesh.axes:
        for name in draw.sample(NAMES, draw.randint(1, 2)):
            role = draw.choice(["rules", "rules", "params", "optimizer", "both"])
            for at in ("params", "optimizer") if role == "both" else (role,):
                rules[at].setdefault(name, []).append(axis)
    layout = mx.Layout(rules["rules"], params=rules["params"], optimizer=rules["optimizer"])
    return kind, chosen, draw.choice(sorted(LOSSES)), draw.random() < 0.25, mesh, layout


def leaves_of(tree):
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: isinstance(x, mx.Tensor))
    return [
        (jax.tree_util.keystr(path), np.asarray(x.numpy() if isinstance(x, mx.Tensor) else x)) for path, x in leaves
    ]


def check_program(kind, chosen, last, half, mesh, layout):
    """Checks one program; returns whether it was right, or why it says nothing."""
    run, w = KINDS[kind](_loss(chosen, last)), parameters(half)
    setting = Setting(mesh, layout)
    try:
        placed = jax.tree.map(
            lambda x: place_with_garbage(x, setting) if isinstance(x, mx.Tensor) else x,
            (w, BATCH),
            is_leaf=lambda x: isinstance(x, mx.Tensor),
        )
        got = mx.spmd(run, mesh, layout)(*placed)
    except mx.LayoutError as collision:
        if not is_collision(collision):
            raise
        return "collision"
    wanted = jax.jit(run)(w, BATCH)
    rounded = half or "half" in chosen
    for (path, x), (_, y) in zip(leaves_of(got), leaves_of(wanted), strict=True):
        what = f"{path} of {kind} of {chosen}, {last}{', half' if half else ''} under {layout} on {mesh}"
        assert x.shape == y.shape and x.dtype == y.dtype, f"{what}: {x.dtype}{x.shape}, not {y.dtype}{y.shape}"
        x, y = x.astype(np.float64), y.astype(np.float64)
        if not np.isfinite(y).all():
            return "not finite"
        allowed = 4e-2 if rounded else 5e-4
        np.testing.assert_allclose(x, y, allowed, allowed * max(1.0, np.abs(y).max(initial=0)), err_msg=what)
    return "right"


ONE = os.environ.get("MESHAX_PROGRAM")
CHUNKS = [range(at, min(at + CHUNK, PROGRAMS)) for at in range(0, PROGRAMS, CHUNK)] if ONE is None else [[int(ONE)]]


@pytest.mark.parametrize("numbers", CHUNKS, ids=lambda numbers: f"{numbers[0]}-{numbers[-1]}")
def test_random_training_programs(numbers, record_property):
    print(f"programs {numbers[0]} to {numbers[-1]} with MESHAX_SEED={SEED}")
    counts, wrong = Counter(), []
    for number in numbers:
        drawn = program(number)
        try:
            counts[check_program(*drawn)] += 1
        except Exception as error:
            lines = " ".join(f"{type(error).__name__}: {error}".split())[:600]
            wrong.append(f"MESHAX_SEED={SEED} MESHAX_PROGRAM={number} {drawn}: {lines}")
    print(dict(counts))
    assert not wrong, "\n".join(wrong)
    record_property("checked", counts["right"])
