"""Arrays in files, of which a part can be read: .npy, .zarr, and NIfTI (.nii, .nii.gz).

A file is opened by its header; `read` gets a block, and nothing else of it is read. Of a file that is compressed as a
whole (.nii.gz) all that comes before the block is unpacked on the way.
"""

import gzip
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError, MeshaxError
from ..extras import extra
from ..files import write_whole
from .blocks import Block, slices_of

_NIFTI = (".nii", ".nii.gz")
KINDS = (".npy", ".zarr", *_NIFTI)


@dataclass(frozen=True)
class VolumeFile:
    """An array in a file."""

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype
    _get: Callable[[tuple[slice, ...]], Any]

    def read(self, block: Block) -> np.ndarray:
        """Reads a block: a pair of bounds for each dim."""
        try:
            return np.asarray(self._get(slices_of(block)))
        except (OSError, ValueError, EOFError) as error:
            raise _unreadable(self.path, error) from error


def kind_of(path: Path) -> str:
    """Returns how a volume is stored, by the end of its name; raises if there is no such way."""
    for kind in KINDS:
        if path.name.lower().endswith(kind):
            return kind
    raise DataError(
        f"{path.name!r} is no volume that can be read.",
        values=str(path),
        rule=f"the end of a name says how a volume is stored: {', '.join(KINDS)}.",
        fix="convert it, or name another file.",
    )


def open_volume(path: str | Path) -> VolumeFile:
    """Opens an array in a file, to read blocks of it."""
    path = Path(path).expanduser()
    kind = kind_of(path)
    if not path.exists():
        raise DataError(f"there is no volume {str(path)!r}.", fix="correct the name.")
    try:
        shape, dtype, get = {".npy": _open_npy, ".zarr": _open_zarr}.get(kind, _open_nifti)(path)
    except MeshaxError:
        raise
    except (OSError, ValueError, EOFError) as error:
        raise _unreadable(path, error) from error
    return VolumeFile(path, tuple(int(size) for size in shape), np.dtype(dtype), get)


def _unreadable(path: Path, error: Exception) -> DataError:
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return DataError(
        f"the volume {path.name!r} cannot be read.",
        values=f"{path}: {first[:200]}",
        fix="make it again, or leave it out.",
    )


Opened = tuple[Any, Any, Callable[[tuple[slice, ...]], Any]]


def _open_npy(path: Path) -> Opened:
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    return array.shape, array.dtype, array.__getitem__


def _open_zarr(path: Path) -> Opened:
    with extra("train", "volumes in zarr"):
        import tensorstore

    driver = "zarr3" if (path / "zarr.json").exists() else "zarr"
    store = {"driver": "file", "path": str(path.absolute())}
    array = tensorstore.open({"driver": driver, "kvstore": store}, read=True, open=True).result()
    return array.shape, array.dtype.numpy_dtype, lambda index: array[index].read().result()


def _open_nifti(path: Path) -> Opened:
    nibabel = _nibabel()
    try:
        image = nibabel.load(path)
    except nibabel.filebasedimages.ImageFileError as error:
        raise ValueError(str(error)) from error
    data = image.dataobj
    has_scale = getattr(data, "slope", 1.0) != 1.0 or getattr(data, "inter", 0.0) != 0.0
    return image.shape, np.float32 if has_scale else data.dtype, data.__getitem__


def _nibabel() -> Any:
    with extra("images", "volumes in NIfTI"):
        import nibabel
    return nibabel


def check_writable(path: str | Path) -> None:
    """Raises if a volume of this name cannot be written."""
    path = Path(path).expanduser()
    kind = kind_of(path)
    if kind == ".zarr":
        raise DataError(f"{path.name!r} cannot be written.", fix="choose a name that ends with .npy, .nii or .nii.gz.")
    if kind in _NIFTI:
        _nibabel()
    if not path.parent.is_dir():
        raise DataError(f"there is no folder {str(path.parent)!r}.", fix="make it, or choose another.")


def write_volume(path: str | Path, array: np.ndarray, like: VolumeFile | None = None) -> None:
    """Writes an array, whole or not at all.

    Args:
        path: ends with .npy, .nii or .nii.gz.
        array: what to write.
        like: a volume of the same place: a NIfTI file keeps where it is in space.
    """
    check_writable(path)
    path = Path(path).expanduser()
    kind = kind_of(path)
    if kind == ".npy":
        content = io.BytesIO()
        np.save(content, array)
        write_whole(path, content.getvalue())
        return
    nibabel = _nibabel()
    place, header = np.eye(4), None
    if like is not None and kind_of(like.path) in _NIFTI:
        source = nibabel.load(like.path)
        place, header = source.affine, source.header.copy()
        header.set_data_dtype(array.dtype)
        header.set_slope_inter(1, 0)
    packed = nibabel.Nifti1Image(array, place, header).to_bytes()
    write_whole(path, gzip.compress(packed, mtime=0) if kind == ".nii.gz" else packed)
