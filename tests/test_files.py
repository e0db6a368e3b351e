"""Files are whole or not there; of several that want a folder, one has it."""

import contextlib
import os
import threading
import time

import pytest

from meshax.files import LOCK, Held, Lock, write_whole


def test_a_file_is_written_whole(tmp_path):
    write_whole(tmp_path / "a", "caf\u00e9")
    write_whole(tmp_path / "a", b"two")
    assert (tmp_path / "a").read_bytes() == b"two"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_what_fails_leaves_the_old_content(tmp_path, monkeypatch):
    write_whole(tmp_path / "a", "one")

    def fail(descriptor):
        raise OSError("a broken disk")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="a broken disk"):
        write_whole(tmp_path / "a", "two")
    assert (tmp_path / "a").read_text() == "one"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_lock_is_held_once(tmp_path):
    with Lock(tmp_path) as lock:
        assert not lock.is_lost()
        with pytest.raises(Held, match="this very process") as held:
            Lock(tmp_path)
        assert held.value.is_me
    assert lock.is_lost() and not list(tmp_path.iterdir())
    Lock(tmp_path).release()


def test_who_waits_gets_it_next(tmp_path):
    said, taken = [], []

    def wait():
        with Lock.wait_for(tmp_path, lambda: said.append("waiting")):
            taken.append(True)

    with Lock(tmp_path):
        waiting = threading.Thread(target=wait)
        waiting.start()
        while not said:
            time.sleep(0.001)
        assert not taken
    waiting.join()
    assert taken and said == ["waiting"]


def test_of_several_that_find_a_stale_lock_one_gets_it(tmp_path):
    (tmp_path / LOCK).write_text('{"pid": 4194305, "host": "elsewhere", "started": "1"}')
    os.utime(tmp_path / LOCK, (0, 0))
    locks, start = [], threading.Barrier(8)

    def take():
        start.wait()
        with contextlib.suppress(Held):
            locks.append(Lock(tmp_path))

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(not lock.is_lost() for lock in locks) == 1
    for lock in locks:
        lock.release()
