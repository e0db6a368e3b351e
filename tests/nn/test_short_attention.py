"""Our kernels for short sequences equal attention in float32, forward and backward; where they are called.

They are written for Hopper GPUs. Here Pallas's interpreter runs them, shared memory, barriers and all: it knows one
processor at a time, and JAX has it from 0.11 on. `tests/test_accelerators.py` runs them on a GPU.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu

import meshax as mx
from extent import some
from meshax import nn
from meshax.nn import short_attention
from meshax.plan.explain.report import explain

INTERPRETED = hasattr(mosaic_gpu, "InterpretGPUParams")


ours = short_attention.short_attention


def interpreted(*args):
    return ours(*args, mosaic_gpu.InterpretGPUParams())


def in_float32(q, k, v, segments, scale, causal):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, precision="highest") * scale
    at = jnp.arange(q.shape[1])
    seen = (at[:, None] >= at) | (not causal)
    if segments is not None:
        seen = seen & (segments[:, None, :, None] == segments[:, None, None, :])
    weights = jax.nn.softmax(jnp.where(seen, scores, -1e30))
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v, precision="highest")


def random_cases(count):
    draw = np.random.default_rng(0)
    for _ in range(count):
        length = 128 * int(draw.integers(1, 5))
        examples, heads = ((1, 1), (1, 2), (2, 1), (1, 3), (2, 2))[draw.integers(5)]
        shape = (examples, length, heads, int(draw.choice((128, 256))))
        yield shape, bool(draw.integers(2)), bool(draw.integers(2)), draw.choice(("bfloat16", "float16"))


FIRST = ((1, 256, 1, 256), True, True, "bfloat16")


@pytest.mark.skipif(not INTERPRETED, reason="JAX 0.10 has no public interpreter of these kernels")
@pytest.mark.parametrize("case", some([FIRST, *random_cases(50)], FIRST), ids=str)
def test_equals_attention_in_float32(case):
    shape, causal, packed, dtype = case
    q, k, v, cotangent = (jax.random.normal(key, shape, dtype) for key in jax.random.split(jax.random.key(3), 4))
    documents = np.cumsum(np.arange(shape[0] * shape[1]).reshape(shape[:2]) % 53 == 0, axis=1)
    segments = jnp.asarray(documents, jnp.int32) if packed else None
    scale = 0.7 * shape[-1] ** -0.5

    out, back = jax.vjp(lambda q, k, v: interpreted(q, k, v, segments, scale, causal), q, k, v)
    exact = [x.astype(jnp.float32) for x in (q, k, v, cotangent)]
    wanted, wanted_back = jax.vjp(lambda q, k, v: in_float32(q, k, v, segments, scale, causal), *exact[:3])

    pairs = zip((out, *back(cotangent)), (wanted, *wanted_back(exact[3])), strict=True)
    for got, right in pairs:
        assert got.dtype == q.dtype
        assert jnp.max(jnp.abs(got - right)) < 0.01 * jnp.max(jnp.abs(right))


batch, positions, d_model, heads, d_kv = mx.dims(batch=4, positions=256, d_model=64, heads=4, d_kv=256)
H200 = "NVIDIA H200"


def loss_of(packed):
    def step(layer, x, segments):
        def loss(layer, x, segments):
            return mx.sum(layer(x, segments=segments if packed else None).astype(jnp.float32) ** 2)

        return mx.value_and_grad(loss)(layer, x, segments)

    return step


def arguments(**options):
    layer = nn.Attention.init(jax.random.key(0), d_model, heads, d_kv, **options)
    x = mx.random.normal(jax.random.key(1), (batch, positions, d_model)).astype(jnp.bfloat16)
    documents = np.arange(batch.size * positions.size).reshape(batch.size, positions.size) // 90
    return layer, x, mx.tensor(documents, (batch, positions)).astype(jnp.int32)


def pretend(monkeypatch, kind):
    monkeypatch.setattr(mx.Mesh, "platform", "gpu")
    monkeypatch.setattr(mx.Mesh, "device_kind", kind)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("layout", ["batch:data heads:model", "batch:data+model", ""])
def test_a_layer_calls_them_on_its_own_heads_and_examples(monkeypatch, packed, layout):
    """Types over the mesh are right, or JAX would refuse; the plan counts the products they stand for."""
    pretend(monkeypatch, H200)
    report = explain(mx.spmd(loss_of(packed), mx.Mesh("data:2 model:2"), layout), *arguments())

    kernels = {k.step.params.get("name"): k for k in report.kernels.all() if k.step.name == "mpmd_map"}
    assert list(kernels) == ["short_attention_forward", "short_attention_backward"]
    parts = 4 if layout else 1
    product = 2 * batch.size * heads.size * positions.size**2 * d_kv.size // parts
    assert [kernel.flops for kernel in kernels.values()] == [2 * product, 5 * product]
    assert [kernel.step.inputs[0].shape for kernel in kernels.values()] == [
        (report.kernels.block.inputs[-2].shape[0], 256, 2 if "heads" in layout else 4, 256)
    ] * 2


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("NVIDIA A100-SXM4-80GB", {}),
        ("NVIDIA B200", {}),
        (H200, dict(window=100)),
        (H200, dict(kv_heads=1)),
        (H200, dict(kv_heads=2)),
        (H200, dict(causal=False)),
    ],
)
def test_elsewhere_it_is_cudnns(monkeypatch, kind, options):
    class CalledCudnn(Exception):
        pass

    def cudnn(*args):
        raise CalledCudnn

    pretend(monkeypatch, kind)
    monkeypatch.setattr("meshax.nn.attention_kernels._cudnn", cudnn)
    with pytest.raises(CalledCudnn):
        explain(mx.spmd(loss_of(True), mx.Mesh("data:1"), ""), *arguments(**options))


@pytest.mark.parametrize(
    ("length", "d", "dtype", "taken"),
    [
        (256, 256, jnp.bfloat16, True),
        (128, 256, jnp.bfloat16, False),
        (256, 64, jnp.bfloat16, False),
        (256, 256, jnp.float32, False),
    ],
)
def test_sizes(length, d, dtype, taken):
    assert short_attention.takes(length, d, jnp.dtype(dtype)) == taken


@pytest.mark.skipif(not INTERPRETED, reason="JAX 0.10 has no public interpreter of these kernels")
@pytest.mark.exhaustive
def test_a_layer_gives_what_products_give(monkeypatch):
    args = arguments()
    program = functools.partial(mx.spmd, loss_of(True), mx.Mesh("data:1"), "batch:data")
    wanted, wanted_gradients = program()(*args)

    monkeypatch.setattr("meshax.nn.attention_kernels._has_short", lambda *_: True)
    monkeypatch.setattr(short_attention, "short_attention", interpreted)
    value, gradients = program()(*args)

    np.testing.assert_allclose(float(value), float(wanted), rtol=1e-3)
    for got, right in zip(jax.tree.leaves(gradients), jax.tree.leaves(wanted_gradients), strict=True):
        got, right = (np.asarray(x, np.float32) for x in (got, right))
        np.testing.assert_allclose(got, right, atol=2e-2 * np.abs(right).max())
