"""Copies on devices: a checkpoint is what was there when it was asked for, whatever the steps do meanwhile."""

import jax
import numpy as np
import pytest

import meshax as mx
from meshax.train.checkpoint import Checkpoints, chunks, copies
from meshax.train.checkpoint.arrays import take_snapshots
from meshax.train.checkpoint.copies import Copies, has_room

ROWS, COLS = mx.Dim("rows", 10), mx.Dim("cols", 7)
MESH = mx.Mesh("x:2 y:4")
LAYOUTS = ["", "rows:y", "rows:x cols:y"]


class Device:
    """A GPU that says how much of its memory is used."""

    platform = "gpu"

    def __init__(self, stats):
        self.memory_stats = lambda: stats


def table(factor=1.0):
    return mx.tensor(factor * np.arange(70.0).reshape(10, 7), (ROWS, COLS))


@pytest.fixture
def roomy(monkeypatch):
    """Devices with room, as GPUs may have it."""
    monkeypatch.setattr(copies, "has_room", lambda needed: True)


NUM_CHUNKS = {"": 10, "rows:y": 10, "rows:x cols:y": 40}  # of a row in a block; of 12 rows, two are padding


@pytest.mark.parametrize("is_cut", [False, True], ids=["whole", "in chunks"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_copies_outlive_what_they_are_of(roomy, monkeypatch, layout, is_cut):
    if is_cut:
        monkeypatch.setattr(chunks, "MAX_CHUNK_BYTES", 28)  # a row at most
    placed = mx.put(table(), MESH, layout)
    snapshot = take_snapshots({"x": (placed.array, (10, 7))}, Copies())["x"]
    assert all(isinstance(part, jax.Array) for _, part in snapshot.parts)
    assert not is_cut or len(snapshot.parts) == NUM_CHUNKS[layout]
    double = mx.spmd(lambda x: x + x, MESH, layout, donate=0)
    np.testing.assert_array_equal(double(placed).numpy(), table(2).numpy())
    assert placed.array.is_deleted()

    snapshot.fetch()

    whole = np.full((10, 7), np.nan)
    for bounds, part in snapshot.parts:
        assert isinstance(part, np.ndarray)
        whole[tuple(slice(*pair) for pair in bounds)] = part
    np.testing.assert_array_equal(whole, table().numpy())
    assert snapshot.num_bytes == 70 * 4  # neither padding nor copies over other axes


@pytest.mark.parametrize("is_cut", [False, True], ids=["whole", "in chunks"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_checkpoint_is_of_its_own_step_though_the_next_overwrites_it(roomy, monkeypatch, tmp_path, layout, is_cut):
    if is_cut:
        monkeypatch.setattr(chunks, "MAX_CHUNK_BYTES", 28)
    step = mx.spmd(lambda state: {"table": state["table"] * 2, "key": state["key"]}, MESH, layout, donate=0)
    state = mx.put({"table": table(), "key": jax.random.key(5)}, MESH, layout)
    with Checkpoints(tmp_path, keep_last=None) as checkpoints:
        checkpoints.prepare(state)
        for number in range(1, 4):
            state = step(state)
            checkpoints.save(number, state)
        like = {"table": table(), "key": jax.random.key(0)}
        for number in range(1, 4):
            tree, _ = checkpoints.restore(number, like=like, mesh=MESH, layout="rows:x")
            np.testing.assert_array_equal(tree["table"].numpy(), table(2.0**number).numpy())
            assert (jax.random.key_data(tree["key"]) == jax.random.key_data(jax.random.key(5))).all()


def test_without_room_the_host_has_them_when_the_call_returns(monkeypatch):
    blocks = [jax.device_put(np.arange(3.0), device) for device in jax.devices()[:2]]
    asked = []
    monkeypatch.setattr(copies, "has_room", lambda needed: bool(asked.append(needed)))
    maker = Copies()
    assert maker.of([]) is None and maker.of(blocks) is None and maker.of(blocks) is None
    assert asked == [{device: 12 for device in jax.devices()[:2]}]  # once


def test_memory_that_is_in_pieces_is_no_room(roomy, monkeypatch):
    maker, calls = Copies(), []

    def fail(blocks):
        calls.append(blocks)
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED")

    monkeypatch.setattr(maker, "_program", lambda blocks: fail)
    blocks = [jax.device_put(np.arange(3.0), jax.devices()[0])]
    assert maker.of(blocks) is None and maker.of(blocks) is None
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("stats", "fits"),
    [
        ({"bytes_limit": 1000, "peak_bytes_in_use": 874}, True),
        ({"bytes_limit": 1000, "peak_bytes_in_use": 876}, False),
        ({}, False),
        (None, False),
    ],
)
def test_room_is_what_was_never_used(stats, fits):
    gpu, other = Device(stats), Device({"bytes_limit": 1000, "peak_bytes_in_use": 0})
    assert has_room({other: 100, gpu: 100}) is fits
    assert not has_room({jax.devices("cpu")[0]: 1})


def test_what_is_prepared_is_compiled_and_copies_nothing(roomy, monkeypatch):
    maker = Copies()
    blocks = [jax.device_put(np.arange(n + 3.0), device) for n, device in enumerate(jax.devices()[:3])]
    maker.prepare(blocks)
    assert not maker._programs  # of a CPU there will be none
    monkeypatch.setattr(copies, "_by_device", lambda blocks: {Device({}): [0], Device(None): [1], Device(0): [2]})
    maker.prepare(blocks)
    assert len(maker._programs) == 3
    monkeypatch.setattr(jax, "jit", lambda *_: pytest.fail("it was compiled again"))
    for (copied,), block in zip(maker.of(blocks), blocks, strict=True):
        np.testing.assert_array_equal(copied, block)
        assert copied.devices() == block.devices() and copied.unsafe_buffer_pointer() != block.unsafe_buffer_pointer()
