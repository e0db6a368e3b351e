"""What windows take on a TPU: by hand, and beside what the TPU compiler says."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import meshax as mx
from extent import some
from meshax.plan.cost.hardware import find
from meshax.plan.cost.processors import DescribedMesh
from meshax.plan.cost.tiles import tiled_bytes
from meshax.train.preset_steps import preset_target

PLACES = 16 * 32


def tiles(fn, *operands, dtype=jnp.bfloat16):
    """The tiled bytes of the steps of a function that have some, in a program for one TPU."""
    args = [mx.Tensor(jax.ShapeDtypeStruct([d.size for d in dims], dtype), dims) for dims in operands]
    program = mx.spmd(fn, DescribedMesh("rows:1", find("tpu-v3")), "")
    return [n for k in program.explain(*args).kernels.own if (n := tiled_bytes(k.step))]


def image(batch, channels=32):
    return mx.dims(batch=batch, x=16, y=32, channels=channels)


def convolve(x, kernel):
    return mx.conv(x, kernel, {"x": "kx", "y": "ky"}, over="channels")


def test_examples_and_channels_fill_tiles():
    kernel = mx.dims(kx=3, ky=3, channels=32, filters=200)
    weights = 9 * 32 * 256 * 2

    assert tiles(convolve, image(1), kernel) == [PLACES * (4 * 128 + 4 * 256) * 2 + weights]
    assert tiles(convolve, image(5), kernel) == [PLACES * (8 * 128 + 8 * 256) * 2 + weights]
    assert tiles(convolve, image(12, 128), mx.dims(kx=3, ky=3, channels=128, filters=200)) == [
        PLACES * (16 * 128 + 16 * 256) * 2 + 9 * 128 * 256 * 2
    ]


def test_what_is_cast_is_cast_on_the_way_out():
    kernel = mx.dims(kx=3, ky=3, channels=32, filters=32)
    cast = lambda x, kernel: mx.transpose(convolve(x, kernel), "filters batch x y").astype(jnp.float32)  # noqa: E731

    assert tiles(cast, image(8), kernel) == [PLACES * 8 * 128 * (2 + 4) + 9 * 32 * 128 * 2]


def test_a_pools_derivative_is_tiled_and_a_pool_is_not():
    pool = lambda x: mx.max_pool(x, {"x": 2, "y": 2})  # noqa: E731
    gradient = lambda x: mx.grad(lambda x: mx.sum(pool(x)))(x)  # noqa: E731

    assert tiles(pool, image(8), dtype=jnp.float32) == []
    assert tiles(gradient, image(8), dtype=jnp.float32) == [8 * 128 * 4 * (2 * PLACES + PLACES // 4)]


RESULTS = Path(__file__).parents[3] / "benchmarks" / "results" / "unet3d_512_memory.json"
COMPILED = {row["mesh"]: row for row in json.loads(RESULTS.read_text())["rows"] if row["kind"] == "v3"}
NEAR = ["copies:2 rows:2 cols:2", "rows:4 cols:4"]


@pytest.mark.parametrize("mesh", some(NEAR, "rows:4 cols:4"))
def test_a_volume_is_near_what_the_compiler_says(mesh):
    step, row = preset_target("unet3d-512"), COMPILED[mesh]
    program = step.build(mesh, row["layout"], hardware=find("tpu-v3"))
    assert 0.75 < program.explain(*step.args).memory["peak"] / row["compiler_bytes"] < 1.25
