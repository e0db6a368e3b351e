"""Two models trained as the real Mesh-TensorFlow trained them: the same losses, and no more communication.

`mesh_tensorflow.json` holds what Mesh-TensorFlow 0.1.21 gave: the losses before each of ten SGD steps on one batch,
the loss after them, and its own counters of the elements that each processor all-reduces in one step, by mesh axis.
"""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import meshax as mx

RUNS = json.loads(Path(__file__).with_name("mesh_tensorflow.json").read_text(encoding="utf-8"))["runs"]


@dataclass(frozen=True)
class Case:
    """A model, its first parameters, and the batch it sees in every step."""

    loss: Callable[..., mx.Tensor]
    learning_rate: float
    params: Any
    data: tuple[mx.Tensor, ...]

    def step(self, params, *data):
        value, grads = mx.value_and_grad(self.loss)(params, *data)
        return jax.tree.map(lambda p, g: p - self.learning_rate * g, params, grads), value


class Values:
    """The values that both libraries start from: one stream of random numbers, drawn in a fixed order."""

    def __init__(self):
        self.random = np.random.RandomState(0)

    def normal(self, std, *dims, drawn_as=None):
        shape = [dim.size for dim in dims]
        values = self.random.normal(0, std, drawn_as or shape).astype(np.float32)
        return mx.param(mx.tensor(values.reshape(shape), dims))


def ones(*dims):
    return mx.param(mx.tensor(np.ones([dim.size for dim in dims], np.float32), dims))


@cache
def mnist():
    batch, rows, cols, hidden, classes = mx.dims(batch=128, rows=28, cols=28, hidden=1024, classes=10)
    values = Values()
    params = {
        "in": values.normal(784**-0.5, rows, cols, hidden),
        "out": values.normal(1024**-0.5, hidden, classes),
    }
    images = mx.tensor(values.random.uniform(0, 1, (128, 28, 28)).astype(np.float32), (batch, rows, cols))
    labels = mx.tensor(values.random.randint(0, 10, (128,)).astype(np.int32), (batch,))

    def loss(w, images, labels):
        h = mx.relu(mx.einsum(images, w["in"], out=(batch, hidden)))
        logits = mx.einsum(h, w["out"], out=(batch, classes))
        return mx.mean(mx.softmax_cross_entropy(logits, labels, over=classes))

    return Case(loss, 0.05, params, (images, labels))


@cache
def lm():
    batch, length, vocab, d_model, d_ff = mx.dims(batch=8, length=64, vocab=1024, d_model=128, d_ff=512)
    heads, d_kv = mx.dims(heads=8, d_kv=16)
    memory = mx.Dim("memory", length.size)
    values = Values()

    def layer_params():
        return {
            "attention_norm": ones(d_model),
            "q": values.normal(128**-0.5 * 16**-0.5, d_model, heads, d_kv),
            "k": values.normal(128**-0.5, d_model, heads, d_kv),
            "v": values.normal(128**-0.5, d_model, heads, d_kv),
            "o": values.normal(128**-0.5, heads, d_kv, d_model),
            "feed_forward_norm": ones(d_model),
            "wi": values.normal(128**-0.5, d_model, d_ff),
            "wo": values.normal(512**-0.5, d_ff, d_model),
        }

    params = {
        "embedding": values.normal(1, vocab, d_model),
        "positions": values.normal(1, length, d_model),
        "layers": [layer_params(), layer_params()],
        "norm": ones(d_model),
        "logits": values.normal(128**-0.5, d_model, vocab),
    }
    tokens = values.random.randint(1, 1024, (8, 64)).astype(np.int32)
    shifted = np.pad(tokens[:, :-1], ((0, 0), (1, 0)))
    inputs, targets = mx.tensor(shifted, (batch, length)), mx.tensor(tokens, (batch, length))

    def norm(x, scale):
        return x * mx.rsqrt(mx.mean(x * x, d_model) + 1e-6) * scale

    def attention(x, w):
        q = mx.einsum(x, w["q"], over=d_model)
        k = mx.einsum(x, w["k"], over=d_model).rename(length=memory)
        v = mx.einsum(x, w["v"], over=d_model).rename(length=memory)
        scores = mx.einsum(q, k, over=d_kv)
        visible = mx.arange(length) >= mx.arange(memory)
        weights = mx.softmax(mx.where(visible, scores, -1e9), over=memory)
        return mx.einsum(mx.einsum(weights, v, over=memory), w["o"], out=(batch, length, d_model))

    def feed_forward(x, w):
        return mx.einsum(mx.relu(mx.einsum(x, w["wi"], over=d_model)), w["wo"], over=d_ff)

    def loss(w, inputs, targets):
        one_hot = (inputs == mx.arange(vocab)).astype(np.float32)
        x = mx.einsum(one_hot, w["embedding"], over=vocab) + w["positions"]
        for layer in w["layers"]:
            x = x + attention(norm(x, layer["attention_norm"]), layer)
            x = x + feed_forward(norm(x, layer["feed_forward_norm"]), layer)
        logits = mx.einsum(norm(x, w["norm"]), w["logits"], over=d_model)
        return mx.mean(mx.softmax_cross_entropy(logits, targets, over=vocab))

    return Case(loss, 0.1, params, (inputs, targets))


CASES = {"mnist": mnist, "lm": lm}


each_run = pytest.mark.parametrize("run", RUNS, ids=[f"{run['case']}-{run['layout'] or 'unsplit'}" for run in RUNS])


@each_run
def test_training_gives_the_same_losses(run):
    case = CASES[run["case"]]()
    train = mx.spmd(case.step, mx.Mesh(run["mesh"]), run["layout"])

    params, losses = case.params, []
    for _ in range(11):
        params, value = train(params, *case.data)
        losses.append(float(value))

    np.testing.assert_allclose(losses, [*run["losses"], run["loss_after_10"]], rtol=1e-5)


def elements_all_reduced(run):
    """Returns how many elements each processor of ours all-reduces in a step, by mesh axis."""
    case = CASES[run["case"]]()
    report = mx.spmd(case.step, mx.Mesh(run["mesh"]), run["layout"]).explain(case.params, *case.data)
    assert {collective.kind for collective in report.collectives} <= {"all-reduce"}
    ours = Counter()
    for collective in report.collectives:
        for axis in collective.axes:
            ours[axis] += collective.elements * collective.count
    return ours


@each_run
def test_a_step_communicates_no_more(run):
    theirs, ours = run["allreduce_elements_per_processor"], elements_all_reduced(run)
    assert ours.keys() == theirs.keys()
    assert all(ours[axis] <= theirs[axis] for axis in theirs), (ours, theirs)
