"""Slabs: the same values and gradients, the same borders sent, and fewer bytes where a TPU compiles."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_random_windows import check

import meshax as mx
from example_tensors import numbers
from extent import some
from hlo import operands
from meshax.spatial import pooling, slabs
from window_cases import random_case

mesh = mx.Mesh("rows:2 cols:4")
batch, height, width, c_in, c_out = mx.dims(batch=1, height=16, width=64, c_in=3, c_out=5)
x, kernel = numbers(batch, height, width, c_in), numbers(*mx.dims(kh=3, kw=3, c_in=3, c_out=5))


@pytest.fixture
def cuts(monkeypatch):
    """Everything that can be cut is cut, whatever it costs; the numbers of slabs, as they are decided."""
    counts = []

    def count_slabs(num_examples, length, shared=0):
        fits = [n for n in range(2, 8) if length and length % n == 0 and length // n >= shared]
        counts.append(fits[0] if fits else 1)
        return counts[-1]

    for module in (slabs, pooling):
        monkeypatch.setattr(module, "count_slabs", count_slabs)
    return counts


# Of the random cases, some in which a dim can be cut.
SEEDS = {
    "conv": [10, 11, 28, 34, 44, 59, 77, 79, 83, 87, 106],
    "conv_transpose": [5, 10, 16, 25, 32, 33, 36, 39, 40, 48, 49, 50, 52, 65, 67],
    "max_pool": [15, 26, 30, 51, 56, 58],
    "mean_pool": [0, 4, 40, 57, 62, 63],
}


CASES = [(kind, seed) for kind, seeds in SEEDS.items() for seed in seeds]


@pytest.mark.parametrize("case", some(CASES, ("conv", 10), ("conv_transpose", 5), ("max_pool", 15)), ids=str)
def test_random_windows_by_slabs(case, cuts):
    check(random_case(*case))
    assert any(n > 1 for n in cuts)


def step(x, kernel):
    def loss(both):
        y = mx.conv(*both, {"height": "kh", "width": "kw"}, over="c_in")
        return mx.sum(mx.sin(mx.max_pool(y, {"height": 2, "width": 2})))

    return mx.value_and_grad(loss)((x, kernel))


@pytest.mark.parametrize("layout", ["height:rows", "height:rows width:cols", "width:cols"])
def test_what_is_sent_does_not_change(layout, monkeypatch):
    plain = mx.spmd(step, mesh, layout).compile(x, kernel)
    monkeypatch.setattr(slabs, "current", lambda: SimpleNamespace(mesh=SimpleNamespace(platform="tpu")))
    monkeypatch.setattr(slabs, "LEAST", 1)
    cut = mx.spmd(step, mesh, layout).compile(x, kernel)

    assert operands(cut) == operands(plain)
    assert cut.as_text() != plain.as_text()


def test_a_dim_is_cut_where_that_fills_tiles(monkeypatch):
    assert slabs.count_slabs(1, 512, 2) == 1  # no TPU
    monkeypatch.setattr(slabs, "current", lambda: SimpleNamespace(mesh=SimpleNamespace(platform="tpu")))

    assert [slabs.count_slabs(n, 512, 2) for n in (1, 2, 3, 4, 6, 8, 16)] == [8, 4, 8, 2, 4, 1, 1]
    assert [slabs.count_slabs(1, n, 2) for n in (128, 120, 132)] == [8, 1, 1]  # too short, does not divide
    assert [slabs.count_slabs(1, n) for n in (64, 56)] == [8, 1]


def test_slabs_share_what_windows_reach():
    places = jnp.arange(14.0).reshape(1, 14, 1)

    got = slabs.cut(places, 1, 4, 2)

    np.testing.assert_array_equal(
        got[..., 0], [[0, 1, 2, 3, 4], [3, 4, 5, 6, 7], [6, 7, 8, 9, 10], [9, 10, 11, 12, 13]]
    )
    np.testing.assert_array_equal(slabs.join(got[:, :3], 1, 4), places[:, :12])


VOLUME, TAPS = mx.dims(batch=1, x=32, y=32, z=128, features=32), mx.dims(kx=3, ky=3, kz=3, features=32, filters=32)


def loss_of_conv(x, kernel):
    return mx.sum(mx.sin(mx.conv(x, kernel, {"x": "kx", "y": "ky", "z": "kz"}, over="features")).astype(jnp.float32))


def loss_of_pool(x, kernel):
    return mx.sum(mx.sin(mx.max_pool(x, {"x": 2, "y": 2, "z": 2})).astype(jnp.float32))


@pytest.mark.tpu
@pytest.mark.parametrize("loss", [loss_of_conv, loss_of_pool])
def test_a_volume_takes_less_on_a_tpu(loss):
    x, kernel = (mx.Tensor(jax.ShapeDtypeStruct([d.size for d in s], jnp.bfloat16), s) for s in (VOLUME, TAPS))
    program = mx.spmd(
        lambda x, kernel: mx.grad(lambda both: loss(*both))((x, kernel)),
        mx.Mesh("rows:2 cols:4", topology="tpu v3:2x2"),
        "x:rows",
    )

    temporaries = program.compile(x, kernel).memory_analysis().temp_size_in_bytes

    block = 16 * 32 * 128 * 32 * 2
    assert temporaries < 4 * 4 * block  # one operand as the compiler pads one example; it needs two
