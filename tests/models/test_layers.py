"""Layers looped over and layers unrolled: the same weights, values, gradients, and the same bytes sent."""

from collections import Counter
from dataclasses import replace

import jax
import numpy as np
import pytest

import meshax as mx
from extent import some
from meshax.models import layers as layers_module
from meshax.models.decoder import DecoderConfig
from meshax.models.layers import arranged
from meshax.models.recomputation import KEEP
from meshax.plan.search.named_layouts import find_layout
from meshax.tensors import is_tensor
from messages import pinned

LOOP = DecoderConfig(
    d_model=16, heads=4, d_kv=4, d_ff=24, layers=3, vocab=20, dtype="float32", dropout=0.2, layers_as="loop"
)
UNROLLED = replace(LOOP, layers_as="unrolled")
MESH = mx.Mesh("data:2 model:4")
KEY = jax.random.key(0)
batch, length = mx.dims(batch=4, length=8)
LAYOUTS = ("data+model", "fsdp", "sequence")


def flat(tree):
    return jax.tree.leaves(tree, is_leaf=is_tensor)


def examples():
    tokens = np.int32(np.arange(32).reshape(4, 8) * 7 % 20)
    arrays = dict(tokens=tokens, targets=(tokens + 7) % 20, weights=np.ones((4, 8), np.float32))
    return {name: mx.tensor(array, (batch, length)) for name, array in arrays.items()}


def laid_out(name, rings=""):
    return find_layout(name, MESH, known=LOOP.glossary, sizes=LOOP.sizes(), rings=rings)


def program(layout, rings=""):
    def loss(model, batch):
        total, count = model.loss(batch, KEY)
        return total / count

    return mx.spmd(mx.value_and_grad(loss), MESH, laid_out(layout, rings))


def stacked(model):
    """The layers of a model as one stack of arrays."""
    if not isinstance(model.layers, tuple):
        return [x.numpy() for x in flat(model.layers)]
    return [np.stack(same) for same in zip(*([x.numpy() for x in flat(layer)] for layer in model.layers))]


@pytest.fixture(scope="module")
def models():
    make = lambda config: mx.spmd(lambda: config.make(KEY), MESH, laid_out("fsdp"))()  # noqa: E731
    return make(LOOP), make(UNROLLED)


def test_the_weights_are_the_same(models):
    loop, unrolled = models
    assert len(unrolled.layers) == 3 and unrolled.layers[0].attention.q.weight.role == "param"
    for got, wanted in zip(stacked(unrolled), stacked(loop), strict=True):
        np.testing.assert_array_equal(got, wanted)
    np.testing.assert_array_equal(unrolled.logits.weight.numpy(), loop.logits.weight.numpy())


def test_a_stack_is_drawn_before_it_is_taken_apart():
    """XLA would compile a kernel that draws for each parameter of each layer."""
    text = mx.spmd(lambda: UNROLLED.make(KEY), MESH, laid_out("fsdp")).lower().as_text()
    assert text.count("optimization_barrier") == len(flat(LOOP.make(KEY).layers))


@pytest.mark.parametrize("keep", some(KEEP, "everything"))
@pytest.mark.parametrize("layout", some(LAYOUTS, "fsdp"))
def test_losses_and_gradients_are_the_same(models, layout, keep):
    kept = [type(m)(m.embedding, m.learned, m.layers, m.norm, m.logits, replace(m.config, keep=keep)) for m in models]
    (loss, grads), (wanted, wanted_grads) = (program(layout)(model, examples()) for model in reversed(kept))
    assert float(loss) == pytest.approx(float(wanted), rel=1e-6)
    for got, expected in zip(stacked(grads), stacked(wanted_grads), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_same_bytes_are_sent(models, layout):
    sent = [program(layout).explain(model, examples()).wire_bytes for model in models]
    assert sent[0] == sent[1] > 0


@pytest.mark.parametrize("keep", some(["everything", "nothing"], "everything"))
def test_a_line_causes_the_same_however_layers_are_gone_through(models, keep):
    """Equal layers are traced once: what each of them sends is still that of its line."""
    causes = []
    for m in models:
        model = type(m)(m.embedding, m.learned, m.layers, m.norm, m.logits, replace(m.config, keep=keep))
        found = Counter()
        for c in program("sequence").explain(model, examples()).collectives:
            found[c.kind, c.phase, c.op, c.line] += c.count
        causes.append({cause: n for cause, n in found.items() if cause[1] == "forward"})
    assert causes[0] == causes[1] and all(op for _, _, op, _ in causes[0])


@pytest.mark.parametrize("keep", some(KEEP, "products"))
@pytest.mark.parametrize("way", some([0, 1], 1), ids=["loop", "unrolled"])
def test_rings_change_neither_losses_nor_gradients_nor_bytes(models, way, keep):
    m = models[way]
    model = type(m)(m.embedding, m.learned, m.layers, m.norm, m.logits, replace(m.config, keep=keep))
    plain, ringed = program("sequence"), program("sequence", rings="model")
    (wanted, wanted_grads), (loss, grads) = plain(model, examples()), ringed(model, examples())
    assert float(loss) == pytest.approx(float(wanted), rel=1e-6)
    for got, expected in zip(stacked(grads), stacked(wanted_grads), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)
    before, after = plain.explain(model, examples()), ringed.explain(model, examples())
    assert after.wire_bytes == before.wire_bytes
    sent = Counter()
    for c in after.collectives:
        sent[c.kind, c.source.op] += c.count
    assert not any(sent[kind, op] for kind in ("all-gather", "reduce-scatter") for op in ("Attention", "FeedForward"))


def test_nothing_is_kept_whole_that_is_stored_in_parts(models):
    """A parameter that was gathered is forgotten after use, or a model would have to fit one processor."""
    peaks = {}
    for keep in ("nothing", "everything"):
        config = replace(UNROLLED, d_ff=4096, keep=keep)
        model = jax.eval_shape(lambda config=config: config.make(KEY))
        peaks[keep] = program("fsdp").explain(model, examples()).memory["peak"]
    one_layer = 2 * 16 * 4096 * 4
    assert peaks["everything"] < peaks["nothing"] + one_layer


@pytest.mark.parametrize(
    ("backend", "depth", "is_unrolled"),
    [("gpu", 3, True), ("gpu", 24, True), ("gpu", 25, False), ("cpu", 3, False)],
)
def test_auto_unrolls_few_layers_on_a_gpu(monkeypatch, backend, depth, is_unrolled):
    monkeypatch.setattr(layers_module.jax, "default_backend", lambda: backend)
    stack = {"w": mx.param(mx.ones((mx.Dim("layers", depth), mx.Dim("d_model", 4))))}
    assert isinstance(arranged(stack, "auto"), tuple) == is_unrolled


test_messages = pinned(
    {
        "another way": (
            mx.ArgumentError,
            lambda: replace(LOOP, layers_as="unroled"),
            """
            there is no way 'unroled' to go through layers.
              fix: did you mean "unrolled"?
            """,
        ),
    }
)
