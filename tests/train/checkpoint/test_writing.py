"""Disks that fail while a checkpoint is written: it is tried again, and what was there before stays as it was."""

import contextlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

import meshax as mx
from disks import can_mount, with_little_room
from extent import some
from meshax.train.checkpoint import Checkpoints, Damaged, NotSaved, arrays, writing
from meshax.train.checkpoint.failures import reason
from meshax.train.checkpoint.manifest import Manifest
from meshax.train.checkpoint.writing import Saving
from processes import environment

ONE = mx.Mesh("x:1")


def state(step):
    return mx.tensor(np.arange(6, dtype=np.float32).reshape(2, 3) + step, "rows cols")


def assert_step(checkpoints, step):
    tree, extra = checkpoints.restore(step, like=state(0), mesh=ONE)
    assert (tree.numpy() == state(step).numpy()).all() and extra == {"step": step}


def saved(directory, *steps, **options):
    with Checkpoints(directory, **options) as checkpoints:
        for step in steps:
            checkpoints.save(step, state(step), {"step": step}, wait=True)
    return checkpoints


# Every operation on the disk that saving consists of, in the order in which they happen.
OPERATIONS = [
    (Path, "mkdir"),
    (arrays, "write"),
    (writing, "hash_files"),
    (arrays, "merge"),
    (Manifest, "write"),
    (writing, "_sync"),
    (Path, "rename"),
]


def failing(monkeypatch, owner, name, times):
    """Lets an operation fail, half done, the first times it is called for the second checkpoint."""
    works, left = getattr(owner, name), [times]

    def fails(*args, **options):
        if "000002" in str(args) and left[0] > 0:
            left[0] -= 1
            if name != "rename":
                works(*args, **options)  # a torn write: it was done, or a part of it, and then the disk gave up
            raise OSError(28, "No space left on device")
        return works(*args, **options)

    monkeypatch.setattr(owner, name, fails)


@pytest.mark.parametrize(("owner", "name"), OPERATIONS, ids=[name for _, name in OPERATIONS])
def test_whatever_fails_is_tried_again(tmp_path, monkeypatch, owner, name):
    monkeypatch.setattr(writing, "PAUSES", (0.0, 0.0))
    told = []
    with Checkpoints(tmp_path, keep_last=1, on_retry=told.append) as checkpoints:
        checkpoints.save(1, state(1), {"step": 1}, wait=True)
        failing(monkeypatch, owner, name, 2)
        checkpoints.save(2, state(2), {"step": 2}, wait=True)
        assert told == ["step 2 could not be saved: No space left on device; again in 0 s"] * 2
        assert checkpoints.steps() == [2]
        assert_step(checkpoints, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000002-step-2"]


@pytest.mark.parametrize(("owner", "name"), OPERATIONS, ids=[name for _, name in OPERATIONS])
def test_what_fails_for_good_leaves_the_last_one_alone(tmp_path, monkeypatch, owner, name):
    monkeypatch.setattr(writing, "PAUSES", (0.0,))
    with Checkpoints(tmp_path, keep_last=1) as checkpoints:
        checkpoints.save(1, state(1), {"step": 1}, wait=True)
        with monkeypatch.context() as broken:
            failing(broken, owner, name, 99)
            checkpoints.save(2, state(2), {"step": 2})
            with pytest.raises(NotSaved, match="the checkpoint of step 2 was not saved"):
                checkpoints.wait()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["000001-step-1", "lock.json"]
        assert_step(checkpoints, 1)
        checkpoints.save(3, state(3), {"step": 3}, wait=True)
        assert checkpoints.steps() == [3]


DISK = """
import os, subprocess, sys, threading, time
import numpy as np, meshax as mx
from meshax.train.checkpoint import Checkpoints, writing
disk, mesh = sys.argv[1], mx.Mesh("x:1")
writing.PAUSES = (0.3,) * 20
sh = lambda command: subprocess.run(command, shell=True, check=True)
x = lambda step: mx.tensor(np.full(1 << 19, step, np.float32), "elements")  # 2 MB
told = []
checkpoints = Checkpoints(disk + "/run/checkpoints", keep_last=1, on_retry=told.append)
checkpoints.save(1, x(1), wait=True)
ways = {
    "disk": [
        (2, f"head -c 5M /dev/zero > {disk}/other; true", f"rm {disk}/other"),
        (3, f"mount -o remount,ro {disk}", f"mount -o remount,rw {disk}"),
    ],
    "folder": [
        (2, f"prlimit -p {os.getpid()} --fsize=1000:", f"prlimit -p {os.getpid()} --fsize=unlimited:"),
        (3, f"mv {disk}/run {disk}/elsewhere; touch {disk}/run", f"rm {disk}/run; mv {disk}/elsewhere {disk}/run"),
    ],
}
for step, breaks, mends in [
    *ways[sys.argv[2]],
    (4, f"mv {disk}/run {disk}/elsewhere", f"mv {disk}/elsewhere {disk}/run"),
    (5, f"rm -r {disk}/run/checkpoints", "true"),
]:
    sh(breaks)
    checkpoints.save(step, x(step))
    while not told and step < 5:
        time.sleep(0.01)
    sh(mends)
    checkpoints.wait()
    tree, _ = checkpoints.restore(like=x(0), mesh=mesh)
    why = told[0].rpartition(";")[0].rpartition(": ")[2] if told else "-"
    print(checkpoints.steps(), (tree.numpy() == step).all(), why)
    told.clear()
checkpoints.close()
"""


SPEC = """ [os_error_code='28'] [tensorstore_spec='{"shape":[],"path":"a: b"}'] [source locations='x.cc:5\ny.cc:7']"""
TOLD = {
    "No space left on device": OSError(28, "No space left on device"),
    "File too large": ValueError(f'OUT_OF_RANGE: Error writing "a/b": Failed to write 695 bytes: File too large{SPEC}'),
    "process 1: Input/output error": OSError(f'process 1: Error writing "a/b": Input/output error{SPEC}'),
    "waited 60 seconds for process 1": TimeoutError("waited 60 seconds for process 1"),
}


@pytest.mark.parametrize("words", TOLD)
def test_of_what_a_library_says_the_reason_is_told(words):
    assert reason(TOLD[words]) == words


@pytest.mark.parametrize("kind", some(["disk", "folder"], "disk" if can_mount() else "folder"))
def test_a_disk_that_is_full_read_only_or_away_and_comes_back(tmp_path, kind):
    """A small real disk, in a namespace of its own; or a folder, of which files may not grow, then a file instead."""
    if kind == "disk" and can_mount():
        prefix, reason = with_little_room(tmp_path, 8 << 20)
        reasons = [reason, "Read-only file system"]
    else:
        kind, prefix, reasons = "folder", [], ["File too large", "Not a directory"]
    command = [*prefix, sys.executable, "-c", DISK, str(tmp_path), kind]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"[2] True {reasons[0]}",
        f"[3] True {reasons[1]}",
        "[4] True No such file or directory",
        "[5] True -",
    ]


def test_a_slow_disk_is_waited_for_as_long_as_it_writes(tmp_path, monkeypatch):
    """The other process's part grows slower than our patience; what does not grow ends the wait."""
    monkeypatch.setattr(writing, "PAUSES", ())
    monkeypatch.setattr(writing, "_PATIENCE", 0.4)
    monkeypatch.setattr(writing, "_ASK_EVERY", 0.05)
    works = arrays.write

    def slow(database, snapshots):
        works(database, snapshots)
        if database.name == "process-1":
            database.mkdir(parents=True)
            for _ in range(8):
                time.sleep(0.1)
                with open(database / "slowly", "ab") as file:
                    file.write(b"x")

    monkeypatch.setattr(arrays, "write", slow)
    manifest = Manifest(1, None, {}, {}, {}, {})
    other = Thread(target=Saving(tmp_path, "000001-step-1", manifest, {}, 1, 2).run)
    other.start()
    Saving(tmp_path, "000001-step-1", manifest, {}, 0, 2).run()
    other.join()
    assert (tmp_path / "000001-step-1").is_dir()
    with pytest.raises(TimeoutError, match="waited 0.4 seconds for process 1"):
        Saving(tmp_path, "000002-step-2", manifest, {}, 0, 2).run()


@pytest.mark.parametrize("where", ["the first", "the second"])
def test_processes_try_again_together(tmp_path, monkeypatch, where):
    monkeypatch.setattr(writing, "PAUSES", (0.05, 0.05))
    works, left = arrays.write, [2]

    def fails(database, snapshots):
        if database.name == {"the first": "process-0", "the second": "process-1"}[where] and left[0]:
            left[0] -= 1
            raise OSError(28, "No space left on device")
        works(database, snapshots)

    monkeypatch.setattr(arrays, "write", fails)
    # without room there is none for a note either
    monkeypatch.setattr(writing, "write_whole", _without_room(left) if where == "the second" else writing.write_whole)
    manifest = Manifest(1, None, {}, {}, {}, {})
    savings = [Saving(tmp_path, "000001-step-1", manifest, {}, process, 2) for process in range(2)]
    errors = []

    def run(saving):
        try:
            saving.run()
        except Exception as error:
            errors.append(error)

    threads = [Thread(target=run, args=(saving,)) for saving in savings]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not errors and left == [0]
    assert [path.name for path in tmp_path.iterdir()] == ["000001-step-1"]


def _without_room(left):
    works, notes = writing.write_whole, []

    def write(path, content):
        if "could not" not in content and content.startswith('"'):
            notes.append(path)
            (path.parent / "arrays" / "process-1").mkdir(parents=True, exist_ok=True)
            raise OSError(28, "No space left on device")
        works(path, content)

    return write


# Damage


def test_retention_keeps_the_last_that_is_whole(tmp_path, monkeypatch):
    works = Saving.run

    def torn(self):
        works(self)
        path = next((self.directory / self.name / "arrays").rglob("manifest.ocdbt"))
        os.truncate(path, path.stat().st_size // 2)

    saved(tmp_path, 1)
    with monkeypatch.context() as broken:
        broken.setattr(Saving, "run", torn)
        with Checkpoints(tmp_path, keep_last=1) as checkpoints:
            checkpoints.restore(1, like=state(0), mesh=ONE)
            for step in (2, 3):
                checkpoints.save(step, state(step), {"step": step}, wait=True)
            assert checkpoints.steps() == [1, 3]
    with Checkpoints(tmp_path, keep_last=1) as checkpoints:
        assert checkpoints.whole_before(3) == 1
        assert checkpoints.set_aside(1) == ["000003-step-3.damaged"]
        assert checkpoints.latest() == 1
        assert_step(checkpoints, 1)
        checkpoints.save(3, state(3), {"step": 3}, wait=True)
        assert checkpoints.steps() == [3] and (tmp_path / "000003-step-3.damaged").is_dir()


def test_what_is_of_another_checkpoint_is_named(tmp_path):
    saved(tmp_path / "a", 1, 2)
    saved(tmp_path / "b", 1)
    ours, theirs = tmp_path / "a" / "000002-step-2", tmp_path / "b" / "000001-step-1"
    for path in [path for path in theirs.rglob("*") if path.is_file() and path.name != "manifest.json"]:
        place = ours / path.relative_to(theirs)
        if not place.exists():
            continue  # the names of data files are drawn
        own = place.read_bytes()
        shutil.copy(path, place)
        with pytest.raises(Damaged, match=f"000002-step-2/{place.relative_to(ours).as_posix()}: "):
            Checkpoints(tmp_path / "a", read_only=True).restore(like=state(0), mesh=ONE)
        place.write_bytes(own)
    own = (ours / "manifest.json").read_bytes()
    shutil.copy(tmp_path / "a" / "000001-step-1" / "manifest.json", ours)
    with pytest.raises(Damaged, match=r"000002-step-2/manifest.json: is of step 1, another one"):
        Checkpoints(tmp_path / "a", read_only=True).restore(like=state(0), mesh=ONE)
    saved(tmp_path / "c", 2)
    shutil.copy(tmp_path / "c" / "000001-step-2" / "manifest.json", ours)
    with pytest.raises(Damaged, match=r"values: 000002-step-2/manifest.json: is of another checkpoint\n"):
        Checkpoints(tmp_path / "a", read_only=True).restore(like=state(0), mesh=ONE)
    (ours / "manifest.json").write_bytes(own)
    shutil.copytree(theirs, tmp_path / "a" / "000003-step-7")
    with pytest.raises(Damaged) as error:
        Checkpoints(tmp_path / "a", read_only=True).restore(like=state(0), mesh=ONE)
    assert str(error.value).splitlines()[1] == "  values: 000003-step-7/manifest.json: is of step 1, another one"
    with contextlib.suppress(FileNotFoundError):
        (tmp_path / "a" / "lock.json").unlink()
