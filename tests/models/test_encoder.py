"""The encoder: every token sees all of its document and no other, the same under every layout."""

import jax
import numpy as np
import pytest

import meshax as mx
from extent import some
from meshax.models.encoder import EncoderConfig
from meshax.plan.search.named_layouts import find_layout

CONFIG = EncoderConfig(
    d_model=12, heads=4, d_kv=3, d_ff=20, layers=2, vocab=22, positions="learned", max_length=8, dtype="float32",
    dropout=0.1, keep="everything",
)  # fmt: skip
LAYOUTS = {
    "data": ("data:4", "data"),
    "data+model": ("data:2 model:4", "data+model"),
    "fsdp": ("data:2 model:2", "fsdp"),
    "sequence": ("data:2 model:2", "sequence"),
    "uneven": ("data:2 model:3", "data+model"),
}
batch, length = mx.dims(batch=4, length=8)
KEY = jax.random.key(0)


def model():
    shapes, treedef = jax.tree.flatten(jax.eval_shape(lambda: CONFIG.make(KEY)))
    draw = np.random.default_rng(0)
    return jax.tree.unflatten(treedef, [draw.normal(0.1, 0.3, x.shape).astype(x.dtype) for x in shapes])


def examples():
    targets = 2 + np.arange(32).reshape(4, 8) * 7 % 20
    segments = np.array([[1] * 8, [1] * 3 + [2] * 5, [1] * 8, [1] * 5 + [0] * 3])
    positions = np.array([range(8), [0, 1, 2, 0, 1, 2, 3, 4], range(8), [0, 1, 2, 3, 4, 0, 0, 0]])
    hidden = (targets % 5 == 0) & (segments > 0)
    arrays = dict(tokens=np.where(hidden, 0, targets), targets=targets, segments=segments, positions=positions)
    return {
        name: mx.tensor(array.astype(np.int32), (batch, length))
        for name, array in (arrays | {"weights": hidden}).items()
    }


def loss(model, batch):
    total, count = model.loss(batch, KEY)
    return total / count


def trained(mesh, layout):
    place = mx.Mesh(mesh)
    rules = find_layout(layout, place, known=CONFIG.glossary, sizes=CONFIG.sizes())
    value, grads = mx.spmd(mx.value_and_grad(loss), place, rules)(model(), examples())
    return float(value), [x.numpy() for x in jax.tree.leaves(grads, is_leaf=lambda x: isinstance(x, mx.Tensor))]


@pytest.mark.parametrize("name", some(LAYOUTS, "data+model"))
def test_a_layout_changes_nothing(name):
    value, grads = trained(*LAYOUTS[name])
    wanted, wanted_grads = trained("x:1", "none")
    assert value == pytest.approx(wanted, rel=1e-5)
    for got, expected in zip(grads, wanted_grads, strict=True):
        np.testing.assert_allclose(got, expected, atol=2e-5, rtol=1e-3)


def test_a_token_is_seen_by_all_of_its_document_and_no_other():
    run = mx.spmd(
        lambda model, batch: model(batch["tokens"], batch["segments"], batch["positions"]), mx.Mesh("x:1"), ""
    )
    given = examples()
    tokens = given["tokens"].numpy().copy()
    tokens[1, 6] = 3
    changed = given | {"tokens": mx.tensor(tokens, (batch, length))}
    before, after = (run(model(), one).numpy() for one in (given, changed))
    differs = np.abs(after - before).max(-1) > 1e-6
    assert np.argwhere(differs).tolist() == [[1, at] for at in range(3, 8)]


def test_what_is_filled_in_right_is_counted():
    given = examples()

    def both(model, batch):
        return model.measure(batch), model(batch["tokens"], batch["segments"], batch["positions"])

    run = mx.spmd(both, mx.Mesh("x:1"), "")
    measured, logits = run(model(), given)
    hits = (logits.numpy().argmax(-1) == given["targets"].numpy()) & (given["weights"].numpy() > 0)
    assert float(measured["right"]) == hits.sum()
    assert CONFIG.metrics({"loss": 0.0, "right": 0.25}) == {"perplexity": 1.0, "accuracy": 0.25}
