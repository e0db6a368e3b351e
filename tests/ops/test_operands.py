"""What is refused as an operand."""

import jax.numpy as jnp
import numpy as np
import pytest

import meshax as mx
from example_tensors import counting
from messages import pinned

batch = mx.Dim("batch", 6)

x, array = counting(batch), np.zeros((6, 4), np.float32)


@pytest.mark.parametrize(
    "op",
    [
        *("sum", "mean", "var", "prod", "max", "min", "all", "any", "logsumexp"),
        *("exp", "relu", "sqrt", "tanh", "negative", "isnan", "clip", "stop_gradient"),
    ],
)
def test_every_operation_names_itself(op):
    with pytest.raises(mx.ShapeError) as raised:
        getattr(mx, op)(array)
    assert str(raised.value).startswith(f"mx.{op} takes tensors, not an array.\n  values: float32[6, 4]\n")


@pytest.mark.parametrize(
    ("op", "argument"),
    [
        *(("argmax", batch), ("argmin", batch), ("softmax", batch), ("log_softmax", batch), ("transpose", batch)),
        *(("broadcast", batch), ("reshape", batch), ("rename", {"batch": "length"})),
    ],
)
def test_every_operation_with_dims_names_itself(op, argument):
    with pytest.raises(mx.ShapeError) as raised:
        getattr(mx, op)(array, argument)
    assert str(raised.value).startswith(f"mx.{op} takes tensors, not an array.\n  values: float32[6, 4]\n")


MISTAKES = {
    "a numpy array": (
        mx.ShapeError,
        lambda: mx.einsum(x, np.ones(6), over=batch),
        """
        mx.einsum takes tensors, not an array.
          values: float64[6]
          rule: an array takes part in an operation through the names of its dims.
          fix: name them: mx.tensor(array, "batch hidden").
        """,
    ),
    "a numpy array on the left of an operator": (
        mx.ShapeError,
        lambda: np.ones(6) * x,
        """
        operator * takes tensors, not an array.
          values: float64[6]
          rule: an array takes part in an operation through the names of its dims.
          fix: name them: mx.tensor(array, "batch hidden").
        """,
    ),
    "a jax array": (
        mx.ShapeError,
        lambda: mx.maximum(jnp.ones((6, 1)), x),
        """
        mx.maximum takes tensors, not an array.
          values: float32[6, 1]
          rule: an array takes part in an operation through the names of its dims.
          fix: name them: mx.tensor(array, "batch hidden").
        """,
    ),
    "a list": (
        mx.ShapeError,
        lambda: mx.where(x > 2, [0.0] * 6, x),
        """
        mx.where takes tensors, not list.
          values: [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
          rule: an array takes part in an operation through the names of its dims.
          fix: name them: mx.tensor(array, "batch hidden").
        """,
    ),
    "nothing": (
        mx.ShapeError,
        lambda: mx.softmax(None, over=batch),
        """
        mx.softmax takes tensors, not NoneType.
          values: None
          rule: an array takes part in an operation through the names of its dims.
          fix: name them: mx.tensor(array, "batch hidden").
        """,
    ),
    "only numbers": (
        mx.ShapeError,
        lambda: mx.relu(-1.0),
        """
        mx.relu takes tensors, not float.
          values: -1.0
          rule: an array takes part in an operation through the names of its dims.
          fix: name them: mx.tensor(array, "batch hidden").
        """,
    ),
    "a long text": (
        mx.ShapeError,
        lambda: mx.rename("x" * 200, {"batch": "length"}),
        """
        mx.rename takes tensors, not str.
          values: 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx
          rule: an array takes part in an operation through the names of its dims.
          fix: name them: mx.tensor(array, "batch hidden").
        """,
    ),
}

test_messages = pinned(MISTAKES)
