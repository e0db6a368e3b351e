"""Images of another size, as JAX makes them."""

import jax
import numpy as np
import pytest

import meshax as mx
from example_tensors import numbers
from extent import some
from messages import pinned

batch, height, width = mx.dims(batch=2, height=12, width=8)
mesh = mx.Mesh("rows:2 cols:4")
x = numbers(batch, height, width)


@pytest.mark.parametrize("method", some(["nearest", "linear"], "linear"))
def test_sizes_are_those_asked_for(method):
    sizes = {"height": 7, width: 24}
    for made in (
        mx.resize(x, sizes, method),
        mx.spmd(lambda x: mx.resize(x, sizes, method), mesh, "height:cols width:rows")(x),
    ):
        assert made.dims == (batch, mx.Dim("height", 7), mx.Dim("width", 24))
        wanted = jax.image.resize(x.numpy(), (2, 7, 24), method)
        np.testing.assert_allclose(made.numpy(), wanted, 1e-5, 1e-5)


@pytest.mark.parametrize("layout", ["", "height:rows", "height:cols width:rows", "width:rows+cols"])
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_linear_is_exact_in_64_bits(layout, dtype):
    sizes = {"height": 7, width: 24}
    with jax.enable_x64(True):
        wide = mx.tensor((x.numpy() + (2j * x.numpy() if dtype == np.complex128 else 0)).astype(dtype) / 3, x.dims)
        made = mx.spmd(lambda x: mx.resize(x, sizes, "linear"), mesh, layout)(wide).numpy()
        wanted = jax.image.resize(wide.numpy(), (2, 7, 24), "linear")
    assert made.dtype == dtype
    np.testing.assert_allclose(made, wanted, 1e-14, 1e-14)


@pytest.mark.parametrize(("method", "sent"), [("nearest", []), ("linear", [(2, 1, 8), (2, 1, 8)])])
def test_what_is_sent_to_be_twice_as_large(method, sent):
    program = mx.spmd(lambda x: mx.resize(x, {"height": 24}, method), mesh, "height:cols")

    assert [c.shape for c in program.explain(x).collectives] == sent


@pytest.mark.parametrize("size", range(1, 40, 6))
def test_nearest_is_exact(size):
    long = mx.arange(mx.Dim("long", 37)).astype(np.float32)

    made = mx.resize(long, {"long": size}).numpy()

    np.testing.assert_array_equal(made, (2 * np.arange(size) + 1) * 37 // (2 * size))
    np.testing.assert_array_equal(made, jax.image.resize(long.numpy(), (size,), "nearest"))


MISTAKES = {
    "a method that there is not": (
        mx.ArgumentError,
        lambda: mx.resize(x, {"height": 4}, "cubic"),
        """
        mx.resize has no method 'cubic'.
          rule: a method is "nearest" or "linear".
          fix: choose one of these.
        """,
    ),
    "a size without a name": (
        mx.ArgumentError,
        lambda: mx.resize(x, 4),
        """
        mx.resize takes the new size of each dim.
          values: 4
          fix: write mx.resize(x, {"height": 64}).
        """,
    ),
    "nothing": (
        mx.ArgumentError,
        lambda: mx.resize(x, {"height": 0}),
        """
        dim height:12 cannot get the size 0.
          fix: choose a size of at least 1.
        """,
    ),
    "sizes whose places do not fit": (
        mx.ArgumentError,
        lambda: mx.spmd(lambda: mx.resize(mx.zeros((mx.Dim("long", 2**20),)), {"long": 2**20 + 1}), mesh, "").trace(),
        """
        the elements of dim long:1048576 that are nearest to 1048577 others cannot be counted in 32 bits.
          fix: choose sizes with a common divisor, or resize in two steps.
        """,
    ),
}
test_messages = pinned(MISTAKES)
