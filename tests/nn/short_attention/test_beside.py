"""A kernel is compiled beside its program: the same call, to the byte, stands in both."""

import concurrent.futures
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshax.nn import short_attention
from meshax.nn.short_attention import beside

SHAPE = (2, 256, 3, 256)


def loss(q, k, v):
    return short_attention.short_attention(q, k, v, None, 0.05, True).astype(jnp.float32).sum()


def lowered(traced):
    """Lowers for GPUs, which need not be there; returns the custom calls."""
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    return re.findall(r"custom_call @mosaic_gpu_v2.*?(mhlo\.backend_config = \{.*?\})", text)


def operands(*count):
    return [jax.ShapeDtypeStruct((*count, *SHAPE), jnp.bfloat16)] * 3


class Asked:
    """Remembers what threads are asked to do."""

    def __init__(self):
        self.work = []

    def submit(self, *work):
        self.work.append(work)


@pytest.fixture
def asked(monkeypatch):
    remembered = Asked()
    monkeypatch.setattr(beside, "_threads", remembered)
    return remembered


def test_each_kernel_is_compiled_alone_as_it_is_called(monkeypatch, asked):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    called = lowered(jax.jit(jax.grad(loss, (0, 1, 2))).trace(*operands()))
    assert len(called) == 2 and called[0] != called[1]
    assert [lowered(beside.alone(*described)) for _, *described in asked.work] == [[call] for call in called]


def test_several_layers_have_it_compiled_once(monkeypatch, asked):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    layers = jax.jit(lambda q, k, v: loss(short_attention.short_attention(q, k, v, None, 0.05, True), k, v))
    assert len(lowered(layers.trace(*operands()))) == len(asked.work) == 1


def test_nothing_is_compiled_where_no_gpu_is(asked):
    assert len(lowered(jax.jit(loss).trace(*operands()))) == 1
    assert asked.work == []


def test_under_vmap_it_is_the_kernel_still():
    assert len(lowered(jax.jit(jax.vmap(loss)).trace(*operands(3)))) == 1


@pytest.mark.gpu
def test_the_thread_compiles_it(monkeypatch):
    work = []

    class Threads(concurrent.futures.ThreadPoolExecutor):
        def submit(self, *what):
            work.append(super().submit(*what))

    monkeypatch.setattr(beside, "_threads", Threads(2))
    q, k, v = (jax.random.normal(key, SHAPE, jnp.bfloat16) for key in jax.random.split(jax.random.key(0), 3))
    gradients = jax.jit(jax.grad(loss, (0, 1, 2)))(q, k, v)
    assert len(work) == 2
    for one in work:
        one.result()
    again = jax.jit(jax.grad(lambda *xs: loss(*xs), (0, 1, 2)))(q, k, v)
    for one, other in zip(gradients, again, strict=True):
        np.testing.assert_array_equal(one, other)
