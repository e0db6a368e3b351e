"""JAX code on slices: element by element as it likes, everything else is an error with the user's line."""

import resource

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshax as mx
from example_tensors import counting
from meshax.checking.slices import checked
from messages import pinned

h, k, other = mx.dims(h=8, k=3, other=8)
mesh = mx.Mesh("m:4 n:2")
x = counting(h) + 1.0
matrix = counting(h, k)
clip = optax.clip_by_global_norm(1.0)


def mapped(fn):
    return lambda x: jax.tree.map(fn, x)


COMBINING = {
    "clip": lambda x: clip.update(x, clip.init(x))[0],
    "norm": mapped(lambda a: a / jnp.linalg.norm(a)),
    "softmax": mapped(jax.nn.softmax),
    "cumsum": mapped(jnp.cumsum),
    "sort": mapped(jnp.sort),
    "flip": mapped(jnp.flip),
    "roll": mapped(lambda a: jnp.roll(a, 1)),
    "mean": mapped(lambda a: a - a.mean()),
    "max": mapped(lambda a: a / a.max()),
    "element": mapped(lambda a: a - a[0]),
    "places": mapped(lambda a: a + jnp.arange(a.shape[0])),
    "places alone": mapped(lambda a: 1.0 * jnp.arange(a.shape[0])),
    "random": mapped(lambda a: a + jax.random.normal(jax.random.key(0), a.shape)),
    "constant": mapped(lambda a: a * np.arange(a.shape[0])),
    "in a jitted function": jax.jit(mapped(jnp.cumsum)),
    "in a scan": lambda x: jax.lax.scan(lambda c, _: (mapped(jnp.cumsum)(c), None), x, None, length=2)[0],
    "in a while loop": lambda x: jax.lax.while_loop(lambda c: c.array[0] < 0, mapped(jnp.cumsum), x),
    "in a branch": lambda x: jax.lax.cond(True, mapped(jnp.cumsum), lambda x: x, x),
    "in a checkpoint": jax.checkpoint(mapped(jnp.cumsum)),
    "in a loss": lambda x: mx.grad(lambda x: mx.sum(mapped(lambda a: a * jnp.sum(a))(x)))(x),
    "in a backward pass": lambda x: x * jax.grad(lambda s: mx.sum(mapped(lambda a: a * s)(x)).array)(jnp.float32(2)),
    "lifted": mx.lift(lambda a: a - a.mean()),
    "carried through our loop": lambda x: jax.tree.map(
        lambda a: mx.scan(lambda c, _: (jnp.cumsum(c), None), a, over=k)[0], x
    ),
}
ELEMENTWISE = {
    "arithmetic": mapped(lambda a: jnp.tanh(a) * 2 + jnp.where(a > 3, a, -1.0) ** 2),
    "filled alike": mapped(lambda a: a + jnp.zeros_like(a) + jnp.ones(a.shape) + jnp.full_like(a, 3.0)),
    "zeros alone": mapped(jnp.zeros_like),
    "jitted": jax.jit(mapped(jax.nn.gelu)),
    "checkpointed": jax.checkpoint(lambda x: mx.softmax(x, over=h)),
    "scanned": lambda x: jax.lax.scan(lambda c, _: (mapped(jnp.sin)(c), None), x, None, length=3)[0],
    "branched": lambda x: jax.lax.cond(True, mapped(jnp.exp), mapped(jnp.log), x),
    "differentiated": lambda x: mx.grad(lambda x: mx.sum(mapped(lambda a: jax.nn.silu(a) * 3)(x)))(x),
    "adam": lambda x: optax.adam(0.1).update(x, optax.adam(0.1).init(x))[0],
    "looked up": mapped(lambda a: jnp.take(jnp.sin(jnp.arange(20.0)), a.astype(jnp.int32))),
    "with its own array": lambda x: jax.tree.map(jnp.add, x, counting(h) * 3),
    "as it was": mapped(lambda a: a),
}
LAYOUTS = ["h:m", "h:n+m", "h:m+n"]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", COMBINING)
def test_code_that_combines_elements_of_a_slice_is_refused(name, layout):
    with pytest.raises(mx.SliceError) as refusal:
        mx.spmd(COMBINING[name], mesh, layout)(x)

    assert any("test_slices.py" in note for note in refusal.value.__notes__)


@pytest.mark.parametrize("name", COMBINING)
def test_the_same_code_works_where_nothing_is_split(name):
    np.testing.assert_allclose(
        mx.spmd(COMBINING[name], mesh, "other:m")(x).numpy(), COMBINING[name](x).numpy(), rtol=2e-6
    )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_code_that_works_element_by_element_gives_the_same(name, layout):
    np.testing.assert_allclose(
        mx.spmd(ELEMENTWISE[name], mesh, layout)(x).numpy(), ELEMENTWISE[name](x).numpy(), rtol=2e-5, atol=1e-6
    )


def test_what_is_combined_along_a_dim_that_is_not_split_is_right():
    def fn(x):
        return jax.tree.map(lambda a: jax.nn.softmax(jnp.cumsum(a, 1), axis=1) @ jnp.eye(3) + a.sum(1)[:, None], x)

    np.testing.assert_allclose(mx.spmd(fn, mesh, "h:m")(matrix).numpy(), fn(matrix).numpy(), rtol=1e-5)


def test_however_deep_a_trace_begins_its_calls_have_room():
    def page_faults():
        return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt

    def at_depth(depth):
        if depth:
            return at_depth(depth - 1)
        before = page_faults()
        for _ in range(500):
            page_faults()  # a frame of Python's
        return page_faults() - before

    program = jax.make_jaxpr(lambda: None)()
    most = checked(lambda casts: (program, max(map(at_depth, range(200)))))

    assert most < 100


def test_the_line_is_named_also_of_what_jax_has_traced_before():
    jax.jit(jnp.linalg.norm)(jnp.ones(2))  # from another line

    with pytest.raises(mx.SliceError) as refusal:
        mx.spmd(COMBINING["norm"], mesh, "h:m").explain(x)
    assert "a / jnp.linalg.norm(a)" in refusal.value.__notes__[0]


def split(fn, *args, layout="h:m"):
    return lambda: mx.spmd(fn, mesh, layout)(*args)


test_messages = pinned(
    {
        "combining": (
            mx.SliceError,
            split(COMBINING["norm"], x),
            """
            reduce_sum would combine elements of one processor's slice alone, along 'h'.
              values: [h:8/m], on each processor float32[2]
              rule: inside a program the array of a split tensor is a slice, which JAX code may only see element by element.
              fix: use mx.sum; mx.local for a function that may see slices; for optimizers optim.clipped and optim.Adafactor; or rename the dim to one that is not split.
            """,  # noqa: E501
        ),
        "an array made for the slice": (
            mx.SliceError,
            split(COMBINING["places"], x),
            """
            add brings a slice together with an array that was made for the shape of the slice.
              values: [h:8/m], on each processor float32[2], float32[2]
              rule: inside a program the array of a split tensor is a slice, which JAX code may only see element by element.
              fix: make it with mx.arange, mx.random, mx.tensor and the like, and use operations of meshax; mx.local for a function that may see slices; for optimizers optim.clipped and optim.Adafactor; or rename the dim to one that is not split.
            """,  # noqa: E501
        ),
        "an array made for the slice, alone": (
            mx.SliceError,
            split(COMBINING["places alone"], x),
            """
            an array that was made for the shape of a slice would become the tensor's.
              values: [h:8/m], on each processor float32[2]
              rule: inside a program the array of a split tensor is a slice, which JAX code may only see element by element.
              fix: make it with mx.arange, mx.random, mx.zeros and the like; mx.local for a function that may see slices; for optimizers optim.clipped and optim.Adafactor; or rename the dim to one that is not split.
            """,  # noqa: E501
        ),
        "of another dim": (
            mx.SliceError,
            lambda: mx.spmd(mapped(jnp.transpose), mx.Mesh("m:2 n:2"), "h:m other:n")(counting(h, other)),
            """
            a slice along 'other' would become that of another dim.
              values: [other:8/n], on each processor float32[4, 4]
              rule: inside a program the array of a split tensor is a slice, which JAX code may only see element by element.
              fix: use mx.transpose or mx.rename; mx.local for a function that may see slices; for optimizers optim.clipped and optim.Adafactor; or rename the dim to one that is not split.
            """,  # noqa: E501
        ),
        "a lifted function": (
            mx.ShapeError,
            lambda: mx.lift(jnp.sum, name="total")(x),
            """
            total is not elementwise: it returns an array of shape ().
              values: [h:8], on one processor (8,)
              rule: a lifted function makes each element of its result from one element of each operand.
              fix: use mx.local for a function of slices, or operations of meshax.
            """,
        ),
        "an array of another rank": (
            mx.ShapeError,
            split(mapped(lambda a: jnp.float32(1)), x),
            """
            the array of a tensor has 0 dimensions, the tensor 1.
              values: [h:8] with an array of shape ()
              rule: a function of trees (jax.tree.map, jax.vmap, optax) may change elements of a tensor, not its shape.
              fix: use operations of meshax: they keep dims that they do not know, without jax.vmap. Or give jax.vmap a function of arrays, which makes the tensor: lambda array: f(mx.tensor(array, dims)).array.
            """,  # noqa: E501
        ),
    }
)
