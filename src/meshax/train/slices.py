"""Pictures of what a model makes of volumes: slices, beside the truth."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..dim import without
from ..extras import extra
from ..layout import Layout
from ..mesh import Mesh
from ..ops import argmax, one_hot
from ..ops import sum as sum_
from ..processes import gather_to_host
from ..program import spmd
from ..tensors import Tensor

Slices = dict[str, np.ndarray]  # image, truth and prediction, each [example, x, y]
_WIDE = 3  # dims of a volume: of fewer there is nothing to cut


def slices_of_batch(model: Any, batch: dict[str, Tensor], mesh: Mesh, layout: Layout, count: int) -> Slices:
    """Returns a slice through each of the first examples: where most is labelled.

    Args:
        model: gives logits of classes for every voxel of an image.
        batch: `image`, `labels` and `weights`.
        mesh: the processors.
        layout: the rules.
        count: of examples, at most.

    Communication: slices are gathered, not volumes.
    """
    slices = gather_to_host(spmd(_cut, mesh, layout)(model, batch))
    return {name: array[:count] for name, array in slices.items()}


def _cut(model: Any, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    image, labels = batch["image"], batch["labels"]
    truth, prediction = labels.astype(jnp.float32), predicted(model, image).astype(jnp.float32)
    channel = image.dims[-1]
    tensors = {"image": image[{channel.name: 0}], "truth": truth, "prediction": prediction}
    batch_dim, *places = labels.dims
    if len(places) < _WIDE:
        return tensors
    height = places[-1]
    most = one_hot(argmax(sum_(truth, places[:-1]), over=height), height)
    return {name: sum_(one * most, height) for name, one in tensors.items()}


def predicted(model: Any, image: Tensor) -> Tensor:
    """Returns the class that a model sees at every voxel of an image."""
    logits = model(image)
    (classes,) = without(logits.dims, image.dims)
    return argmax(logits, over=classes)


def draw_slices(slices: Slices, names: Sequence[str]) -> np.ndarray:
    """Draws slices, a row for each example.

    Args:
        slices: `image`, `truth` and `prediction`.
        names: of the classes.

    Returns:
        The colours, uint8 [height, width, 3].
    """
    with extra("train", "pictures of slices"):
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
        from matplotlib.patches import Patch

    rows = len(slices["image"])
    figure, axes = pyplot.subplots(
        rows, 3, figsize=(6.6, 2.2 * rows + 0.4), dpi=110, layout="constrained", squeeze=False
    )
    colours = pyplot.get_cmap("viridis", len(names))
    for row in range(rows):
        for place, name in zip(axes[row], ("image", "truth", "prediction"), strict=True):
            flat = slices[name][row].T  # the first dim goes to the right
            if name == "image":
                place.imshow(flat, cmap="gray", vmin=-1, vmax=1)
            else:
                place.imshow(flat, cmap=colours, vmin=-0.5, vmax=len(names) - 0.5, interpolation="nearest")
            place.set_axis_off()
            if row == 0:
                place.set_title(name, fontsize=9)
    patches = [Patch(color=colours(number), label=name) for number, name in enumerate(names)]
    figure.legend(handles=patches, loc="outside lower center", ncols=len(names), fontsize=8, frameon=False)
    figure.canvas.draw()
    picture = np.asarray(figure.canvas.buffer_rgba())[..., :3].copy()  # type: ignore[attr-defined]
    pyplot.close(figure)
    return picture
