"""The language model in all its variants: the same under a layout, whatever is kept for the backward pass."""

import functools
from dataclasses import replace

import jax
import numpy as np
import pytest

import meshax as mx
from extent import some
from meshax.models.contract import parameter_count
from meshax.models.decoder import Decoder, DecoderConfig
from meshax.models.recomputation import KEEP
from meshax.plan.search.named_layouts import find_layout
from messages import pinned

SMALL = DecoderConfig(d_model=16, heads=4, d_kv=4, d_ff=24, layers=2, vocab=20, max_length=8, dtype="float32")
VARIANTS = {
    "as in the paper": {},
    "layer norm, tied, relative, dropout": {
        "norm": "layer", "tied": True, "positions": "relative", "dropout": 0.2, "label_smoothing": 0.1, "z_loss": 1e-3,
    },
    "gated, rotary, grouped keys": {"gated": True, "activation": "silu", "positions": "rotary", "kv_heads": 2},
    "learned, one head of keys": {"positions": "learned", "kv_heads": 1},
    "biases, norms of heads, scaled rotations": {
        "biases": "all", "qk_norm": True, "positions": "rotary", "rope_scaling": "llama3", "rope_factor": 4.0,
        "rope_original": 4, "rope_theta": 50.0, "activation": "gelu_exact", "tied": True, "logits_scale": 1.0,
        "embedding_scale": 0.5, "norm_epsilon": 1e-5, "layers_as": "unrolled",
    },
    "no positions, window, gelu": {"positions": "none", "window": 3, "activation": "gelu"},
}  # fmt: skip
batch, length = mx.dims(batch=4, length=8)
KEY = jax.random.key(0)


def examples():
    tokens = np.arange(32).reshape(4, 8) * 7 % 20
    segments = np.array([[1] * 8, [1] * 3 + [2] * 5, [1] * 8, [1] * 5 + [0] * 3])
    positions = np.array([range(8), [0, 1, 2, 0, 1, 2, 3, 4], range(8), [0, 1, 2, 3, 4, 0, 0, 0]])
    arrays = dict(
        tokens=tokens, targets=(tokens + 7) % 20, segments=segments, positions=positions, weights=segments > 0
    )
    return {name: mx.tensor(array.astype(np.int32), (batch, length)) for name, array in arrays.items()}


def loss(model, batch):
    total, count = model.loss(batch, KEY)
    return total / count


def leaves(tree):
    return [x.numpy() for x in jax.tree.leaves(tree, is_leaf=lambda leaf: isinstance(leaf, mx.Tensor))]


@functools.cache
def made(config):
    """A model of numbers that differ from place to place: to draw them would take longer to compile than to use."""
    shapes, treedef = jax.tree.flatten(jax.eval_shape(lambda: Decoder.init(KEY, config)))
    draw = np.random.default_rng(0)
    return jax.tree.unflatten(treedef, [draw.normal(0.1, 0.3, x.shape).astype(x.dtype) for x in shapes])


def trained(config, mesh="data:2 model:4", layout="data+model"):
    """The loss and the gradients of a model on a mesh."""
    model, place = made(config), mx.Mesh(mesh)
    value, grads = mx.spmd(mx.value_and_grad(loss), place, find_layout(layout, place))(model, examples())
    return float(value), leaves(grads)


def logits(config, *args):
    return mx.spmd(lambda model, *args: model(*args), mx.Mesh("x:1"), "")(made(config), *args).numpy()


@pytest.mark.parametrize("name", some(VARIANTS, *list(VARIANTS)[1:3], "biases, norms of heads, scaled rotations"))
def test_variants(name):
    config = replace(SMALL, keep="everything", **VARIANTS[name])
    value, grads = trained(config)
    wanted, wanted_grads = trained(config, "x:1", "none")
    assert value == pytest.approx(wanted, rel=1e-5) and 2 < value < 20
    for got, expected in zip(grads, wanted_grads, strict=True):
        np.testing.assert_allclose(got, expected, atol=2e-5, rtol=1e-3)
        assert np.isfinite(got).all() and np.abs(got).max() > 0


def test_a_bias_is_added_where_the_stream_is_split():
    """Under sequence parallel a sum goes straight to its slices, also where a bias is added to it."""
    mesh = mx.Mesh("data:2 model:4", abstract=True)
    scattered = []
    for biases in ("none", "all"):
        config = replace(SMALL, biases=biases)
        layout = find_layout("sequence", mesh, known=config.glossary, sizes=config.sizes())
        report = mx.spmd(mx.value_and_grad(loss), mesh, layout).explain(made(config), examples())
        scattered.append(sorted((c.phase, c.bytes, c.count) for c in report.collectives if c.kind == "reduce-scatter"))
    assert scattered[0] == scattered[1] != []


def test_every_layer_has_a_relative_bias_of_its_own():
    weight = made(replace(SMALL, positions="relative")).layers.attention.relative.weight
    assert [d.name for d in weight.dims] == ["layers", "distances", "heads"]


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "learned", "relative"])
def test_positions_matter_and_the_future_does_not(positions):
    config, one = replace(SMALL, positions=positions), mx.Dim("batch", 1)
    texts = [0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3, 4, 9, 9, 9], [1, 0, 2, 3, 4, 5, 6, 7]
    out, changed, swapped = (logits(config, mx.tensor(np.array([text]), (one, length)))[0] for text in texts)
    np.testing.assert_allclose(changed[:5], out[:5], atol=1e-5)
    assert np.abs(swapped[7] - out[7]).max() > 1e-4


def test_packed_documents_are_alone():
    """The second document of an example has the logits that it has in an example of its own."""
    config, given = replace(SMALL, positions="rotary"), examples()
    packed = logits(config, given["tokens"], given["segments"], given["positions"])[1, 3:]
    alone = mx.tensor(given["tokens"].numpy()[1:2, 3:], (mx.Dim("batch", 1), mx.Dim("length", 5)))
    np.testing.assert_allclose(logits(config, alone)[0], packed, atol=1e-5)


@pytest.fixture(scope="module")
def recomputed():
    return trained(SMALL)


@pytest.mark.slow
@pytest.mark.parametrize("keep", [name for name in KEEP if name != "nothing"])
def test_what_is_kept_changes_nothing(keep, recomputed):
    kept, kept_grads = trained(replace(SMALL, keep=keep))
    assert kept == pytest.approx(recomputed[0], rel=1e-6)
    for got, expected in zip(kept_grads, recomputed[1], strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-6, rtol=1e-4)


def test_without_a_key_nothing_is_dropped_or_smoothed():
    """The loss of evaluation is the plain cross entropy, which perplexities are made of."""
    config = replace(SMALL, dropout=0.2, label_smoothing=0.1, z_loss=0.1)
    evaluate = mx.spmd(lambda model, batch: model.loss(batch), mx.Mesh("x:1"), "")
    totals = [float(evaluate(made(c), examples())[0]) for c in (config, SMALL)]
    assert totals[0] == totals[1]


def test_parameters_are_counted_without_making_them():
    assert parameter_count(SMALL) == sum(leaf.size for leaf in leaves(made(SMALL)))


test_messages = pinned(
    {
        "biases": (
            mx.ArgumentError,
            lambda: replace(SMALL, biases="al"),
            """
            there is no choice of biases 'al'.
              fix: did you mean "all"?
            """,
        ),
        "epsilon": (
            mx.ArgumentError,
            lambda: replace(SMALL, norm_epsilon=0.0),
            """
            norm_epsilon keeps a norm from dividing by nothing, and is 0.0.
              fix: for example 1e-6.
            """,
        ),
        "size": (
            mx.ArgumentError,
            lambda: replace(SMALL, d_model=0),
            """
            the model's d_model is 0.
              fix: give a number, 1 or more.
            """,
        ),
        "window": (
            mx.ArgumentError,
            lambda: replace(SMALL, window=-2),
            """
            the model's window is -2.
              fix: give a number, 1 or more.
            """,
        ),
        "scale": (
            mx.ArgumentError,
            lambda: replace(SMALL, embedding_scale=float("nan")),
            """
            the model's embedding_scale is nan.
              fix: give a number.
            """,
        ),
        "z_loss": (
            mx.ArgumentError,
            lambda: replace(SMALL, z_loss=-1.0),
            """
            the model's z_loss is -1.0.
              fix: give a number, 0 or more.
            """,
        ),
        "label smoothing": (
            mx.ArgumentError,
            lambda: replace(SMALL, label_smoothing=1.0),
            """
            the model's label_smoothing is 1.0.
              rule: it is a share of probability, and the right token has the rest.
              fix: give a number below 1, as in 0.1.
            """,
        ),
        "positions": (
            mx.ArgumentError,
            lambda: replace(SMALL, positions="rotatory"),
            """
            there is no positions 'rotatory'.
              fix: did you mean "rotary"?
            """,
        ),
        "norm": (
            mx.ArgumentError,
            lambda: replace(SMALL, norm="batch"),
            """
            there is no norm 'batch'.
              fix: known names: layer, rms.
            """,
        ),
        "activation": (
            mx.ArgumentError,
            lambda: replace(SMALL, activation="gello"),
            """
            there is no activation 'gello'.
              fix: did you mean "gelu"?
            """,
        ),
        "longer than what was learned": (
            mx.ArgumentError,
            lambda: made(replace(SMALL, positions="learned", max_length=4)).loss(examples()),
            """
            there are 4 learned positions, for 8 tokens.
              fix: choose a greater max_length, or shorter examples.
            """,
        ),
    }
)
