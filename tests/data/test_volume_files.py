"""Volumes in files: every kind gives the same blocks, and says what is wrong."""

import sys

import nibabel
import numpy as np
import pytest
import tensorstore

from meshax.data.blocks import slices_of
from meshax.data.volume_files import open_volume, write_volume
from meshax.errors import DataError
from meshax.extras import ExtraError
from messages import pinned

ARRAY = (np.arange(7 * 6 * 5).reshape(7, 6, 5) % 113).astype(np.int16)
BLOCKS = (((0, 7), (0, 6), (0, 5)), ((2, 5), (1, 2), (3, 5)), ((6, 7), (5, 6), (4, 5)))


def write_zarr(path, driver):
    spec = {"driver": driver, "kvstore": {"driver": "file", "path": str(path)}}
    tensorstore.open(spec, create=True, dtype="int16", shape=ARRAY.shape).result().write(ARRAY).result()


def write(path):
    if path.name.endswith(".zarr"):
        write_zarr(path, "zarr3" if path.name == "new.zarr" else "zarr")
    else:
        write_volume(path, ARRAY)
    return path


@pytest.mark.parametrize("name", ["a.npy", "a.zarr", "new.zarr", "a.nii", "a.nii.gz"])
def test_every_kind_gives_the_same_blocks(tmp_path, name):
    volume = open_volume(write(tmp_path / name))
    assert (volume.shape, volume.dtype) == ((7, 6, 5), np.int16)
    for block in BLOCKS:
        np.testing.assert_array_equal(volume.read(block), ARRAY[slices_of(block)])


def test_a_scaled_nifti_file_gives_what_it_stands_for(tmp_path):
    image = nibabel.Nifti1Image(ARRAY, np.eye(4))
    image.header.set_slope_inter(2.0, -1000.0)
    stored = nibabel.Nifti1Image(ARRAY, np.eye(4), image.header)
    stored.header.set_slope_inter(2.0, -1000.0)
    nibabel.save(stored, tmp_path / "a.nii")
    volume = open_volume(tmp_path / "a.nii")
    expected = np.asarray(nibabel.load(tmp_path / "a.nii").dataobj)
    assert volume.dtype == np.float32
    np.testing.assert_allclose(volume.read(BLOCKS[1]), expected[slices_of(BLOCKS[1])])


def test_labels_keep_the_place_of_their_image(tmp_path):
    place = np.diag([0.7, 0.8, 2.5, 1.0])
    nibabel.save(nibabel.Nifti1Image(ARRAY.astype(np.float32), place), tmp_path / "image.nii.gz")
    write_volume(tmp_path / "labels.nii.gz", ARRAY.astype(np.uint8), like=open_volume(tmp_path / "image.nii.gz"))
    labels = nibabel.load(tmp_path / "labels.nii.gz")
    np.testing.assert_allclose(labels.affine, place, rtol=1e-6)
    assert labels.get_data_dtype() == np.uint8
    np.testing.assert_array_equal(np.asarray(labels.dataobj), ARRAY)


def test_only_the_block_is_in_memory(tmp_path):
    np.lib.format.open_memmap(tmp_path / "large.npy", "w+", np.float32, (4096, 512, 512)).flush()  # a hole of 4 GB
    assert open_volume(tmp_path / "large.npy").read(((4000, 4002), (500, 512), (3, 5))).shape == (2, 12, 2)


def test_the_missing_extra_is_named(tmp_path, monkeypatch):
    path = write(tmp_path / "a.nii")
    monkeypatch.setitem(sys.modules, "nibabel", None)
    with pytest.raises(ExtraError, match=r"^volumes in NIfTI need nibabel\.\n  fix: pip install 'meshax\[images\]'\."):
        open_volume(path)


def test_a_broken_file(tmp_path):
    for name in ("a.npy", "a.nii", "a.nii.gz"):
        (tmp_path / name).write_bytes(b"\x00\x01 not a volume")
        with pytest.raises(DataError, match=f"the volume '{name}' cannot be read"):
            open_volume(tmp_path / name)
    (tmp_path / "a.zarr").mkdir()
    with pytest.raises(DataError, match=r"the volume 'a.zarr' cannot be read"):
        open_volume(tmp_path / "a.zarr")


MISTAKES = {
    "another kind": (
        DataError,
        lambda: open_volume("scan.dcm"),
        """
        'scan.dcm' is no volume that can be read.
          values: scan.dcm
          rule: the end of a name says how a volume is stored: .npy, .zarr, .nii, .nii.gz.
          fix: convert it, or name another file.
        """,
    ),
    "nothing there": (
        DataError,
        lambda: open_volume("nowhere.npy"),
        """
        there is no volume 'nowhere.npy'.
          fix: correct the name.
        """,
    ),
    "writing zarr": (
        DataError,
        lambda: write_volume("labels.zarr", ARRAY),
        """
        'labels.zarr' cannot be written.
          fix: choose a name that ends with .npy, .nii or .nii.gz.
        """,
    ),
}
test_messages = pinned(MISTAKES)
