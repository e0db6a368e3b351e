"""Checkpoints that are damaged, and a disk that fills up: named by all, nothing wrong is trained, nothing is lost."""

import random
import re
import shutil
import time

import pytest

import disks
from launched import SEED, arguments, check_positions, final_state, last_step, launched, losses, whole_run
from meshax.train.checkpoint import Damaged
from meshax.train.checkpoint.manifest import MANIFEST
from meshax.train.loop import Run, run_config
from runs import write_text

pytestmark = pytest.mark.chaos

MESH = ["--mesh", "data:2 model:1"]
WAYS = ["removed", "truncated", "flipped", "of another run"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of two processes, and another one, which differs by its seed alone."""
    folder = tmp_path_factory.mktemp("damage")
    text = write_text(folder / "text")
    whole_run(text, folder / "run", 8, 2, MESH)
    whole_run(text, folder / "other", 8, 2, [*MESH, "--seed", "7"])
    return folder


def files_of(run):
    """Returns the files of the last checkpoint."""
    newest = max(run.glob("checkpoints/*-step-8"))
    return sorted(path for path in newest.rglob("*") if path.is_file())


def like(path, run):
    """Returns the file of another run in the place of one; some names are drawn."""
    others = [
        other for other in files_of(run) if (other.parent.name, len(other.name)) == (path.parent.name, len(path.name))
    ]
    same = [other for other in others if other.parts[-3:] == path.parts[-3:]]
    return (same or others)[0]


def damage(path, how, other):
    data = path.read_bytes()
    place = random.Random(SEED).randrange(len(data))
    if how == "removed":
        path.unlink()
    elif how == "truncated":
        path.write_bytes(data[:place])
    elif how == "flipped":
        path.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
    else:
        shutil.copy(other, path)


def words_of(path, run, how):
    """Returns how a damaged file is named: a manifest of another run says itself that it is one."""
    if how == WAYS[3] and path.name == MANIFEST:
        return "the checkpoint of step 8 is of another run than the folder that it is in.\n"
    return f"{path.relative_to(run / 'checkpoints').as_posix()}: "


@pytest.mark.parametrize("how", WAYS)
def test_damage_of_any_file_is_named(tmp_path, folder, how):
    run = shutil.copytree(folder / "run", tmp_path / "run")
    reader = Run(run_config(run), read_only=True)
    expected = final_state(folder / "run")
    names = []
    for path in files_of(run):
        data = path.read_bytes()
        damage(path, how, like(path, folder / "other"))
        with pytest.raises(Damaged) as error:
            reader.restored()
        assert words_of(path, run, how) in str(error.value), how
        path.write_bytes(data)
        names.append(path.name)
    print(f"{how}: {len(names)} files")
    assert len(names) >= 4 and final_state(run) == expected


@pytest.mark.parametrize("how", WAYS)
def test_all_processes_name_it_and_nothing_is_trained(tmp_path, folder, how):
    run = shutil.copytree(folder / "run", tmp_path / "run")
    victim = random.Random(SEED + WAYS.index(how)).choice(files_of(run))
    damage(victim, how, like(victim, folder / "other"))
    with launched(2, arguments(folder / "text" / "*.txt", run, 16, *MESH)) as processes:
        status, _ = processes.finish()
    assert status == 1 and "meshax: the checkpoint of step 8 is " in processes.said, processes.said
    assert words_of(victim, run, how) in processes.said
    assert last_step(run) == 8


def test_the_one_before_is_taken_if_it_may_be(tmp_path, folder):
    run = shutil.copytree(folder / "run", tmp_path / "run")
    damage(files_of(run)[-1], "flipped", None)
    options = [*MESH, "--on-damage", "previous"]
    with launched(2, arguments(folder / "text" / "*.txt", run, 8, *options)) as processes:
        assert processes.finish()[0] == 0, processes.said
    assert "THE RUN GOES BACK to step 4, the last that is whole" in processes.said
    assert final_state(run) == final_state(folder / "run") and losses(run) == losses(folder / "run")
    check_positions(run)


@pytest.mark.parametrize("kind", [None, disks.Limited], ids=["a disk", "files that may not grow"])
def test_a_disk_that_fills_up(tmp_path, kind):
    """The run goes on, says so, and loses nothing; what was saved before stays."""
    text, out, steps = write_text(tmp_path / "text"), tmp_path / "disk" / "run", 60
    with disks.small_disk(tmp_path / "disk", 8 << 20, kind) as disk:
        run = disk.folder / "run"
        with launched(2, arguments(text, out, steps, *MESH), prefix=disk.prefix) as processes:
            assert processes.wait_until(lambda: last_step(run) >= 10), processes.said
            children = processes.children()
            disk.fill(children)
            began = time.monotonic()
            told = re.compile(f"warning: step [0-9]+ could not be saved: .*{disk.reason}; again in ")
            assert processes.wait_until(lambda: told.search(processes.said)), processes.said
            before = final_state(disk.copy(run, tmp_path / "full"))
            assert before[0] >= 4
            time.sleep(5)
            assert final_state(disk.copy(run, tmp_path / "later")) == before
            disk.empty(children)
            assert processes.finish()[0] == 0, processes.said
        print(f"there was no room for {time.monotonic() - began:.0f} s at most")
        done = disk.copy(run, tmp_path / "done")
    check_positions(done)
    assert len(losses(done)) == steps
    assert final_state(done) == whole_run(text, tmp_path / "whole", steps, 2, MESH)
