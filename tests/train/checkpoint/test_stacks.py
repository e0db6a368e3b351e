"""A stack of layers is restored apart, layers apart as a stack: values, dtypes, any mesh, and what does not fit."""

import jax.numpy as jnp
import numpy as np
import pytest

import meshax as mx
from meshax.train.checkpoint import Checkpoints

layers, rows, cols = mx.dims(layers=3, rows=10, cols=6)
MESH = mx.Mesh("x:2 y:4")
LAYOUT = mx.Layout("cols:x", params="rows:y")


def stack(count=3, first=0):
    """Parameters and moments of a stack, as an optimizer has them: a moment's own index comes after the layer's."""
    dims = (mx.Dim("layers", count), rows, cols)
    values = first + np.arange(count * 60, dtype=np.float32).reshape(count, 10, 6)
    moments = (mx.tensor(values[:, 0] / 2, (dims[0], cols)), mx.tensor(values[:, :, 0] / 4, (dims[0], rows)))
    return {
        "model": {"layers": {"w": mx.param(mx.tensor(values, dims))}, "out": mx.ones(cols)},
        "moments": {"layers": {"w": moments}},
    }


def apart(tree):
    """The same as a list of layers."""
    count = tree["model"]["layers"]["w"].dim("layers").size
    w = [mx.param(x) for x in mx.unstack(tree["model"]["layers"]["w"], "layers")]
    moments = [mx.unstack(m, "layers") for m in tree["moments"]["layers"]["w"]]
    return {
        "model": {"layers": [{"w": w[i]} for i in range(count)], "out": tree["model"]["out"]},
        "moments": {"layers": [{"w": tuple(m[i] for m in moments)} for i in range(count)]},
    }


def assert_equal(got, wanted):
    import jax

    is_leaf = lambda x: isinstance(x, mx.Tensor)  # noqa: E731
    got, wanted = jax.tree.leaves(got, is_leaf=is_leaf), jax.tree.leaves(wanted, is_leaf=is_leaf)
    assert len(got) == len(wanted)
    for x, y in zip(got, wanted):
        assert x.dims == y.dims and x.role == y.role and x.dtype == y.dtype
        np.testing.assert_array_equal(x.numpy(), y.numpy())


@pytest.mark.parametrize("mesh", [mx.Mesh("x:1 y:1"), MESH], ids=str)
@pytest.mark.parametrize(("way", "count"), [("apart", 3), ("stacked", 3), ("apart", 1), ("stacked", 1)])
def test_either_way_into_either_way(tmp_path, mesh, way, count):
    trees = stack(count), apart(stack(count))
    saved, wanted = trees if way == "apart" else reversed(trees)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, mx.put(saved, MESH, LAYOUT))
        got, _ = checkpoints.restore(like=wanted, mesh=mesh, layout=LAYOUT)
        assert_equal(got, wanted)
        narrow, _ = checkpoints.restore(like=wanted, mesh=mesh, layout=LAYOUT, dtype=jnp.bfloat16)
        assert narrow["model"]["out"].dtype == jnp.bfloat16


def test_a_part_of_it(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, stack())
        wanted = {"model": apart(stack())["model"]}
        assert_equal(checkpoints.restore(like=wanted, mesh=MESH, layout=LAYOUT, partial=True)[0], wanted)
        with pytest.raises(mx.CheckpointError, match=r"\['moments'\]\['layers'\]\['w'\]\[0\]: is unexpected"):
            checkpoints.restore(like=wanted, mesh=MESH, layout=LAYOUT)


@pytest.mark.parametrize(
    ("saved", "wanted", "words"),
    [
        (stack(3), apart(stack(4)), r"\['layers'\]\[3\]\['w'\]: is missing"),
        (apart(stack(3)), stack(4), r"\['layers'\]\['w'\]: is missing"),
        (apart(stack(4)), stack(3), r"\['layers'\]\['w'\]: is missing"),
    ],
    ids=["too few in the stack", "too few apart", "too many apart"],
)
def test_another_depth_is_another_model(tmp_path, saved, wanted, words):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, saved)
        with pytest.raises(mx.CheckpointError, match=words):
            checkpoints.restore(like=wanted, mesh=MESH, layout=LAYOUT)


def test_fewer_layers_of_a_stack_than_it_has(tmp_path):
    """A stack of 4 has the 3 that are asked for, and one that nobody asks for: that may not go unsaid."""
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, stack(4))
        with pytest.raises(mx.CheckpointError, match="is missing"):
            checkpoints.restore(like=apart(stack(3)), mesh=MESH, layout=LAYOUT)
