"""Weight decay skips what it is told to skip, whatever the optimizer, and however layers are arranged."""

import jax
import numpy as np
import pytest

import meshax as mx
from extent import some
from meshax import optim
from meshax.models.decoder import DecoderConfig
from meshax.optim.decay import is_decayed
from messages import pinned

SMALL = dict(d_model=8, heads=2, d_kv=4, d_ff=12, layers=3, vocab=16, dtype="float32")
rows, cols = mx.dims(rows=6, cols=10)
LAYOUTS = ["", "rows:a", "cols:a+b", "rows:b cols:a"]


def params():
    values = np.sin(np.arange(60.0)).reshape(6, 10).astype(np.float32)
    return {"map": {"weight": mx.param(mx.tensor(values, (rows, cols)))}, "norm": mx.param(mx.tensor(values[0], cols))}


@pytest.mark.parametrize("layers_as", ["loop", "unrolled"])
def test_a_word_skips_parameters_by_name(layers_as):
    model = jax.eval_shape(DecoderConfig(**SMALL, layers_as=layers_as).make, jax.random.key(0))
    leaves, _ = jax.tree_util.tree_flatten_with_path(is_decayed(model, ("norm", "embedding")))
    skipped = {jax.tree_util.keystr(path).rpartition("]")[2] for path, decays in leaves if not decays}
    stacked = {".attention_norm.scale", ".feed_forward_norm.scale"}
    stacked = {f".layers{name}" for name in stacked} if layers_as == "loop" else stacked
    assert skipped == {*stacked, ".embedding.weight", ".norm.scale"}


@pytest.mark.parametrize("layout", some(LAYOUTS, "rows:b cols:a"))
@pytest.mark.parametrize("name", ["adafactor", "adamw", "momentum", "sgd"])
def test_what_is_skipped_is_as_without_decay(name, layout):
    """And what is not is as with decay of all: on every layout as on whole arrays."""

    def updated(**options):
        optimizer = optim.by_name(name, 0.1, **options)
        step = lambda w: optimizer.apply(jax.tree.map(mx.cos, w, is_leaf=is_leaf), optimizer.init(w), w)[0]  # noqa: E731
        is_leaf = lambda x: isinstance(x, mx.Tensor)  # noqa: E731
        program = mx.spmd(step, mx.Mesh("a:2 b:2"), mx.Layout(layout, optimizer="" if "cols" in layout else "cols:b"))
        return jax.tree.map(lambda x: x.numpy(), program(params()), is_leaf=is_leaf)

    skipping, of_all = updated(weight_decay=0.1, decay_skips=("norm",)), updated(weight_decay=0.1)
    none = updated(weight_decay=0.0)
    np.testing.assert_allclose(skipping["norm"], none["norm"], rtol=1e-6)
    np.testing.assert_allclose(skipping["map"]["weight"], of_all["map"]["weight"], rtol=1e-6)
    assert np.abs(of_all["norm"] - none["norm"]).max() > 1e-4
    assert np.abs(of_all["map"]["weight"] - none["map"]["weight"]).max() > 1e-4


test_messages = pinned(
    {
        "no such parameter": (
            mx.ArgumentError,
            lambda: is_decayed(params(), ("norm", "wieght")),
            """
            weight decay is to skip 'wieght', and no parameter is called so.
              fix: did you mean "weight"?
            """,
        ),
    }
)
