"""The one door to collectives: every dtype goes through it, and comes out as it went in."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshax as mx
from example_tensors import counting
from meshax import collectives

batch, hidden = mx.dims(batch=6, hidden=5)
mesh = mx.Mesh("rows:2 cols:4")
EIGHTS = [name for name in dir(jnp) if name.startswith("float8") and "e8m0" not in name]  # which has no zero to add
FLOATS = [*EIGHTS, "bfloat16"] + ["float16", "float32", "float4_e2m1fn"]
DTYPES = [*FLOATS, "complex64", "bool", "int8", "uint8", "int16", "int32", "uint32", "int4"]


def values(dtype):
    numbers = np.float32([1, -0.0, -2, 0.5, 3]) if dtype in [*FLOATS, "complex64"] else np.float32([1, 0, 2, 1, 3])
    return mx.tensor(jnp.asarray(numbers).astype(dtype), hidden)


@pytest.mark.parametrize("layout", ["", "batch:rows", "batch:cols", "batch:rows+cols"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_copies_leave_a_program_as_they_are(dtype, layout):
    """Of a gradient's other results, those that follow from parameters are copies over the axes of the batch."""

    def loss(w, x):
        return mx.mean(mx.tanh(x * w)), mx.where(w == w, given, given)

    given, w, x = values(dtype), counting(hidden), counting(batch, hidden)
    gradient = mx.grad(loss, has_aux=True)

    _, found = mx.spmd(gradient, mesh, layout)(w, x)

    assert found.dtype == given.dtype
    np.testing.assert_array_equal(found.numpy(), given.numpy())


@pytest.mark.parametrize("layout", ["", "batch:rows", "batch:cols"])
def test_a_truth_about_parameters_beside_their_gradient(layout):
    w, x = counting(hidden) - 2, counting(batch, hidden)
    gradient = mx.grad(lambda w, x: (mx.mean(mx.tanh(x * w)), (w > 0, mx.any(w > 3), mx.sum(w > 0))), has_aux=True)

    _, found = mx.spmd(gradient, mesh, layout)(w, x)

    wanted = w.numpy() > 0
    for y, z in zip(found, (wanted, np.bool_(False), np.int32(2))):
        np.testing.assert_array_equal(y.numpy(), z, strict=True)


@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize(("dtype", "wanted"), [("bool", True), ("int8", -80), ("float16", 32.0), ("bfloat16", 36.0)])
def test_sums_over_axes(dtype, wanted, scattered):
    """22 int8 times 8 wraps around; parts of float16 may overflow where the whole does not."""
    parts = {"int8": [22] * 8, "float16": [6e4, 6e4, 6e4, 6e4, -6e4, -6e4, -6e4, -59968], "bfloat16": range(1, 9)}
    given = jnp.asarray(parts.get(dtype, [0, 0, 0, 1, 0, 1, 0, 0])).astype(dtype)

    def add(x):
        if scattered:
            return collectives.scatter_sum(jnp.broadcast_to(x, (8,)), ("rows", "cols"), 0)
        return collectives.sum_over(x, ("rows", "cols"))

    spec = jax.sharding.PartitionSpec(("rows", "cols"))
    out = spec if scattered else jax.sharding.PartitionSpec()
    found = jax.jit(jax.shard_map(add, mesh=mesh.jax_mesh, in_specs=spec, out_specs=out))(given)

    assert found.dtype == given.dtype
    assert set(np.asarray(found).astype(float)) == {float(wanted)}


def test_the_second_derivative_of_a_block_is_no_all_reduce_of_the_whole():
    mx.Dim.declare({"cut": "batch, renamed"})
    x = counting(batch)
    loss = lambda x: mx.sum(mx.square(mx.square(x.rename(batch="cut"))))  # noqa: E731
    second = mx.grad(lambda x: mx.sum(mx.square(mx.grad(loss)(x))))
    program = mx.spmd(second, mesh, "cut:cols")

    np.testing.assert_allclose(program(x).numpy(), 96 * x.numpy() ** 5, rtol=1e-5)
    assert all(c.elements < 6 for c in program.explain(x).collectives if c.kind == "all-reduce")
