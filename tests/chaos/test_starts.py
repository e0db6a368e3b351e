"""Starts of several processes: many, late, and of two minds."""

import os
import platform
import subprocess
import sys
import time

import pytest

from launched import arguments, final_state, whole_run
from meshax.launch.local import Processes
from processes import environment, free_port
from runs import write_text

pytestmark = pytest.mark.chaos

STARTS = 20
WORKER = """
import meshax as mx, jax
from meshax.launch.joining import join
from meshax.launch.place import Limits, find_place
from meshax.launch.warming import warm_groups
jax.config.update("jax_num_cpu_devices", 1)
peers = join(find_place(), Limits(), {})
peers.agree({"mesh": "data:2 model:4"})
warm_groups(mx.Mesh("data:2 model:4"))
peers.done()
"""


def test_eight_processes_on_few_cores_start_twenty_times(capfd):
    """Each joins, compares, and sums over every group of processors."""
    begin, seconds = time.monotonic(), []
    for _ in range(STARTS):
        started = time.monotonic()
        outcome = Processes([sys.executable, "-c", WORKER], [environment(JAX_PLATFORMS="cpu")] * 8).wait()
        assert outcome.status == 0, capfd.readouterr().err
        seconds.append(time.monotonic() - started)
    with capfd.disabled():
        print(
            f"{STARTS} starts of 8 processes: {time.monotonic() - begin:.0f} s, {min(seconds):.1f} to "
            f"{max(seconds):.1f} s each"
        )


def start(text, out, *others, process, place, **changes):
    """Starts one of two processes that know each other by an address."""
    command = [*arguments(text, out, 4, "--mesh", "data:2 model:1"), *place, "--process", str(process), *others]
    return subprocess.Popen(
        [sys.executable, "-m", "meshax", *command], cwd=changes.pop("cwd", None),
        env=environment(JAX_PLATFORMS="cpu", **changes), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.fixture
def place():
    return f"--coordinator 127.0.0.1:{free_port()} --processes 2".split()


@pytest.mark.parametrize("late", [0, 1])
def test_a_process_that_starts_late_is_waited_for(tmp_path, place, late):
    text = write_text(tmp_path / "text")
    processes = [start(text, tmp_path / "run", process=1 - late, place=place)]
    time.sleep(15)
    processes.append(start(text, tmp_path / "run", process=late, place=place))
    said = [process.communicate(timeout=240) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    assert final_state(tmp_path / "run") == whole_run(text, tmp_path / "whole", 4, 2, ["--mesh", "data:2 model:1"])


def check_both_stop(tmp_path, place, words, *others, out=None, **changes):
    """Starts two processes, the second of another mind, and checks that both say why they stop."""
    text, out, begin = write_text(tmp_path / "text"), out or tmp_path / "run", time.monotonic()
    tmp_path.joinpath("elsewhere").mkdir()
    processes = [
        start(text, out, process=0, place=place, cwd=tmp_path),
        start(text, out, *others, process=1, place=place, **{"cwd": tmp_path, **changes}),
    ]
    said = [process.communicate(timeout=120)[1] for process in processes]
    print(f"both ended after {time.monotonic() - begin:.1f} s")
    assert [process.returncode for process in processes] == [1, 1] and time.monotonic() - begin < 90
    assert said[0] == said[1] and words in said[0], said
    assert not list(tmp_path.rglob("metrics.jsonl")) and not list(tmp_path.rglob("checkpoints"))


def test_other_options(tmp_path, place):
    check_both_stop(tmp_path, place, "  values: seed: 0 on process 0; 1 on process 1\n", "--seed", "1")


def test_other_data(tmp_path, place):
    other = write_text(tmp_path / "other", lines=100)
    check_both_stop(tmp_path, place, "  values: data.text: ", "--data.text", other)


def test_another_version(tmp_path, place):
    """A library that calls itself another one, as on a host that was not updated."""
    tmp_path.joinpath("sitecustomize.py").write_text("import platform; platform.python_version = lambda: '3.9.9'")
    paths = os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]])
    here = platform.python_version()
    words = f"  values: versions.python: '{here}' on process 0; '3.9.9' on process 1\n"
    check_both_stop(tmp_path, place, words, PYTHONPATH=paths)


def test_another_disk(tmp_path, place):
    words = "  values: run: what process 0 writes there is not seen by process 1\n"
    check_both_stop(tmp_path, place, words, out="run", cwd=tmp_path / "elsewhere")
