"""Compiled programs are kept between processes: in one place, not without end, whole, and not where that is unsafe."""

import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from meshax.cli import compile_cache

SOURCE = str(Path(compile_cache.__file__).parents[2])
PROGRAM = """
import jax, os, sys
from rich.console import Console
from meshax.cli import compile_cache
compile_cache._SHORTEST = 0.0
compile_cache.LIMIT = {limit}
jax.config.update("jax_num_cpu_devices", {devices})
{before}
compile_cache.keep_compiled_programs(Console(file=sys.stderr))
{after}
print(jax.jit(lambda x: x * 3 + 1)(2.0))
print(jax.jit(lambda x: x * 4 + 1)(2.0))
"""
# files of more than 100 bytes cannot be written to their end, as on a disk that is full
FULL = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))"
NOBODY = "import pwd; pwd.getpwuid = dict().__getitem__; os.environ.pop('HOME', None); del os.environ['XDG_CACHE_HOME']"
READ_ONLY = """
def refuse(dir):
    raise PermissionError(13, "Permission denied", str(dir))
compile_cache.tempfile.TemporaryFile = refuse
"""


def run(folder, limit=10**9, devices=1, before="", after="", **environment):
    inherited = {name: value for name, value in os.environ.items() if "COMPILATION_CACHE" not in name}
    environment = {
        **inherited,
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": SOURCE,
        "XDG_CACHE_HOME": str(folder),
        **environment,
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(limit=limit, devices=devices, before=before, after=after)],
        capture_output=True, text=True, env=environment,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout == "7.0\n9.0\n", done.stderr
    return done.stderr


def kept(folder):
    return f"compiled programs are kept in {folder}/meshax/compiled (JAX_ENABLE_COMPILATION_CACHE=0: nowhere)\n"


def files(folder):
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("meshax/compiled/*-cache")}


def test_the_second_process_reads_what_the_first_wrote(tmp_path):
    assert run(tmp_path) == kept(tmp_path)
    first = files(tmp_path)
    assert first
    run(tmp_path)
    assert files(tmp_path) == first


def test_nothing_is_kept_where_that_is_unsafe(tmp_path):
    assert run(tmp_path, devices=2) == "" and not files(tmp_path)
    said = run(tmp_path, devices=2, JAX_COMPILATION_CACHE_DIR=str(tmp_path / "mine"))
    assert said == "compiled programs are not kept: for several processors of a CPU, what is read back may abort\n"
    assert not (tmp_path / "mine").exists()


def test_who_says_where_or_not_at_all_is_obeyed(tmp_path):
    assert run(tmp_path, JAX_COMPILATION_CACHE_DIR=str(tmp_path / "mine")) == ""
    assert run(tmp_path, JAX_ENABLE_COMPILATION_CACHE="0") == ""
    assert not files(tmp_path)


def test_a_cache_that_cannot_be_made_is_said_and_done_without(tmp_path):
    (tmp_path / "meshax").write_text("a file")
    assert run(tmp_path) == f"compiled programs are not kept: {tmp_path}/meshax/compiled: Not a directory\n"


@pytest.mark.parametrize("before", [READ_ONLY, pytest.param("", marks=pytest.mark.skipif("os.geteuid() == 0"))])
def test_a_folder_that_cannot_be_written_is_said_and_done_without(tmp_path, before):
    folder = tmp_path / "meshax" / "compiled"
    folder.mkdir(parents=True)
    folder.chmod(0o500)
    assert run(tmp_path, before=before) == f"compiled programs are not kept: {folder}: Permission denied\n"


def test_a_user_without_a_home_does_without(tmp_path):
    words = "compiled programs are not kept: there is no home, HOME is not set\n"
    assert run(tmp_path, before=NOBODY) == words and not files(tmp_path)


@pytest.mark.parametrize("wishes", ["default", "ignore", "error"])
def test_a_damaged_program_is_replaced_and_said_once(tmp_path, wishes):
    run(tmp_path)
    folder = tmp_path / "meshax" / "compiled"
    whole = {path: zlib.decompress(path.read_bytes()) for path in folder.glob("*-cache")}
    cut, empty, *others = whole
    os.truncate(cut, cut.stat().st_size // 2)
    os.truncate(empty, 0)
    before = {path: path.stat().st_mtime_ns for path in others}

    words = f"a compiled program in {folder} was damaged: it is compiled again\n"
    assert run(tmp_path, PYTHONWARNINGS=wishes) == kept(tmp_path) + words
    assert {path: len(zlib.decompress(path.read_bytes())) for path in whole} == {p: len(c) for p, c in whole.items()}
    assert {path: path.stat().st_mtime_ns for path in others} == before, "what is whole stays"
    assert run(tmp_path) == kept(tmp_path)


def test_a_disk_that_is_full_is_said_once_and_has_no_half_programs(tmp_path):
    words = f"compiled programs are not kept: {tmp_path}/meshax/compiled: File too large\n"
    assert run(tmp_path, after=FULL) == kept(tmp_path) + words
    assert not files(tmp_path)
    assert run(tmp_path) == kept(tmp_path) and len(files(tmp_path)) >= 2


def test_other_warnings_are_shown_as_ever(tmp_path):
    words = run(tmp_path, after="import warnings; warnings.warn('a word')")
    assert "UserWarning: a word" in words
    unreadable = f"import warnings; warnings.warn({compile_cache._READING + ': unknown'!r})"
    assert "entry: unknown" in run(tmp_path, after=unreadable), "nothing is damaged: JAX has the word"


def test_another_process_may_remove_programs_too(tmp_path):
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    (tmp_path / "folder").mkdir()
    (tmp_path / "half").write_bytes(b"half")
    compile_cache._remove_oldest(tmp_path)
    compile_cache._remove_last(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"gone", "folder"}


def test_the_oldest_programs_go_first(tmp_path, monkeypatch):
    monkeypatch.setattr(compile_cache, "LIMIT", 250)
    for age, name in enumerate(["new", "older", "oldest"]):
        (tmp_path / name).write_bytes(bytes(100))
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    compile_cache._remove_oldest(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"new", "older"}
