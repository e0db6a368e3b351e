"""Batches of volumes: the same under every layout and in every number of processes, resumable, read by blocks."""

import numpy as np
import pytest

import meshax as mx
from meshax.data.augmentation import CHANGES
from meshax.data.volume_stream import VolumeBatches, tiles
from meshax.data.volumes import SyntheticCases
from meshax.errors import DataError
from meshax.processes import LocalRows
from messages import pinned

SHAPE, WINDOW = (10, 12, 8), (-160.0, 240.0)
CASES = SyntheticCases(0, range(5), (13, 12, 11), 3)
DIMS = mx.dims(batch=4, x=10, y=12, z=8)
SHAPES = {"image": (*DIMS, mx.Dim("channel", 1)), "labels": DIMS, "weights": DIMS}


def stream(seed=0, rows=None, cases=CASES, batch=4, changes=CHANGES):
    return VolumeBatches(cases, SHAPE, 1, batch, window=WINDOW, changes=changes, seed=seed, rows=rows)


def arrays(batch):
    return {name: np.asarray(array) for name, array in batch.items()}


def assert_same(one, other):
    for name, array in arrays(one).items():
        np.testing.assert_array_equal(array, np.asarray(other[name]))


def test_a_batch():
    batch = arrays(next(stream()))
    assert {name: (array.shape, array.dtype) for name, array in batch.items()} == {
        "image": ((4, 10, 12, 8, 1), np.float32),
        "labels": ((4, 10, 12, 8), np.int32),
        "weights": ((4, 10, 12, 8), np.float32),
    }
    assert (batch["weights"] == 1).all() and set(np.unique(batch["labels"])) <= {0, 1, 2}
    assert -2.4 < batch["image"].min() < -1 < 0.3 < batch["image"].max() < 2.7


def test_each_pass_shows_every_case_once_in_another_order():
    plain = stream(batch=5, changes=())
    passes = [arrays(next(plain))["labels"].sum((1, 2, 3)) for _ in range(3)]
    assert len(set(passes[0])) == 5
    assert all(sorted(one) == sorted(passes[0]) for one in passes)
    assert any(list(one) != list(passes[0]) for one in passes)


def test_changes_differ_from_pass_to_pass():
    batches = stream(cases=SyntheticCases(0, range(4), SHAPE, 3))
    one, other = (np.asarray(next(batches)["image"]) for _ in range(2))
    assert not any((one[i] == other[j]).all() for i in range(4) for j in range(4))
    assert (np.asarray(next(stream(seed=1))["image"]) != np.asarray(next(stream())["image"])).any()


def test_rows_and_blocks_are_parts_of_the_whole():
    whole, part = next(stream()), next(stream(rows=(3, 1)))
    for name, array in arrays(whole).items():
        np.testing.assert_array_equal(np.asarray(part[name]), array[[3, 1]])
        index = (slice(1, 3), slice(7, 10), slice(0, 5), slice(3, 4)) + (slice(0, 1),) * (name == "image")
        np.testing.assert_array_equal(whole[name][index], array[index])


@pytest.mark.parametrize("layout", ["", "batch:rows", "x:rows z:cols", "y:rows+cols", "batch:rows x:cols"])
def test_a_layout_changes_nothing(layout):
    mesh = mx.Mesh("rows:2 cols:4")
    shapes = {name: mx.zeros(dims) for name, dims in SHAPES.items()}
    local = LocalRows(shapes, mesh, layout)
    placed = local.put(next(stream(rows=local.rows)))
    for name, array in arrays(next(stream())).items():
        np.testing.assert_array_equal(placed[name].numpy(), array)


def test_devices_read_their_blocks_alone():
    read = []

    class Watched(SyntheticCases):
        def read(self, number, block):
            read.append(block)
            return super().read(number, block)

    mesh = mx.Mesh("rows:2 cols:4")
    shapes = {name: mx.zeros(dims) for name, dims in SHAPES.items()}
    cases = Watched(0, range(5), SHAPE, 3)
    LocalRows(shapes, mesh, "x:rows y:cols").put(next(stream(cases=cases, changes=())))
    assert len(read) == 4 * 8  # once each, though there are three arrays
    assert set(read) == {((x, x + 5), (y, y + 3), (0, 8)) for x in (0, 5) for y in (0, 3, 6, 9)}


def test_a_stream_goes_on_where_it_was():
    batches = stream()
    for _ in range(3):
        next(batches)
    state, fourth = batches.state(), next(batches)
    other = stream(rows=range(4))
    other.restore(state)
    assert other.position == 3
    assert_same(next(other), fourth)
    assert other.position == batches.position == 4


def test_tiles_show_every_voxel_once():
    cases = SyntheticCases(2, range(3), (13, 12, 11), 3)
    total, labelled, count = 0, np.zeros(3, int), 0
    for batch in tiles(cases, SHAPE, 1, 5, window=WINDOW):
        assert batch["image"].shape == (5, *SHAPE, 1)
        weights, labels = np.asarray(batch["weights"]), np.asarray(batch["labels"])
        total += weights.sum()
        labelled += np.bincount(labels[weights > 0], minlength=3)
        assert not labels[weights == 0].any()
        count += 1
    everything = np.concatenate([cases.read(n, ((0, 13), (0, 12), (0, 11)))[1].ravel() for n in range(3)])
    assert (total, count) == (everything.size, 3)  # 12 examples, and 3 of padding
    np.testing.assert_array_equal(labelled, np.bincount(everything, minlength=3))


def test_a_volume_that_is_too_small_is_padded():
    small = SyntheticCases(0, range(1), (6, 12, 5), 3)
    batch = arrays(next(stream(cases=small, batch=1)))
    assert batch["weights"].sum() == 6 * 12 * 5
    assert (batch["labels"][batch["weights"] == 0] == 0).all()


MISTAKES = {
    "another stream": (
        DataError,
        lambda: stream().restore(stream(seed=3).state()),
        """
        this state is of another stream.
          values: seed was 3, is 0
          rule: a stream continues with the same cases, shape, batch, seed, window and changes.
          fix: make the stream as it was, or begin a new one.
        """,
    )
}
test_messages = pinned(MISTAKES)
