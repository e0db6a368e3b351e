"""Convolutions, pools, resizes and paddings at random: under any layout what JAX gives for whole arrays.

Forward and by all gradients, to 1e-5 of the largest element, with NaN in all padding.
"""

import jax
import numpy as np
import pytest

import meshax as mx
from extent import WHOLE
from layouts import reference
from meshax.layout import Setting
from meshax.testing import forward_and_gradient, place_with_garbage
from window_cases import KINDS, random_case

NUM_CASES = {"conv": 2000, "conv_transpose": 2000, "max_pool": 1000, "mean_pool": 1000, "resize": 300, "pad": 300}
SAMPLED = {"conv": 6, "conv_transpose": 4, "max_pool": 3, "mean_pool": 3, "resize": 2, "pad": 2}
AT_ONCE = 20  # cases in one test
# The compiler for CPUs aborts on these, ours or the reference: it swaps the operands of a convolution whose input is
# dilated by the size of the window, and takes the dim for another kind. They are compiled without that pass.
SWAPPED = {("conv", 1839), *(("conv_transpose", seed) for seed in (935, 1745, 1851))}


def parts():
    """A kind, and the seeds of one test."""
    for kind in KINDS:
        count = NUM_CASES[kind] if WHOLE else SAMPLED[kind]
        for first in range(0, count, AT_ONCE):
            yield pytest.param(kind, range(first, min(first + AT_ONCE, count)), id=f"{kind}-{first}")


def check(case, flags=None):
    """Asserts that values and gradients are those of whole arrays."""
    mesh = mx.Mesh(case.mesh)
    whole = jax.jit(lambda *arrays: reference(case.reference, arrays, [True] * len(arrays)), compiler_options=flags)
    wanted, gradients = whole(*(x.numpy() for x in case.inputs))
    placed = [place_with_garbage(x, Setting(mesh, case.layout)) for x in case.inputs]
    program = mx.spmd(forward_and_gradient(case.fn, case.inputs), mesh, case.layout, compiler_options=flags)
    result, ours = program(*placed)
    for what, got, right in zip(["result", "by x", "by the kernel"], [result, *ours], [*wanted, *gradients]):
        right = np.asarray(right)
        finite = right[np.isfinite(right)]  # the maximum of a window that holds padding alone is not
        allowed = 1e-5 * max(1.0, float(np.max(np.abs(finite), initial=0)))
        np.testing.assert_allclose(got.numpy(), right, 1e-5, allowed, err_msg=f"{what}, {case.words}")


@pytest.mark.parametrize(("kind", "seeds"), list(parts()))
def test_random_windows(kind, seeds, record_property):
    for seed in seeds:
        print(f"{kind} {seed}")  # shown of a test that fails, or with -s: the last is the one
        check(random_case(kind, seed), {"xla_disable_hlo_passes": "algsimp"} if (kind, seed) in SWAPPED else None)
    record_property("checked", len(seeds))
