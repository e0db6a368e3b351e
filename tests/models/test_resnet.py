"""The residual network: the counts that everyone has, and the same losses under every layout."""

import jax
import numpy as np
import pytest

import meshax as mx
from meshax.models.contract import parameter_count
from meshax.models.presets import preset
from meshax.models.resnet import ResNetConfig
from meshax.tensors import is_tensor
from messages import pinned

KEY = jax.random.key(3)
CONFIG = ResNetConfig(depth=18, filters=4, classes=5, dtype="float32")
LAYOUTS = {
    "batch": ("a:4", "batch:a"),
    "one side": ("a:2", "x:a"),
    "two sides": ("a:2 b:2", "x:a y:b"),
    "channels": ("a:2", "features:a"),
    "mixed": ("a:2 b:2 c:2", "batch:a y:b filters:c"),
}


@pytest.mark.parametrize(("name", "count"), [("resnet-18", 11_689_512), ("resnet-50", 25_557_032)])
def test_parameter_counts(name, count):
    assert parameter_count(preset(name).model) == count


def gradients_of(mesh, layout):
    shapes = CONFIG.batch({"batch": 4, "x": 33, "y": 40})  # down to 2 x 2, smaller than some axes
    n = 4 * 33 * 40 * 3
    image = np.sin(0.7 * np.arange(n) ** 1.1).reshape(4, 33, 40, 3).astype(np.float32)
    arrays = {"image": image, "labels": np.int32([3, 0, 4, 1]), "weights": np.float32([1, 1, 0.5, 1])}
    batch = {name: mx.tensor(array, shapes[name].dims) for name, array in arrays.items()}

    def run(batch):
        model = CONFIG.make(jax.random.key(0))

        def loss(model):
            value, count, observed = model.loss_and_observed(batch, KEY)
            return value / count, model.updated(observed).blocks[-1].convs[-1].norm.variance

        (value, variance), grads = mx.value_and_grad(loss, has_aux=True)(model)
        return value, variance, grads.stem.conv.weight, model.measure(batch)

    return mx.spmd(run, mx.Mesh(mesh), layout)(batch)


@pytest.fixture(scope="module")
def alone():
    return gradients_of("a:1", "")


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_gives_the_same(name, alone):
    ours, wanted = (jax.tree.leaves(all_of, is_leaf=is_tensor) for all_of in (gradients_of(*LAYOUTS[name]), alone))
    for got, right in zip(ours, wanted, strict=True):
        np.testing.assert_allclose(got.numpy(), right.numpy(), 1e-5, 1e-5 * np.abs(right.numpy()).max())


def test_what_a_split_image_sends():
    """Borders, and the sums of norms and of gradients: an image is never gathered."""
    batch = CONFIG.batch({"batch": 4, "x": 64, "y": 64})
    model = jax.eval_shape(CONFIG.make, KEY)
    loss = lambda model, batch: mx.value_and_grad(lambda model: model.loss(batch, KEY)[0])(model)  # noqa: E731
    report = mx.spmd(loss, mx.Mesh("a:2 b:2", abstract=True), "x:a y:b").explain(model, batch)

    assert {c.kind for c in report.collectives} == {"permute", "all-reduce"}
    image = 4 * 32 * 32 * 3 * 4
    assert max(c.bytes for c in report.collectives if c.kind == "permute") < image / 4


test_messages = pinned(
    {
        "a depth that nobody has": (
            mx.ArgumentError,
            lambda: ResNetConfig(depth=20),
            """
            the model's depth is 20.
              fix: choose 18, 34, 50, 101, 152.
            """,
        )
    }
)
