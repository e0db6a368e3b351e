"""How a message is built: what failed, on which values, which rule, what to do."""

import jax
import pytest

import meshax as mx
from meshax.errors import did_you_mean


def test_a_message_has_four_parts_in_order():
    error = mx.ShapeError("it failed.", fix="do this.", values="[batch:6]", rule="it must not.")

    assert str(error) == "it failed.\n  values: [batch:6]\n  rule: it must not.\n  fix: do this."


def test_a_message_leaves_out_the_parts_it_has_nothing_for():
    assert str(mx.MeshaxError("it failed.", fix="do this.")) == "it failed.\n  fix: do this."


@pytest.mark.parametrize(
    "error",
    [
        mx.ArgumentError,
        mx.CheckpointError,
        mx.DimError,
        mx.DtypeError,
        mx.LayoutError,
        mx.MeshError,
        mx.OptimizerError,
        mx.ShapeError,
    ],
)
def test_every_error_is_a_value_error(error):
    assert issubclass(error, mx.MeshaxError)
    assert issubclass(error, ValueError)


@pytest.mark.parametrize(
    ("known", "sentence"),
    [
        (["batch", "length"], 'did you mean "batch"?'),
        (["batches", "batch", "length"], 'did you mean "batch" or "batches"?'),
        (["width", "height"], "known names: height, width."),
        ([f"n{i:02}" for i in range(13)], "known names: " + ", ".join(f"n{i:02}" for i in range(12)) + ", ..."),
        ([], "there are none yet."),
    ],
)
def test_did_you_mean(known, sentence):
    assert did_you_mean("bacth", known) == sentence


def test_an_error_inside_a_program_points_at_the_users_line():
    batch, length = mx.dims(batch=4, length=6)

    def wrong(x):
        return jax.jit(lambda x: mx.sum(x, over="lenght"))(x)  # the user's line

    with pytest.raises(mx.ShapeError) as error:
        mx.spmd(mx.grad(lambda x: mx.sum(wrong(x))), mx.Mesh("x:2"), "batch:x")(mx.ones((batch, length)))
    assert [note for note in error.value.__notes__ if "test_errors.py" in note and "# the user's line" in note]
