"""Compiled programs are kept between processes: in one place, not without end, and not where that is unsafe."""

import os
import subprocess
import sys
from pathlib import Path

from meshax.cli import compile_cache

SOURCE = str(Path(compile_cache.__file__).parents[2])
PROGRAM = """
import jax, sys
from rich.console import Console
from meshax.cli import compile_cache
compile_cache._SHORTEST = 0.0
compile_cache.LIMIT = {limit}
jax.config.update("jax_num_cpu_devices", {devices})
compile_cache.keep_compiled_programs(Console(file=sys.stderr))
print(jax.jit(lambda x: x * 3 + 1)(2.0))
"""


def run(folder, limit=10**9, devices=1, **environment):
    inherited = {name: value for name, value in os.environ.items() if "COMPILATION_CACHE" not in name}
    environment = {
        **inherited,
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": SOURCE,
        "XDG_CACHE_HOME": str(folder),
        **environment,
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(limit=limit, devices=devices)],
        capture_output=True, text=True, env=environment,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout == "7.0\n", done.stderr
    return done.stderr


def files(folder):
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("meshax/compiled/*-cache")}


def test_the_second_process_reads_what_the_first_wrote(tmp_path):
    words = run(tmp_path)
    assert f"compiled programs are kept in {tmp_path / 'meshax' / 'compiled'}" in words
    first = files(tmp_path)
    assert first
    run(tmp_path)
    assert files(tmp_path) == first


def test_nothing_is_kept_where_that_is_unsafe(tmp_path):
    assert run(tmp_path, devices=2) == "" and not files(tmp_path)


def test_who_says_where_or_not_at_all_is_obeyed(tmp_path):
    assert run(tmp_path, JAX_COMPILATION_CACHE_DIR=str(tmp_path / "mine")) == ""
    assert run(tmp_path, JAX_ENABLE_COMPILATION_CACHE="0") == ""
    assert not files(tmp_path)


def test_a_cache_that_cannot_be_made_is_said_and_done_without(tmp_path):
    (tmp_path / "meshax").write_text("a file")
    assert "compiled programs are not kept" in run(tmp_path)


def test_the_oldest_programs_go_first(tmp_path, monkeypatch):
    monkeypatch.setattr(compile_cache, "LIMIT", 250)
    for age, name in enumerate(["new", "older", "oldest"]):
        (tmp_path / name).write_bytes(bytes(100))
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    compile_cache._remove_oldest(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"new", "older"}
