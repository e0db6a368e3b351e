"""The loss: exact over a split vocabulary, and logits never leave their processor."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshax as mx
from example_tensors import numbers
from extent import WHOLE, some
from meshax import nn
from meshax.testing import layout_invariance

batch, length, vocab = mx.dims(batch=4, length=3, vocab=10)
TARGETS = mx.tensor(np.arange(12).reshape(4, 3) * 7 % 10, (batch, length))
WEIGHTS = mx.tensor(np.array([[1, 1, 1], [1, 0, 1], [0, 0, 0], [1, 1, 0]]), (batch, length))
OPTIONS = {"plain": {}, "smoothed": {"label_smoothing": 0.1}, "z": {"z_loss": 0.05}}


def logits():
    return numbers(batch, length, vocab, scale=5.0)


@pytest.mark.parametrize("options", OPTIONS)
def test_equals_its_definition(options):
    given = OPTIONS[options]
    total, count = nn.cross_entropy(logits(), TARGETS, WEIGHTS, vocab, **given)
    x = jnp.asarray(logits().numpy())
    wanted = jax.nn.one_hot(TARGETS.numpy(), 10)
    smooth = given.get("label_smoothing", 0.0)
    wanted = wanted * (1 - smooth) + smooth / 10
    losses = -(wanted * jax.nn.log_softmax(x)).sum(-1)
    losses += given.get("z_loss", 0.0) * jax.nn.logsumexp(x, -1) ** 2
    assert float(count) == 7
    assert float(total) == pytest.approx(float((losses * WEIGHTS.numpy()).sum()), rel=1e-5)


@pytest.mark.parametrize("options", OPTIONS)
def test_every_layout_gives_the_same(options):
    def fn(logits, targets, weights):
        return nn.cross_entropy(logits, targets, weights, vocab, **OPTIONS[options])

    assert layout_invariance(fn, logits(), TARGETS, WEIGHTS, layouts=4 if WHOLE else 2)


def test_16_bits_are_summed_in_float32():
    total, _ = nn.cross_entropy(logits().astype("bfloat16"), TARGETS, WEIGHTS, vocab)
    assert total.dtype == "float32"


def test_logits_are_never_gathered():
    """What is sent is a few numbers for each target, forward and backward, however large the vocabulary is."""
    large = mx.Dim("vocab", 4096)

    def loss(logits, targets, weights):
        return nn.cross_entropy(logits, targets, weights, "vocab", 0.1, 1e-4)[0]

    program = mx.spmd(mx.value_and_grad(loss), mx.Mesh("data:2 model:4"), "batch:data vocab:model")
    found = program.explain(numbers(batch, length, large), TARGETS, WEIGHTS).collectives
    assert {c.kind for c in found} == {"all-reduce"}
    per_target = sum(c.bytes * c.count for c in found if c.axes == ("model",)) / (4 * (batch.size // 2) * length.size)
    assert per_target <= 4
    assert sum(c.wire_bytes * c.count for c in found) < 4 * 4 * batch.size * length.size


volume = mx.dims(batch=2, height=5, width=6)
kinds = mx.Dim("kinds", 3)


def labelled():
    logits = numbers(*volume, kinds, scale=2.0)
    labels = mx.tensor((np.arange(60).reshape(2, 5, 6) * 7 % 5 % 3).astype(np.int32), volume)
    weights = mx.tensor((np.arange(60).reshape(2, 5, 6) % 4 > 0).astype(np.float32), volume)
    return logits, labels, weights


@pytest.mark.parametrize("by", some([(), "batch"], "batch"))
def test_dice_is_twice_what_both_have(by):
    logits, labels, weights = labelled()
    probabilities = mx.softmax(logits, over=kinds)
    p, t, w = probabilities.numpy(), np.eye(3)[labels.numpy()], weights.numpy()[..., None]
    axes = (1, 2) if by else (0, 1, 2)
    wanted = (2 * (p * t * w).sum(axes) + 0.1) / ((p * w).sum(axes) + (t * w).sum(axes) + 0.1)

    np.testing.assert_allclose(nn.dice(probabilities, labels, weights, kinds, by).numpy(), wanted, 1e-5)
    fn = lambda logits: nn.dice(mx.softmax(logits, over=kinds), labels, weights, kinds, by)  # noqa: E731
    assert layout_invariance(fn, logits, meshes=("x:2 y:4",), layouts=1)


def test_classes_may_count_differently():
    logits, labels, weights = labelled()
    factors = [1.0, 8.0, 16.0]

    total, count = nn.weighted_cross_entropy(logits, labels, weights, factors, kinds)

    each = mx.softmax_cross_entropy(logits, labels, over=kinds).numpy()
    np.testing.assert_allclose(total.numpy(), (each * weights.numpy() * np.array(factors)[labels.numpy()]).sum(), 1e-5)
    np.testing.assert_allclose(count.numpy(), weights.numpy().sum())
    fn = lambda logits: nn.weighted_cross_entropy(logits, labels, weights, factors, kinds)[0]  # noqa: E731
    assert layout_invariance(fn, logits, meshes=("x:2 y:4",), layouts=1)
