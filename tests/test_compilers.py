"""What the supported compilers get wrong: plain JAX programs, and the versions in which each is wrong.

meshax promises results on every version it supports, so its operations keep clear of these programs. The table says in
which versions each one is wrong on CPUs; a test fails when a version mends one or brings it back, and with a version
that the table does not know yet: then run it, write down what it gives, and look whether ours may be simplified.
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
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
import meshax as mx
import test_roles as roles

group, mesh = roles.CONTROL, mx.Mesh("x:8")
group.prepare()
inputs = [mx.param(x) for x in group.inputs]
for layout in roles.random_layouts(mesh, group.names, inputs, 16, f"{group.name} {mesh}"):
    roles.check_group(mesh, layout, group.cases, inputs)
print("every one is right")
"""


@pytest.mark.exhaustive
def test_programs_that_are_read_back_from_the_compilation_cache(tmp_path):
    """In 0.10 the collectives of such a program lose their order: two all-reduces meet, and the process is aborted.

    We know no smaller program that does it: all of JAX's control flow, each with collectives inside, 16 times over. So
    nothing is read back there on CPUs, neither by the command line nor in these tests.
    """
    tests = Path(__file__).parent
    environment = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "PYTHONPATH": os.pathsep.join([*map(str, (tests / "invariants", tests)), *sys.path]),
    }
    done = subprocess.run([sys.executable, "-c", READ_BACK], env=environment, capture_output=True, text=True)
    assert (done.returncode == 0) == (VERSION != "0.10"), done.stderr[-2000:]
    assert ("every one is right" in done.stdout) == (VERSION != "0.10")
