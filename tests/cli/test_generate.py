"""`meshax generate` in real processes: Ctrl-C keeps what is done; a second process compiles nothing again."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time

import pytest

from served import environment, write_run

ALONE = ["--mesh", "x:1", "--layout", "none"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("run"))


def start(run, *options, stderr=subprocess.PIPE, **changes):
    command = [sys.executable, "-m", "meshax", "generate", "--run", str(run), "--json", *ALONE, *options]
    return subprocess.Popen(
        command, env=environment(**changes), stdout=subprocess.PIPE, stderr=stderr, text=True, start_new_session=True
    )


def finished(process):
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    return json.loads(out)["results"]


@pytest.mark.parametrize("search", [[], pytest.param(["--beam", "2"], marks=pytest.mark.exhaustive)], ids=str)
def test_ctrl_c_keeps_what_is_done(run, tmp_path, search):
    """A file of prompts, interrupted when the bar says that some are done: they are printed, each whole.

    There are four kinds of prompts: what is written for one of a kind is written for all of them.
    """
    prompts = ["the cat sat on the mat"[: 3 + 5 * (i % 4)] for i in range(4000)]
    (tmp_path / "prompts").write_text("".join(f"{prompt}\n" for prompt in prompts))
    options = ["--tokens", "40", "--seed", "3", *search]
    ours, its = pty.openpty()
    process = start(run, "--prompts", tmp_path / "prompts", *options, stderr=its, TERM="xterm")
    os.close(its)
    shown = b""
    while not re.search(rb"[^\d]([1-9]|\d\d)%", shown):
        shown += os.read(ours, 1 << 12)
    sent = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    out = process.stdout.read()
    assert process.wait(timeout=60) == 130 and time.monotonic() - sent < 20
    process.stdout.close()
    os.close(ours)
    results = json.loads(out)["results"]
    assert 10 <= len(results) < len(prompts)
    count = next((i for i, result in enumerate(results) if result["prompt"] != prompts[i]), len(results))
    assert count >= len(results) - 8  # the last ones were done before some that come first
    texts = {(result["prompt"], result["outputs"][0]["text"]) for result in results}
    assert len(texts) == len({prompt for prompt, _ in texts}) == 4


@pytest.mark.exhaustive
def test_a_second_process_compiles_nothing(run, tmp_path):
    """Everything that it needs is there: nothing is added, nothing is changed."""
    changes = dict(
        JAX_COMPILATION_CACHE_DIR=str(tmp_path), JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
        JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES="-1",
    )  # fmt: skip
    files = []
    for prompt in ("the cat", "a dog and a cat"):  # of one bucket
        finished(start(run, "--prompt", prompt, "--tokens", "60", **changes))
        files.append({path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*-cache")})
    assert len(files[0]) >= 3 and files[1] == files[0]
