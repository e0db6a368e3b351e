"""The U-Net: the same losses under every layout, what its parts are, and what it refuses."""

import dataclasses

import jax
import numpy as np
import pytest

import meshax as mx
from meshax.models.contract import parameter_count
from meshax.models.presets import preset
from meshax.models.unet import UNetConfig
from meshax.optim import by_name, clipped
from meshax.train.step import init_state, make_train_step
from messages import pinned

CONFIG = UNetConfig(levels=2, filters=4, convs=1, dropout=0.25, dtype="float32", keep="nothing")
FLAT = dataclasses.replace(CONFIG, sides=2, levels=3, convs=2)
KEY = jax.random.key(3)
CUBE = "a:2 b:2 c:2"
LAYOUTS = {
    "batch": ("a:2", "batch:a"),
    "one side": ("a:4", "x:a"),
    "two sides": ("a:2 b:4", "x:a y:b"),
    "three sides": (CUBE, "x:a y:b z:c"),
    "channels": ("a:4", "features:a"),
    "mixed": (CUBE, "batch:a z:b features:c"),
    "both kinds of channels": (CUBE, "features:a filters:b x:c"),
    "one side over two axes": (CUBE, "y:a+c batch:b"),
}


def batch_of(config, size=8, seed=0):
    """Volumes whose bright places are of the class 1, and dark ones of the class 2."""
    shapes = config.batch({"batch": 2, "x": size, "y": size + 8, "z": size})
    places = [d.size for d in shapes["labels"].dims]
    image = np.sin(0.7 * np.arange(np.prod(places)) ** 1.1 + seed).reshape(places).astype(np.float32)
    labels = np.where(image > 0.6, 1, np.where(image < -0.8, 2, 0)).astype(np.int32)
    weights = np.ones(places, np.float32)
    weights[0, 0] = 0.0
    arrays = {"image": image[..., None], "labels": labels, "weights": weights}
    return {name: mx.tensor(array, shapes[name].dims) for name, array in arrays.items()}


def losses(config, mesh, layout, microbatches=None, steps=2):
    """The losses of some steps, the running mean of the first norm afterwards, and what an evaluation measures."""
    optimizer = clipped(by_name("adamw", 0.01), 1.0)
    batch, on = batch_of(config), (mx.Mesh(mesh), layout)
    state = mx.spmd(lambda: init_state(config.make, optimizer, jax.random.key(0)), *on)()
    step, values = mx.spmd(make_train_step(optimizer, microbatches), *on), []
    for _ in range(steps):
        state, report = step(state, batch, KEY)
        values.append(float(report["loss"]))
    figures = mx.spmd(lambda model, batch: model.measure(batch), *on)(state.model, batch)
    return values, state.model.down[0][0].norm.mean.numpy(), {name: float(x) for name, x in figures.items()}


@pytest.fixture(scope="module")
def alone():
    return losses(CONFIG, "a:1", "")


@pytest.mark.exhaustive  # to compile a step takes long
@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_gives_the_same_losses(name, alone):
    values, running, figures = losses(CONFIG, *LAYOUTS[name])

    np.testing.assert_allclose(values, alone[0], 2e-4)
    np.testing.assert_allclose(running, alone[1], 1e-3, 1e-5)
    assert figures == pytest.approx(alone[2], rel=5e-3, abs=2.0)  # a place or two at the edge of two classes
    assert values[1] < values[0]


@pytest.mark.exhaustive
def test_running_statistics_are_no_parameters(alone):
    _, running, _ = alone
    model = CONFIG.make(KEY)

    assert model.down[0][0].norm.mean.role is None
    assert np.abs(running).max() > 1e-3  # weight decay did not touch them, and training moved them
    assert parameter_count(CONFIG) == sum(
        x.size for x in jax.tree.leaves(model, is_leaf=lambda x: isinstance(x, mx.Tensor)) if x.role == "param"
    )


@pytest.mark.exhaustive
def test_microbatches_observe_too():
    once, parts = (losses(CONFIG, "a:2", "x:a", microbatches, steps=1) for microbatches in (None, 2))

    np.testing.assert_allclose(parts[1], once[1], 1e-3, 1e-5)  # the mean of the means is the mean


@pytest.mark.exhaustive
def test_a_flat_one_learns():
    optimizer = clipped(by_name("adamw", 0.01), 1.0)
    batch = batch_of(dataclasses.replace(FLAT, dropout=0.0), 16)
    mesh, layout = mx.Mesh("a:2 b:4"), "x:a y:b"
    state = mx.spmd(lambda: init_state(dataclasses.replace(FLAT, dropout=0.0).make, optimizer, KEY), mesh, layout)()
    step = mx.spmd(make_train_step(optimizer), mesh, layout)
    for _ in range(60):
        state, report = step(state, batch, KEY)
    figures = FLAT.metrics(
        {n: float(x) for n, x in mx.spmd(lambda m, b: m.measure(b), mesh, layout)(state.model, batch).items()}
    )
    assert list(figures) == ["dice_lesion", "dice_liver"]
    assert min(figures.values()) > 0.6


def test_the_loss_of_a_split_volume():
    """What a call makes of a volume, and its loss, are those of the whole one."""
    small = dataclasses.replace(CONFIG, filters=2)
    batch = batch_of(small)

    def run(batch):
        model = small.make(jax.random.key(0))
        return model.loss(batch)[0], model(batch["image"])

    loss, logits = mx.spmd(run, mx.Mesh(CUBE), "x:a y:b z:c")(batch)
    alone_loss, alone_logits = mx.spmd(run, mx.Mesh("a:1"), "")(batch)
    np.testing.assert_allclose(float(loss), float(alone_loss), 1e-4)
    np.testing.assert_allclose(logits.numpy(), alone_logits.numpy(), 1e-3, 1e-4)


def test_what_a_step_sends():
    """Borders, the sums of norms and of gradients, and nothing that grows with the volume but the borders."""
    optimizer = clipped(by_name("adamw", 0.01), 1.0)
    state = jax.eval_shape(lambda: init_state(CONFIG.make, optimizer, KEY))
    program = mx.spmd(make_train_step(optimizer), mx.Mesh(CUBE, abstract=True), "x:a y:b z:c")

    kinds = {c.kind for c in program.explain(state, batch_of(CONFIG), KEY).collectives}
    assert kinds == {"permute", "all-reduce"}


@pytest.mark.parametrize(
    ("name", "count"),
    [("unet-tiny", 85_195), ("unet3d-128", 5_601_187), ("unet3d-256", 5_601_187), ("unet3d-512", 5_601_187)],
)
def test_parameter_counts_of_presets(name, count):
    assert parameter_count(preset(name).model) == count


MISTAKES = {
    "four sides": (
        mx.ArgumentError,
        lambda: UNetConfig(sides=4),
        """
        the model's sides are 4.
          fix: give 2 for images, 3 for volumes.
        """,
    ),
    "no levels": (
        mx.ArgumentError,
        lambda: UNetConfig(levels=0),
        """
        the model's levels is 0.
          fix: give a number, 1 or more.
        """,
    ),
    "weights of too few classes": (
        mx.ArgumentError,
        lambda: UNetConfig(classes=4),
        """
        the model's class_weights are '1 8 16', and its classes 4.
          fix: give a number for each class, for example "1 8 16".
        """,
    ),
    "something to keep": (
        mx.ArgumentError,
        lambda: UNetConfig(keep="all"),
        """
        the model cannot keep 'all'.
          fix: known names: all products, collectives, everything, nothing, products.
        """,
    ),
    "a volume that cannot be halved": (
        mx.ArgumentError,
        lambda: CONFIG.batch({"batch": 1, "x": 8, "y": 7, "z": 9}),
        """
        an image of this size cannot be halved 1 times: y:7, z:9.
          rule: each level has half the places of the one before, and is enlarged to it again.
          fix: choose multiples of 2, or fewer levels.
        """,
    ),
}
test_messages = pinned(MISTAKES)
