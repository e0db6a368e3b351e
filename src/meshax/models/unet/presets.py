"""A small one for a laptop, and that of Mesh-TensorFlow's experiment for volumes of three sizes."""

from ..contract import Preset, Recipe
from .unet import UNetConfig

# Classes count nearly alike, and overlap for half of the loss: weights of 8 and 16 make a liver of few voxels swell.
_TINY = UNetConfig(
    levels=3, filters=8, dropout=0.0, dice_part=0.5, class_weights="1 2 4", dtype="float32", keep="everything"
)


def _volume(size: int) -> Preset:
    """The configuration of Mesh-TensorFlow's experiment with CT scans."""
    sizes = {"batch": 1, "x": size, "y": size, "z": size}
    about = f"Mesh-TensorFlow's U-Net, one volume of {size} x {size} x {size}"
    return Preset(f"unet3d-{size}", "images", UNetConfig(), sizes, 1e-3, about)


PRESETS = (
    Preset(
        "unet-tiny", "laptop", _TINY, {"batch": 2, "x": 32, "y": 32, "z": 32}, 1e-2,
        "volumes, for the 8 virtual processors of a laptop", Recipe(steps=240, warmup=12), layout="batch:data x:model",
    ),
    _volume(128),
    _volume(256),
    _volume(512),
)  # fmt: skip
