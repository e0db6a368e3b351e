"""`meshax segment`: volumes of any size and kind, the same labels under every layout."""

import contextlib
import json

import nibabel
import numpy as np
import pytest
from rich.console import Console

from meshax.cli import main, written
from meshax.data.synthetic_ct import draw_case, make_block
from meshax.train.loop import Run
from meshax.train.record import record_start
from runs import small, small_unet, write_text

SIZE = (13, 10, 11)  # not even, and not as it was trained


@pytest.fixture(autouse=True)
def eight_processors(monkeypatch):
    """The tests' own: JAX is in use already."""
    monkeypatch.setattr(written, "use_processors", lambda mesh: None)


def saved(config):
    """Returns the directory of a run that has saved its first state: nothing is trained."""
    run = Run(config, Console(quiet=True))
    with contextlib.closing(run.checkpoints):
        record_start(run.config, run.mesh, run.layout, run._signature)
        run._save(2, run.first_state())
    return str(run.directory)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return saved(small_unet(tmp_path_factory.mktemp("segment"), steps=2))


def test_the_same_labels_from_every_file_under_every_layout(run, tmp_path, capsys):
    image = make_block(draw_case(0, 0), SIZE)[0]
    np.save(tmp_path / "scan.npy", image)
    place = np.diag([0.7, 0.8, 2.5, 1.0])
    nibabel.save(nibabel.Nifti1Image(image, place), tmp_path / "scan.nii.gz")
    out = str(tmp_path / "labels.npy")
    assert main(["segment", "--run", run, str(tmp_path / "scan.npy"), "--out", out, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    labels = np.load(out)
    assert (labels.shape, labels.dtype, said["voxels"]) == (SIZE, np.uint8, labels.size)
    assert [said[f"class_{number}"] for number in range(3)] == np.bincount(labels.ravel(), minlength=3).tolist()
    assert len(np.unique(labels)) > 1
    other = str(tmp_path / "labels.nii.gz")
    split = ["--mesh", "rows:2 cols:4", "--layout", "x:rows y:cols"]
    assert main(["segment", "--run", run, str(tmp_path / "scan.nii.gz"), "--out", other, *split]) == 0
    again = nibabel.load(other)
    np.testing.assert_array_equal(np.asarray(again.dataobj), labels)
    np.testing.assert_allclose(again.affine, place, rtol=1e-6)


def test_what_cannot_be_labelled(run, tmp_path, capsys):
    np.save(tmp_path / "flat.npy", np.zeros((4, 4)))
    out, name = str(tmp_path / "labels.npy"), str(tmp_path / "flat.npy")
    assert main(["segment", "--run", run, name, "--out", out]) == 1
    error = capsys.readouterr().err
    assert "the image 'flat.npy' has a shape that the model cannot read." in error
    assert "rule: a volume has the sides x, y, z, and 1 channels." in error
    for arguments, words in (
        ([name], "--out is missing.\n  fix: give both: meshax segment FILE --out FILE."),
        (["--out", out], "the volume is missing."),
        ([name, "--out", str(tmp_path / "no" / "labels.npy")], f"there is no folder {str(tmp_path / 'no')!r}."),
        ([name, "--out", "labels.zarr"], "'labels.zarr' cannot be written."),
    ):
        assert main(["segment", "--run", run, *arguments]) != 0
        assert words in capsys.readouterr().err


def test_a_model_that_does_not_segment(tmp_path, capsys):
    write_text(tmp_path / "text")
    config = small(tmp_path, steps=2, mesh="data:1 model:1")
    config.directory().mkdir()
    (config.directory() / "config.json").write_text(config.resolved().to_json())
    np.save(tmp_path / "scan.npy", np.zeros((4, 4, 4)))
    arguments = [str(tmp_path / "scan.npy"), "--out", str(tmp_path / "labels.npy")]
    assert main(["segment", "--run", str(config.directory()), *arguments]) == 2
    assert "does not segment.\n  fix: name the run of a model that segments." in capsys.readouterr().err
