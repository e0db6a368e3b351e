"""Flags that let collectives run beside computation. What they do on TPUs: tests/test_accelerators.py."""

import jax
import numpy as np
import pytest

import meshax as mx
from meshax.plan.compile.overlap import overlapping


def test_where_nothing_helps_there_are_no_flags():
    assert overlapping("cpu") == overlapping("") == {}


def test_each_answer_is_its_own():
    overlapping("tpu").clear()
    assert overlapping("tpu")["xla_tpu_enable_async_collective_fusion"] is True


@pytest.mark.parametrize("flag", sorted(overlapping("gpu").items()))
def test_xla_knows_the_flags_for_gpus(flag):
    """A compiler for CPUs takes them too, and refuses names that it does not know."""
    x = mx.arange(mx.Dim("rows", 16))
    program = mx.spmd(lambda x: mx.sum(x), mx.Mesh("x:8"), "rows:x", compiler_options=dict([flag]))
    np.testing.assert_equal(jax.device_get(program(x).numpy()), 120)
