"""The classes of all voxels of one volume, however large: it is read, computed and labelled by blocks, over the mesh.

A volume is one example, as large as it is; a model that halves sides needs them even, so it is padded there with air.
"""

from dataclasses import dataclass
from math import ceil
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..data.augmentation import unchanged
from ..data.blocks import Block
from ..data.volume_files import VolumeFile
from ..data.volume_stream import Example, lazy_batch
from ..data.volumes import Read, read_image
from ..errors import ArgumentError, DataError
from ..layout import Layout
from ..mesh import Mesh
from ..models.contract import ModelConfig
from ..processes import LocalRows, gather_to_host
from ..program import spmd
from ..tensors import Tensor
from .slices import predicted

_MOST = 256  # classes that a byte holds, and what sides may have to be multiples of


@dataclass(frozen=True)
class Unlabelled:
    """One image without labels, as a case."""

    image: VolumeFile
    num_dims: int
    num_channels: int

    fingerprint = ""

    def __len__(self) -> int:
        return 1

    def shape(self, number: int) -> tuple[int, ...]:
        """Returns the shape without channels."""
        return self.image.shape[: self.num_dims]

    def read(self, number: int, block: Block) -> Read:
        """Reads a block; labels are 0."""
        image = read_image(self.image, block, self.num_channels)
        return image, np.zeros(image.shape[:-1], np.int32)


def segment(
    model: Any,
    config: ModelConfig,
    example: Tensor,
    image: VolumeFile,
    mesh: Mesh,
    layout: Layout,
    window: tuple[float, float],
) -> np.ndarray:
    """Returns the class of every voxel of an image, as bytes.

    Args:
        model: gives logits of classes for every voxel.
        config: what it was made from.
        example: the shape of the images that it was trained on, [batch, sides.., channel]: their names.
        image: where the image is: each process reads what its devices hold.
        mesh: the processors.
        layout: the rules: with `x:axis` no processor holds the volume.
        window: the intensities that became -1 and 1 when it was trained.

    Communication: what the model sends, and an all-gather of the labels at the end.
    """
    if config.sizes()["classes"] > _MOST:
        raise ArgumentError("labels of more than 256 classes do not fit a byte.", fix="choose another model.")
    _, *sides, channel = example.dims
    names = [dim.name for dim in sides]
    shape, channels = image.shape[: len(names)], image.shape[len(names) :]
    if len(shape) != len(names) or channels not in (((), (1,)) if channel.size == 1 else ((channel.size,),)):
        raise DataError(
            f"the image {image.path.name!r} has a shape that the model cannot read.",
            values=f"{image.path}: {image.shape}",
            rule=f"a volume has the sides {', '.join(names)}, and {channel.size} channels.",
            fix="convert it, or choose another run.",
        )
    shapes = _padded(config, dict(zip(names, shape, strict=True)))
    padded = tuple(dim.size for dim in shapes["labels"].dims[1:])
    case = Unlabelled(image, len(names), channel.size)
    shown = Example(case, 0, padded, unchanged([0] * len(names)), window)
    local = LocalRows({"image": shapes["image"]}, mesh, layout)
    batch: dict[str, Any] = dict(lazy_batch([shown for _ in local.rows], padded, channel.size))
    placed = local.put({"image": batch["image"]})
    labels = spmd(lambda m, x: predicted(m, x).astype(jnp.uint8), mesh, layout)(model, placed["image"])
    return gather_to_host(labels)[0][tuple(slice(size) for size in shape)]


def _padded(config: ModelConfig, sizes: dict[str, int]) -> dict[str, Tensor]:
    """Returns the shapes of a batch of one volume, with sides just as large as the model can take."""
    multiple = 1
    while True:
        try:
            return config.batch({"batch": 1} | {name: ceil(size / multiple) * multiple for name, size in sizes.items()})
        except ArgumentError:
            if multiple >= _MOST:
                raise
            multiple *= 2
