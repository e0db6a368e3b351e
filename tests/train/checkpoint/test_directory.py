"""Checkpoints: what was saved comes back, on any mesh and under any layout, or an error says why not.

Every file here is real, and so are the processes that are killed in the middle of saving.
"""

import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshax as mx
from disks import can_mount, with_little_room
from meshax.files import _start_of
from meshax.train.checkpoint import Checkpoints, arrays, manifest
from meshax.train.checkpoint.arrays import take_snapshots
from meshax.train.checkpoint.manifest import Damage, Manifest, parse_manifest
from meshax.train.checkpoint.writing import Saving
from messages import pinned
from processes import run_processes

ROOT = Path(__file__).parents[3]
VOCAB, HIDDEN, CLASSES = mx.dims(vocab=10, hidden=7, classes=4)
MESH = mx.Mesh("rows:2 cols:4")
ONE = mx.Mesh("x:1")


@pytest.fixture(autouse=True)
def _without_patience(monkeypatch):
    """What cannot be written is tried once; test_writing.py is about trying again."""
    monkeypatch.setattr("meshax.train.checkpoint.writing.PAUSES", ())


def example(scale=1.0):
    """A state whose dims do not divide by most meshes, every value of its own."""
    rows = np.arange(70.0, dtype=np.float32).reshape(10, 7) * scale
    return {
        "table": mx.param(mx.tensor(rows, (VOCAB, HIDDEN))),
        "out": mx.tensor(jnp.arange(28.0, dtype=jnp.bfloat16).reshape(7, 4) * scale, (HIDDEN, CLASSES)),
        "counts": np.arange(5),
        "key": jax.random.key(3),
        "seen": 12,
    }


def shapes(tree):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(np.shape(x), x.dtype) if hasattr(x, "dtype") else x, tree)


def assert_same(made, tree):
    def value(leaf):
        if isinstance(leaf, mx.Tensor):
            return leaf.numpy()
        is_key = hasattr(leaf, "dtype") and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(leaf) if is_key else leaf)

    pairs = zip(
        *(jax.tree.leaves(one, is_leaf=lambda x: isinstance(x, mx.Tensor)) for one in (made, tree)), strict=True
    )
    for a, b in pairs:
        np.testing.assert_array_equal(value(a), value(b))


def saved(directory, steps=(1,), **options):
    """A directory of checkpoints; the values of step n are n times those of step 1."""
    with Checkpoints(directory, **options) as checkpoints:
        for step in steps:
            placed = mx.put(example(step), MESH, "vocab:cols hidden:rows")
            checkpoints.save(step, placed, {"step": step})
    return Checkpoints(directory, read_only=True)


def checkpoint(directory, step):
    return next(directory.glob(f"*-step-{step}"))


def files(directory):
    return sorted(path for path in directory.rglob("*") if path.is_file())


def run(code, *args, check=True, prefix=()):
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}"}
    command = [*prefix, sys.executable, "-W", "error", "-c", code, *map(str, args)]
    return subprocess.run(command, env=environment, check=check, capture_output=True, text=True, timeout=120)


# What was saved comes back


@pytest.mark.parametrize(
    ("mesh", "layout"),
    [
        ("x:1", ""),
        ("rows:2 cols:4", "vocab:cols hidden:rows"),
        ("x:8", "vocab:x"),
        ("x:8", "hidden:x"),
        ("x:3", "vocab:x"),
        ("a:2 b:4", "hidden:a+b"),
        ("a:2 b:2 c:2", "vocab:b+a hidden:c"),
        ("a:1 b:5", "classes:b hidden:a"),
    ],
)
def test_a_run_resumes_on_another_mesh_under_another_layout(tmp_path, mesh, layout):
    checkpoints, mesh = saved(tmp_path), mx.Mesh(mesh)

    tree, extra = checkpoints.restore(like=example(), mesh=mesh, layout=layout)

    assert_same(tree, example())
    assert extra == {"step": 1}
    assert tree["table"].role == "param"
    expected = mx.put(example(), mesh, layout)
    assert tree["table"].array.sharding == expected["table"].array.sharding
    assert tree["table"].array.shape == expected["table"].array.shape
    total = mx.spmd(lambda tree: mx.sum(tree["table"]), mesh, layout)
    assert total(tree).item() == np.arange(70.0).sum()


def test_roles_place_what_they_store(tmp_path):
    layout = mx.Layout("vocab:rows", params="hidden:cols")

    tree, _ = saved(tmp_path).restore(like=shapes(example()), mesh=MESH, layout=layout)

    assert_same(tree, example())
    assert tree["table"].array.sharding.spec == jax.sharding.PartitionSpec("rows", "cols")


def test_a_whole_tree_of_host_arrays_is_saved_too(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(0, example())
        tree, extra = checkpoints.restore(0, like=example(), mesh=MESH, layout="hidden:cols")
    assert_same(tree, example())
    assert extra == {}


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint32", "float16", "bfloat16", "complex64", "float8_e4m3fn"])
def test_every_dtype_comes_back_bit_for_bit(tmp_path, dtype):
    x = mx.tensor(jnp.arange(10).astype(dtype), (VOCAB,))
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, mx.put(x, MESH, "vocab:cols"))
        made, _ = checkpoints.restore(like=x, mesh=MESH, layout="vocab:rows")
    assert made.dtype == x.dtype
    np.testing.assert_array_equal(made.numpy(), x.numpy())


def test_nan_infinity_and_negative_zero_come_back(tmp_path):
    values = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-42, 1, 2, 3, 4], np.float32)
    x = mx.tensor(values, (VOCAB,))
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, mx.put(x, MESH, "vocab:cols"), {"loss": float("nan")})
        made, extra = checkpoints.restore(like=x, mesh=ONE)
    assert made.numpy().tobytes() == values.tobytes()
    assert np.isnan(extra["loss"])


def test_another_dtype_if_asked(tmp_path):
    checkpoints = saved(tmp_path)

    tree, _ = checkpoints.restore(like=example(), mesh=MESH, layout="vocab:cols", dtype=jnp.bfloat16)
    assert [tree[name].dtype for name in ("table", "out", "counts")] == [jnp.bfloat16, jnp.bfloat16, jnp.int32]
    np.testing.assert_array_equal(tree["table"].numpy(), np.arange(70.0).reshape(10, 7).astype(jnp.bfloat16))

    half = {**example(), "table": example()["table"].astype(jnp.float16)}
    tree, _ = checkpoints.restore(like=half, mesh=MESH, layout="vocab:cols", dtype="like")
    assert [tree[name].dtype for name in ("table", "out")] == [jnp.float16, jnp.bfloat16]


def test_a_part_of_a_checkpoint(tmp_path):
    like = {"table": example()["table"]}
    tree, _ = saved(tmp_path).restore(like=like, mesh=ONE, partial=True)
    assert_same(tree, like)


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path):
    state = mx.put(example(), MESH, "vocab:cols hidden:rows")["table"]
    double = mx.spmd(lambda x: x + x, MESH, "vocab:cols hidden:rows", donate=0)
    with Checkpoints(tmp_path, keep_last=None) as checkpoints:
        for step in range(1, 6):
            checkpoints.save(step, state)
            state = double(state)  # takes over the memory that was saved
        for step in range(1, 6):
            made, _ = checkpoints.restore(step, like=state, mesh=ONE)
            np.testing.assert_array_equal(made.numpy(), example(2 ** (step - 1))["table"].numpy())


def test_a_restored_state_can_be_donated(tmp_path):
    checkpoints = saved(tmp_path)
    double = mx.spmd(lambda tree: tree["table"] + tree["table"], MESH, "vocab:cols", donate=0)
    tree, _ = checkpoints.restore(like=example(), mesh=MESH, layout="vocab:cols")  # copies over rows
    np.testing.assert_array_equal(double(tree).numpy(), example(2)["table"].numpy())


def test_nobody_copies_more_than_its_blocks():
    x = mx.put(mx.tensor(np.arange(70.0).reshape(10, 7), (VOCAB, HIDDEN)), MESH, "vocab:cols").array
    assert x.shape == (12, 7)

    snapshot = take_snapshots({"x": (x, (10, 7))})["x"]

    assert [bounds for bounds, _ in snapshot.parts] == [((b, min(b + 3, 10)), (0, 7)) for b in (0, 3, 6, 9)]
    assert snapshot.num_bytes == 70 * 4  # no padding, and of the two copies over rows only one


# What is kept


def test_the_last_and_the_best_are_kept(tmp_path):
    losses = {1: 5.0, 2: 1.0, 3: 4.0, 4: float("nan"), 5: 3.0, 6: None}
    with Checkpoints(tmp_path, keep_last=2, keep_best=2) as checkpoints:
        for step, loss in losses.items():
            checkpoints.save(step, example(step), metric=loss)
        checkpoints.wait()
        assert checkpoints.steps() == [2, 5, 6]  # 5 is among the last, and third at step 4
        assert (checkpoints.latest(), checkpoints.best()) == (6, 2)
        tree, _ = checkpoints.restore("best", like=example(), mesh=ONE)
        assert_same(tree["table"], example(2)["table"])
    assert Checkpoints(tmp_path, best="max", read_only=True).best() == 5


def test_an_empty_directory_has_no_steps(tmp_path):
    with Checkpoints(tmp_path / "new" / "run") as checkpoints:
        assert (checkpoints.steps(), checkpoints.latest(), checkpoints.best()) == ([], None, None)


def test_going_back_makes_later_steps_older(tmp_path):
    saved(tmp_path, steps=(1, 2, 3))
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.restore(1, like=example(), mesh=ONE)
        checkpoints.save(2, example(20), wait=True)
        assert checkpoints.steps() == [1, 3, 2]
        assert len(list(tmp_path.glob("*-step-2"))) == 1
        tree, _ = checkpoints.restore(like=example(), mesh=ONE)
        assert_same(tree["table"], example(20)["table"])


def test_a_description(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(7, mx.put(example(), MESH, "vocab:cols"), {"lr": 0.1}, metric=2.5, wait=True)
        described = checkpoints.describe()
    assert (described.step, described.metric, described.extra) == (7, 2.5, {"lr": 0.1})
    first, *rest = str(described).splitlines()
    assert first.startswith("step 7, metric 2.5: 5 arrays, ")
    assert rest == [
        "  ['counts'] [5] int32",
        "  ['key'] [] key<fry>",
        "  ['out'] [hidden:7, classes:4] bfloat16",
        "  ['seen'] [] int32",
        "  ['table'] [vocab:10, hidden:7] float32 param",
    ]


# What is damaged


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def truncate(path):
    os.truncate(path, path.stat().st_size - 1)


DAMAGES = {"flipped": flip, "truncated": truncate, "removed": Path.unlink}


@pytest.mark.parametrize("kind", DAMAGES)
def test_any_damaged_file_is_named(tmp_path, kind):
    names = [path.relative_to(tmp_path) for path in files(checkpoint(saved(tmp_path).directory, 1))]
    assert len(names) >= 5
    for name in names:
        path = tmp_path / name
        original = path.read_bytes()
        DAMAGES[kind](path)
        with pytest.raises(mx.CheckpointError) as error:
            Checkpoints(tmp_path, read_only=True).restore(like=example(), mesh=ONE)
        path.write_bytes(original)
        what = "is missing" if kind == "removed" else "its content has changed"
        if kind == "truncated":
            what = f"has {len(original) - 1:,} bytes instead of {len(original):,}"
        if name.name == "manifest.json" and kind != "removed":
            what = "is not JSON any more" if kind == "truncated" else "(is not JSON any more|its content has changed)"
        first, values, rule, fix = str(error.value).splitlines()
        assert first == "the checkpoint of step 1 is damaged."
        assert re.fullmatch(f"  values: 000001-step-1/{re.escape('/'.join(name.parts[1:]))}: {what}", values)
        assert rule == "  rule: every file has the size and the sha256 that the manifest says."
        assert fix == "  fix: no older checkpoint verifies."
    Checkpoints(tmp_path, read_only=True).restore(like=example(), mesh=ONE)


def test_a_long_verification_shows_its_progress(tmp_path, monkeypatch, capfd):
    checkpoints = saved(tmp_path)
    monkeypatch.setattr(manifest, "_SHOW_PROGRESS_FROM", 0)
    checkpoints.restore(like=example(), mesh=ONE)
    out, err = capfd.readouterr()
    assert not out
    assert "verifying step 1" in err


def test_no_flipped_bit_of_a_manifest_changes_what_is_read(tmp_path):
    data = (checkpoint(saved(tmp_path).directory, 1) / "manifest.json").read_bytes()
    original = parse_manifest(data)
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 1 << position % 8
        with suppress(Damage):
            assert parse_manifest(changed) == original  # white space


def test_all_damage_is_listed_and_an_older_step_that_verifies(tmp_path):
    saved(tmp_path, steps=(1, 2, 3))
    flip(files(checkpoint(tmp_path, 2) / "arrays")[0])
    removed = files(checkpoint(tmp_path, 3) / "arrays")[1:3]
    for path in removed:
        path.unlink()
    (checkpoint(tmp_path, 3) / "stray").touch()

    with pytest.raises(mx.CheckpointError) as error:
        Checkpoints(tmp_path, read_only=True).restore(like=example(), mesh=ONE)

    names = [path.relative_to(tmp_path).as_posix() for path in removed]
    what, *values, _, fix = str(error.value).splitlines()
    assert what == "the checkpoint of step 3 is damaged."
    assert values == [
        f"  values: {names[0]}: is missing",
        f"          {names[1]}: is missing",
        "          000003-step-3/stray: does not belong here",
    ]
    assert fix == "  fix: step 1 verifies: take that, or remove those after it, to go on from there."


def test_a_manifest_of_another_version_is_refused(tmp_path):
    path = checkpoint(saved(tmp_path).directory, 1) / "manifest.json"
    body = {**json.loads(path.read_text()), "version": 2, "made_by": {"meshax": "9.0"}}
    del body["sha256"]
    path.write_text(json.dumps({**body, "sha256": manifest._hash_of(body)}))
    checkpoints = Checkpoints(tmp_path, read_only=True)
    for read in (checkpoints.describe, lambda step: checkpoints.restore(step, like=example(), mesh=ONE)):
        with pytest.raises(mx.CheckpointError) as error:
            read(1)
        assert str(error.value).splitlines() == [
            "the checkpoint of step 1 was made by another version of meshax.",
            f"  values: {path.parent.name}/manifest.json: format 2, by meshax 9.0; "
            f"meshax {manifest.meshax_version()} reads format 1",
            "  rule: a version of meshax reads the formats that it knows.",
            "  fix: read it with the version that made it, or take another step.",
        ]


# What interrupts saving

SAVE_AND_DIE = """
import os, signal, sys, shutil
from pathlib import Path
import numpy as np
import meshax as mx
from meshax.train.checkpoint import Checkpoints

die = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
directory, moment = sys.argv[1:]
x = lambda step: mx.tensor(np.full(1 << 24, step, np.float32), "elements")
checkpoints = Checkpoints(directory, keep_last=1)
checkpoints.save(1, x(1), wait=True)
if moment == "before the rename":
    Path.rename = die
if moment == "before the old one is deleted":
    shutil.rmtree = die
checkpoints.save(2, x(2), wait=True)
"""


def kill_while_writing(process, directory):
    """Kills a process as soon as it has begun the second checkpoint."""
    while not list(directory.glob("*-step-2.tmp")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.001)
    process.kill()


@pytest.mark.parametrize(
    ("moment", "step"), [("while writing", 1), ("before the rename", 1), ("before the old one is deleted", 2)]
)
def test_a_killed_process_leaves_a_whole_checkpoint(tmp_path, moment, step):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", SAVE_AND_DIE, str(tmp_path), moment]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as process:
        if moment == "while writing":
            kill_while_writing(process, tmp_path)
        process.communicate(timeout=150)
    assert process.returncode == -signal.SIGKILL
    assert len(list(tmp_path.glob("*.tmp"))) == 1

    with Checkpoints(tmp_path) as checkpoints:  # the lock of the dead is no hindrance
        assert checkpoints.steps() == [step]
        like = mx.tensor(jax.ShapeDtypeStruct((1 << 24,), jnp.float32), "elements")
        x, _ = checkpoints.restore(like=like, mesh=mx.Mesh("x:8"), layout="elements:x")
        assert (x.numpy() == step).all()
        assert not list(tmp_path.glob("*.tmp"))


def test_a_program_that_ends_finishes_its_checkpoint_first(tmp_path):
    code = (
        "import sys, numpy as np, meshax as mx\n"
        "from meshax.train.checkpoint import Checkpoints\n"
        "Checkpoints(sys.argv[1]).save(5, mx.tensor(np.arange(1 << 22, dtype=np.float32), 'elements'))\n"
    )
    run(code, tmp_path)
    x, _ = Checkpoints(tmp_path, read_only=True).restore(
        like=mx.tensor(jax.ShapeDtypeStruct((1 << 22,), jnp.float32), "elements"), mesh=ONE
    )
    np.testing.assert_array_equal(x.numpy(), np.arange(1 << 22))
    assert not (tmp_path / "lock.json").exists()


@contextmanager
def files_of_at_most(num_bytes):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_checkpoint_that_cannot_be_written_leaves_the_others(tmp_path):
    big = mx.tensor(np.ones(1 << 20, np.float32), "elements")
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, example(), wait=True)
        with files_of_at_most(1 << 20):
            checkpoints.save(2, big)
            with pytest.raises(mx.CheckpointError) as error:
                checkpoints.wait()
        first, values, *rest = str(error.value).splitlines()
        assert first == "the checkpoint of step 2 was not saved."
        assert re.fullmatch(rf"  values: 4.19 MB to write, .* free in {tmp_path}: .*File too large", values)
        assert rest == [
            "  rule: a checkpoint is whole or not there; older ones are as they were.",
            "  fix: make room (or keep fewer: keep_last, keep_best) or correct the directory, and save again.",
        ]
        assert sorted(path.name for path in tmp_path.iterdir()) == ["000001-step-1", "lock.json"]
        checkpoints.save(2, big)  # the error was raised once
        checkpoints.wait()
        assert checkpoints.steps() == [1, 2]
        tree, _ = checkpoints.restore(1, like=example(), mesh=ONE)
        assert_same(tree, example())


def test_a_full_disk(tmp_path):
    code = """
import sys, numpy as np, meshax as mx
from meshax.train.checkpoint import Checkpoints, writing
writing.PAUSES = ()
x = lambda size: mx.tensor(np.full(size, 3, np.float32), "elements")
checkpoints = Checkpoints(sys.argv[1])
checkpoints.save(1, x(1 << 18), wait=True)
checkpoints.save(2, x(1 << 22))
try:
    checkpoints.save(3, x(5))
except mx.CheckpointError as error:
    print(error)
made, _ = checkpoints.restore(like=x(1 << 18), mesh=mx.Mesh("x:1"))
print(checkpoints.steps(), (made.numpy() == 3).all())
"""
    prefix, reason = with_little_room(tmp_path, 8 << 20)
    out = run(code, tmp_path, prefix=prefix).stdout.splitlines()
    assert out[0] == "the checkpoint of step 2 was not saved."
    free = r"7.3[0-9] MB" if can_mount() else r"[0-9.]+ \wB"
    assert re.fullmatch(f"  values: 16.8 MB to write, {free} free in .*: {reason}", out[1])
    assert out[-1] == "[1] True"


# Who may write


def test_a_second_process_is_refused(tmp_path):
    with subprocess.Popen(["sleep", "60"]) as other:
        write_lock(tmp_path, pid=other.pid, host=socket.gethostname(), started=_start_of(other.pid))
        with pytest.raises(mx.CheckpointError) as error:
            Checkpoints(tmp_path)
        assert Checkpoints(tmp_path, read_only=True).steps() == []
        other.kill()
    assert str(error.value).splitlines() == [
        "another run writes into this checkpoint directory.",
        f"  values: {tmp_path}, held by process {other.pid} on {socket.gethostname()}",
        "  rule: one run writes into a directory at a time.",
        "  fix: stop that run, or give this one a directory of its own; to look only, open it with read_only=True.",
    ]
    Checkpoints(tmp_path).close()


def write_lock(directory, age=0.0, **holder):
    path = directory / "lock.json"
    path.write_text(json.dumps(holder) if holder else "")
    os.utime(path, (time.time() - age,) * 2)


@pytest.mark.parametrize(
    "holder",
    [
        {"pid": 2**22 + 1, "host": socket.gethostname(), "started": "1"},
        {"pid": os.getpid(), "host": socket.gethostname(), "started": "an earlier process of this number"},
        {"pid": 1, "host": "elsewhere", "started": "1", "age": 200},
        {"age": 200},
    ],
    ids=["the process is gone", "its number is used again", "of another host, untouched", "half written, untouched"],
)
def test_a_stale_lock_is_taken_over(tmp_path, holder):
    write_lock(tmp_path, **holder)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, example(), wait=True)
    assert not (tmp_path / "lock.json").exists()


def test_a_live_lock_of_another_host_is_respected(tmp_path):
    write_lock(tmp_path, pid=1, host="elsewhere", started="1", age=60)
    with pytest.raises(mx.CheckpointError, match="held by process 1 on elsewhere"):
        Checkpoints(tmp_path)


def test_a_lock_is_touched(tmp_path, monkeypatch):
    monkeypatch.setattr("meshax.files._TOUCH_EVERY", 0.01)
    with Checkpoints(tmp_path):
        path = tmp_path / "lock.json"
        os.utime(path, (0, 0))
        end = time.monotonic() + 10
        while path.stat().st_mtime == 0:
            assert time.monotonic() < end
            time.sleep(0.01)


def test_who_lost_the_lock_does_not_write(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        write_lock(tmp_path, pid=9, host="elsewhere", started="1", token="another")
        with pytest.raises(mx.CheckpointError) as error:
            checkpoints.save(1, example())
    assert str(error.value).splitlines()[:2] == [
        "another run has taken over this checkpoint directory.",
        f"  values: {tmp_path}, now of process 9 on elsewhere",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["lock.json"]


# Several processes

TWO_PROCESSES = """
import sys
import numpy as np
import meshax as mx
from meshax.train.checkpoint import Checkpoints
x = mx.tensor(np.arange(70, dtype=np.float32).reshape(10, 7), "vocab hidden")
mesh = mx.Mesh("rows:2 cols:4")
with Checkpoints(sys.argv[1]) as checkpoints:
    for step in (1, 2):
        state = {"split": mx.put(x, mesh, "vocab:rows+cols"), "copied": mx.put(x, mesh, ""), "whole": x}
        checkpoints.save(step, state, {"step": step}, wait=step == 2)
    tree, extra = checkpoints.restore(like=state, mesh=mesh, layout="vocab:cols hidden:rows")
    for leaf in mx.gather_to_host(tree).values():
        assert (leaf == x.numpy()).all()
    print(checkpoints.steps(), extra)
"""


def test_two_processes_save_and_restore_together(tmp_path):
    for lines in run_processes(TWO_PROCESSES, 2, tmp_path):
        assert lines[-1] == "[1, 2] {'step': 2}"

    written = {path.relative_to(checkpoint(tmp_path, 2)).parts[1] for path in files(checkpoint(tmp_path, 2) / "arrays")}
    assert {"process-0", "process-1"} <= written
    x = mx.tensor(np.arange(70, dtype=np.float32).reshape(10, 7), "vocab hidden")
    like = {"split": x, "copied": x, "whole": x}
    tree, _ = Checkpoints(tmp_path, read_only=True).restore(like=like, mesh=mx.Mesh("x:8"), layout="hidden:x")
    assert_same(tree, like)


@pytest.mark.parametrize(
    ("failing", "late", "errors"),
    [
        (1, 0, ["process 1: broken disk", "broken disk"]),
        (0, 0, ["broken disk", "the first process could not finish it"]),
        (0, 1, ["broken disk", "the first process could not write it"]),
    ],
    ids=["the second", "the first", "the first, before the second begins"],
)
def test_all_processes_learn_that_one_has_failed(tmp_path, monkeypatch, failing, late, errors):
    started, written = Event(), arrays.write

    def write(database, snapshots):
        if database.name == f"process-{failing}":
            assert late or failing or started.wait(10)
            raise OSError("broken disk")
        started.set()
        written(database, snapshots)

    def save(process):
        with pytest.raises(OSError) as error:
            Saving(tmp_path, "000001-step-1", Manifest(1, None, {}, {}, {}, {}), {}, process, 2).run()
        messages[process] = str(error.value)

    monkeypatch.setattr(arrays, "write", write)
    messages = {}
    threads = [Thread(target=save, args=(process,)) for process in range(2)]
    for thread in threads:
        thread.start()
        if late:
            thread.join()
    for thread in threads:
        thread.join()
    assert [messages[0], messages[1]] == errors
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.steps() == []
        assert [path.name for path in tmp_path.iterdir()] == ["lock.json"]


# Messages

HERE = Path(tempfile.gettempdir()) / f"meshax-checkpoints-{os.getpid()}"


@pytest.fixture(scope="module", autouse=True)
def directory_of_the_mistakes():
    saved(HERE / "run", steps=(100,))
    (HERE / "file").touch()
    (HERE / "empty").mkdir()
    yield
    shutil.rmtree(HERE)


def opened(name="run"):
    return Checkpoints(HERE / name, read_only=True)


def save(*args, **options):
    with Checkpoints(HERE / "other") as checkpoints:
        checkpoints.save(*args, **options)


def save_into_another_run():
    with Checkpoints(HERE / "run") as checkpoints:
        checkpoints.save(1, example())


def open_twice():
    with Checkpoints(HERE / "other"):
        Checkpoints(HERE / "other")


def restore(step=None, **changes):
    like = {name: leaf for name, leaf in {**example(), **changes}.items() if leaf is not None}
    return opened().restore(step, like=like, mesh=ONE)


def save_when_closed():
    checkpoints = Checkpoints(HERE / "other")
    checkpoints.close()
    checkpoints.save(1, example())


MISTAKES = {
    "no count": (
        lambda: Checkpoints(HERE, keep_last=0),
        "keep_last is at least 1, not 0.\n  fix: keep_last=None keeps all.",
    ),
    "no order": (lambda: Checkpoints(HERE, best="least"), 'best is "min" or "max", not \'least\'.'),
    "a bucket": (
        lambda: Checkpoints("gs://bucket/run"),
        """
        checkpoints are kept in a file system.
          values: gs://bucket/run
          fix: mount the bucket, and name its path.
        """,
    ),
    "nothing to read": (
        lambda: opened("nowhere"),
        f"there is no such checkpoint directory.\n  values: {HERE}/nowhere",
    ),
    "a file in the way": (
        lambda: Checkpoints(HERE / "file" / "run"),
        f"""
        this directory cannot be written to.
          values: {HERE}/file/run: Not a directory
          fix: correct its permissions, or name another one.
        """,
    ),
    "opened twice": (
        open_twice,
        f"""
        another run writes into this checkpoint directory.
          values: {HERE}/other, held by this very process
          rule: one run writes into a directory at a time.
          fix: call .close() on the other Checkpoints, or open this one with read_only=True.
        """,
    ),
    "read only": (
        lambda: opened().save(1, {}),
        f"these checkpoints are opened with read_only=True.\n  values: {HERE}/run\n  fix: open them again.",
    ),
    "closed": (
        save_when_closed,
        f"these checkpoints are closed.\n  values: {HERE}/other\n  fix: open them again.",
    ),
    "no step": (
        lambda: save(1.5, {}),
        "1.5 is not a step.\n  rule: a step is an integer, 0 or more.",
    ),
    "another run's directory": (
        save_into_another_run,
        f"""
        this directory holds checkpoints of another run, up to step 100.
          values: step 1, {HERE}/run
          rule: saving an earlier step would make that run's checkpoints give way.
          fix: restore one of them first, to go on from it, or name another directory.
        """,
    ),
    "extra is no JSON": (
        lambda: save(1, {}, {"data": {"position": [3, np.int64(4)]}}),
        f"""
        extra holds what JSON can hold, not int64.
          values: extra['data']['position'][1]: {np.int64(4)!r}
          fix: use numbers, strings, lists and dicts of them: float(x), x.tolist(), str(key).
        """,
    ),
    "keys are no strings": (
        lambda: save(1, {}, {"data": {1: 2}}),
        """
        extra holds what JSON can hold, not dict with keys that are no strings.
          values: extra['data']: {1: 2}
          fix: use numbers, strings, lists and dicts of them: float(x), x.tolist(), str(key).
        """,
    ),
    "no array": (
        lambda: save(1, {"name": "gpt"}),
        """
        a checkpoint holds tensors, arrays and numbers, not str.
          values: ['name']: 'gpt'
          fix: put what JSON can hold into extra, and leave the rest out of the tree.
        """,
    ),
    "too great a number": (
        lambda: save(1, {"tokens": 6_000_000_000}),
        """
        a number does not fit int32.
          values: ['tokens']: int64, up to 6000000000
          rule: what JAX would cut to 32 bits is not saved as it is.
          fix: put counters into extra, or set jax.config.update("jax_enable_x64", True).
        """,
    ),
    "none yet": (
        lambda: opened("empty").restore(like={}, mesh=ONE),
        f"there is no checkpoint yet.\n  values: {HERE}/empty\n  fix: train first.",
    ),
    "no such step": (
        lambda: restore(3),
        f"there is no checkpoint of step 3.\n  values: {HERE}/run\n  fix: choose one of 100.",
    ),
    "no metric": (
        lambda: restore("best"),
        f"no checkpoint has a metric.\n  values: {HERE}/run\n  fix: save with metric=, or name a step.",
    ),
    "another model": (
        lambda: restore(
            table=mx.zeros((VOCAB, mx.Dim("hidden", 8))),
            out=mx.zeros((HIDDEN, CLASSES)),
            bias=mx.zeros(VOCAB),
            seen=None,
        ),
        """
        the checkpoint of step 100 is not of this model.
          values: ['bias']: is missing
                  ['out']: [hidden:7, classes:4] bfloat16 in the checkpoint, [hidden:7, classes:4] float32 here
                  ['table']: [vocab:10, hidden:7] float32 param in the checkpoint, [vocab:10, hidden:8] float32 here
                  ['seen']: is unexpected
          rule: names, dims, sizes and dtypes are those of the tree.
          fix: restore into a tree as it was saved; for another dtype, pass dtype=; for a part, partial=True.
        """,
    ),
    "a mesh that is not one": (
        lambda: opened().restore(like={}, mesh="x:1"),
        "the mesh is a str.\n  values: 'x:1'\n  fix: make one: mx.Mesh(\"rows:2 cols:4\").",
    ),
}

test_messages = pinned(
    {name: (mx.MeshError if "mesh" in name else mx.CheckpointError, *rest) for name, rest in MISTAKES.items()}
)


def test_at_most_ten_differences_are_listed():
    with pytest.raises(mx.CheckpointError) as error:
        restore(**{f"layer_{i}": mx.zeros(VOCAB) for i in range(12)})
    assert str(error.value).count("is missing") == 10
    assert "\n          and 2 more\n" in str(error.value)
