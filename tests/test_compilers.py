"""What the supported compilers get wrong: plain JAX programs, and the versions in which each is wrong.

meshax promises results on every version it supports, so its operations keep clear of these programs. The table says in
which versions each one is wrong on CPUs; a test fails when a version mends one or brings it back, and with a version
that the table does not know yet: then run it, write down what it gives, and look whether ours may be simplified.
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshax as mx

SUPPORTED = ("0.10", "0.11", "0.12")  # each by its last release
VERSION = ".".join(jax.__version__.split(".")[:2])


@dataclass
class Wrong:
    """A program that some compiler gets wrong."""

    run: Any  # a function of arrays
    args: tuple
    wanted: Any
    versions: frozenset  # in which it is wrong
    keeps_clear: str  # what of ours depends on it


X = np.arange(18, dtype=np.float32).reshape(6, 3)
BLOCK, ONES, OUT = X[:3], np.ones((1, 3), np.float32), np.int32([3])  # OUT: the first row that the block does not have
OLD = frozenset({"0.10", "0.11"})


def _cut(fn):
    """A function of a block that is cut from a larger array, at a place that the compiler does not know."""
    return lambda x, start, i: fn(jax.lax.dynamic_slice_in_dim(x, start, 3, 0), i)


def _of_a_block(fn, wanted, versions=OLD, index=OUT, keeps_clear="scatters and gathers of ops/indexing"):
    return Wrong(_cut(fn), (X, 0, index), wanted, versions, keeps_clear)


# A slice of a slice is fused into one, and then clamped to the larger array: row 3 is read where row 2, the last one of
# the block, is meant. A dropped update reads what it does not update.
WRONG = {
    "a dropped update": _of_a_block(lambda x, i: x.at[i].add(ONES, mode="drop"), BLOCK),
    "a dropped update of zeros": _of_a_block(lambda x, i: x + jnp.zeros((3, 3)).at[i].add(ONES, mode="drop"), BLOCK),
    "a dropped element": _of_a_block(lambda x, i: x.at[i].set(ONES, mode="drop"), BLOCK),
    "a dropped maximum": _of_a_block(lambda x, i: x.at[i].max(99 * ONES, mode="drop"), BLOCK),
    "a dropped factor": _of_a_block(lambda x, i: x.at[i].multiply(7 * ONES, mode="drop"), BLOCK),
    "a segment_sum": _of_a_block(lambda x, i: x + jax.ops.segment_sum(ONES, i, 3), BLOCK),
    "a clamped read": _of_a_block(lambda x, i: x + x.at[i].get(mode="clip"), BLOCK + BLOCK[2]),
    "a read of dynamic_slice": _of_a_block(
        lambda x, i: x + jax.lax.dynamic_slice(x, (i[0], 0), (1, 3)), BLOCK + BLOCK[2]
    ),
}
# The same with a static cut, with indices in range, with fills: what ours may rely on.
RIGHT = {
    "an update in range": _of_a_block(
        lambda x, i: x.at[i].add(ONES), BLOCK + np.float32([[0], [0], [1]]), frozenset(), np.int32([2])
    ),
    "one row more, cut off": _of_a_block(
        lambda x, i: jnp.pad(x, ((0, 1), (0, 0))).at[i].add(ONES)[:3], BLOCK, frozenset()
    ),
    "a clamped update": _of_a_block(
        lambda x, i: x.at[i].add(ONES, mode="clip"), BLOCK + np.float32([[0], [0], [1]]), frozenset()
    ),
    "a filled read": _of_a_block(lambda x, i: x + x.at[i].get(mode="fill", fill_value=0.0), BLOCK, frozenset()),
    "an update of dynamic_update_slice": _of_a_block(
        lambda x, i: jax.lax.dynamic_update_slice(x, ONES, (i[0], 0)),
        np.concatenate([BLOCK[:2], ONES]),
        frozenset(),
    ),
    "a dropped update along the other dim": _of_a_block(
        lambda x, i: x.at[:, i].add(1.0, mode="drop"), BLOCK, frozenset()
    ),
    "a dropped update of a static block": Wrong(
        lambda x, i: x[:3].at[i].add(ONES, mode="drop"), (X, OUT), BLOCK, frozenset(), "nothing"
    ),
}


@pytest.mark.parametrize("name", [*WRONG, *RIGHT])
def test_which_versions_are_wrong(name):
    assert VERSION in SUPPORTED, f"jax {jax.__version__} is new: run this table with it, and write down what is wrong"
    case = (WRONG | RIGHT)[name]
    is_wrong = not np.allclose(jax.jit(case.run)(*case.args), case.wanted)
    if VERSION in case.versions:
        assert is_wrong, f"jax {jax.__version__} has mended this: correct the table (it concerns {case.keeps_clear})"
    else:
        assert not is_wrong, f"jax {jax.__version__} gets this wrong: correct the table, and see {case.keeps_clear}"


@pytest.mark.parametrize("name", [*WRONG, *RIGHT])
def test_unfused_all_versions_are_right(name):
    """Op by op nothing is fused: the tables say what the programs mean."""
    case = (WRONG | RIGHT)[name]
    with jax.disable_jit():
        np.testing.assert_allclose(case.run(*map(jnp.asarray, case.args)), case.wanted)


# The programs of ours that met them.
row, col, n = mx.dims("row:6 col:3 n:1")


def _loop(x):
    return mx.scan(lambda s, r: (s, r * 1.0), mx.zeros(()), x, over=row)[1]


OURS = {
    "scatter_add after a loop": lambda x, i: mx.scatter_add(_loop(x), i, mx.ones((n, col)), row),
    "scatter_add after a rename": lambda x, i: mx.scatter_add(x.rename(row="other"), i, mx.ones((n, col)), "other"),
    "gather after a loop": lambda x, i: mx.gather(_loop(x), i, row),
    "gather after a rename": lambda x, i: mx.gather(x.rename(row="other"), i, "other"),
    "the gradient of a gather": lambda x, i: mx.grad(lambda x: mx.sum(mx.square(mx.gather(_loop(x), i, row))))(x),
    "a slice after a loop": lambda x, i: mx.slice(_loop(x), row, 2, 3),
    "a shift after a loop": lambda x, i: mx.shift(_loop(x), row, 2),
    "cumsum after a rename": lambda x, i: mx.cumsum(x.rename(row="other"), "other"),
    "windows after a rename": lambda x, i: mx.windows(x.rename(row="other"), "other", mx.Dim("n", 2), before=1),
}


@pytest.mark.parametrize("layout", ["row:x", "other:x", "row:x other:x"])
def test_ours_keep_clear_of_them(layout):
    x = mx.tensor(X, (row, col))
    mx.Dim("other", 6)

    def every(x, i):
        return {name: fn(x, i) for name, fn in OURS.items()}

    split, whole = mx.spmd(every, mx.Mesh("x:2"), layout), jax.jit(every)
    for at in (0, 2, 3, 5, 6, -1):
        i = mx.tensor(np.int32([at]), (n,))
        got, wanted = split(x, i), whole(x, i)
        for name in OURS:
            np.testing.assert_allclose(got[name].numpy(), wanted[name].numpy(), 1e-6, err_msg=f"{name} at {at}")


READ_BACK = """
import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding, PartitionSpec as P

WEIGHTS = np.cos(np.arange(3 * 8 * 5, dtype=np.float32)).reshape(3, 8, 5)


def held(x, other):  # what 5 of the 8 processors hold
    return jnp.where(jax.lax.axis_index("x") < 5, x, other)


def softmax(x):  # in its gradient three all-reduces, one after the other
    bits = jax.lax.bitcast_convert_type(jax.lax.stop_gradient(jnp.max(held(x, -jnp.inf), 1)), jnp.int32)
    highest = jax.lax.bitcast_convert_type(jax.lax.pmax(bits, "x"), jnp.float32)
    powers = jnp.exp(x - highest[:, None])
    return powers / jax.lax.psum(jnp.sum(held(powers, 0.0), 1), "x")[:, None]


def loop(x):  # an all-reduce in each step, and an all-gather in each step of its gradient
    def step(carry, part):
        total = carry + jax.lax.psum(jnp.sum(held(part, 0.0), 1), "x")
        carry = jnp.tanh(checkpoint_name(total, "total"))
        return carry, carry[:, None] * jax.lax.all_gather(part, "x", axis=1, to="invarying").reshape(8, 8)[:, :5]

    keep = jax.checkpoint_policies.save_only_these_names("total")
    return jax.lax.scan(jax.checkpoint(step, policy=keep), jnp.zeros(8), jnp.moveaxis(x, 2, 0))


def gradients(x):
    own = jax.lax.dynamic_slice_in_dim(jnp.pad(WEIGHTS, ((0, 0), (0, 0), (0, 3))), jax.lax.axis_index("x"), 1, 2)
    weighted = lambda x: jax.lax.psum(jnp.sum(held(softmax(x) * jnp.moveaxis(own, 0, 2), 0.0)), "x")
    return jax.grad(weighted)(x), jax.grad(lambda x: jnp.sum(loop(x)[0]) + jnp.sum(loop(x)[1] * WEIGHTS))(x)


mesh, split = jax.sharding.Mesh(np.array(jax.devices()), ("x",)), P(None, "x")
x = jax.device_put(np.sin(np.arange(192, dtype=np.float32)).reshape(8, 8, 3), NamedSharding(mesh, split))
wanted = None
for place in ("compiled", "read back"):
    jax.clear_caches()
    run = jax.jit(jax.shard_map(gradients, mesh=mesh, in_specs=split, out_specs=(split, split)))
    for _ in range(300):
        results = jax.block_until_ready(run(x))
        wanted = wanted or results
        jax.tree.map(np.testing.assert_array_equal, results, wanted)
    print(place, flush=True)
"""


@pytest.mark.exhaustive
def test_programs_that_are_read_back_from_the_compilation_cache(tmp_path):
    """The collectives of such a program lose their order: two of them meet, and the process is aborted.

    It takes a loop of gathers beside sums that wait for each other. So nothing is read back for several processors on
    CPUs, neither by the command line nor in these tests.
    """
    environment = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_cpu_collective_call_terminate_timeout_seconds=30",
    }
    done = subprocess.run([sys.executable, "-c", READ_BACK], env=environment, capture_output=True, text=True)
    assert done.returncode != 0, f"jax {jax.__version__} has mended this: see cli/compile_cache.py"
    assert done.stdout == "compiled\n"
