"""meshax.testing: what users check their own functions with."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshax as mx
from meshax.testing import layout_invariance, layouts_of

batch, d_model, heads = mx.dims(batch=6, d_model=5, heads=4)
X = mx.tensor(np.sin(np.arange(30)).reshape(6, 5), (batch, d_model))
W = mx.tensor(np.cos(np.arange(20)).reshape(5, 4), (d_model, heads))


def test_a_function_of_our_operations_passes():
    checked = layout_invariance(
        lambda x, w: {"probs": mx.softmax(mx.einsum(x, w, over=d_model), heads)}, X, W, layouts=6
    )
    assert checked >= 6


def test_a_function_that_looks_at_slices_fails_and_the_layout_is_named():
    def centred(x):
        return mx.local(lambda a: a - jnp.mean(a, axis=0), x, out="batch d_model", splittable="batch d_model")

    with pytest.raises(AssertionError, match=r"result.* differs under Layout\(.*batch:.*\) on Mesh\(x:8\)"):
        layout_invariance(centred, X)


def test_a_gradient_that_depends_on_the_layout_fails():
    @jax.custom_vjp
    def identity(a):
        return a

    identity.defvjp(lambda a: (a, None), lambda _, ct: (ct * ct.shape[0],))

    def wrong(x):
        return mx.local(identity, x, out="batch d_model", splittable="batch d_model")

    with pytest.raises(AssertionError, match=r"gradient.* differs under Layout\(.*\) on Mesh\(x:8\)"):
        layout_invariance(wrong, X)


def test_arguments_may_be_pytrees_with_integers_and_numbers():
    labels = mx.tensor(np.arange(6) % 4, (batch,))

    def loss(w, inputs, scale):
        logits = mx.einsum(inputs["x"], w["out"], over=d_model) * scale
        return mx.mean(mx.softmax_cross_entropy(logits, inputs["labels"], over=heads))

    assert layout_invariance(loss, {"out": mx.param(W)}, {"x": X, "labels": labels}, 2.0, layouts=4)


def test_without_gradients():
    assert layout_invariance(lambda x: mx.argmax(x, over=d_model), X, gradients=False, layouts=4)


def test_a_function_whose_dims_always_collide_is_not_passed_over():
    with pytest.raises(AssertionError, match="no layout could be checked"):
        layout_invariance(lambda x: x, mx.tensor(np.zeros(()), ()), meshes=(), layouts=1)


def test_layouts_of_a_mesh():
    mesh = mx.Mesh("x:2 y:2", abstract=True)
    found = list(layouts_of(mesh, ["batch"]))
    assert found == [mx.Layout(text) for text in ("", "batch:x", "batch:y", "batch:x+y", "batch:y+x")]
    assert len(set(layouts_of(mesh, ["batch", "heads"]))) == 25
