"""Files are hashed by as many threads as they may take: beside a training run, by few."""

import hashlib
import os
import threading
import time

import pytest

from meshax.train.checkpoint import manifest
from meshax.train.checkpoint.manifest import File, hash_files


@pytest.mark.parametrize(("cores", "num_threads"), [(1.0, 8), (0.25, 2), (0.01, 1)])
def test_a_share_of_the_cores_hashes(tmp_path, monkeypatch, cores, num_threads):
    files = {f"{number}.bin": bytes([number]) * (100 + number) for number in range(8)}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(manifest, "_READ_BYTES", 64)  # so that each takes two reads
    busy, most, hash_one = set(), [0], manifest._hash_of_file

    def hashed(path):
        busy.add(threading.get_ident())
        most[0] = max(most[0], len(busy))
        time.sleep(0.05)
        return hash_one(path)

    monkeypatch.setattr(manifest, "_hash_of_file", hashed)
    found = hash_files(tmp_path, list(files), cores=cores)
    assert found == {name: File(len(data), hashlib.sha256(data).hexdigest()) for name, data in files.items()}
    assert most[0] == num_threads
