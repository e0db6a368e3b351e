"""Programs in turns: real processes, that answer, fail, hang, and print what nobody asked for."""

import os
import time

import pytest

import meshax as mx
from meshax.bench.turns import in_turns

PROGRAMS = """
import json, os, subprocess, sys, time
from meshax.bench.turns import answer
from meshax.errors import ArgumentError
from dataclasses import dataclass

@dataclass
class Measurement:
    program: str
    profile: bool
    seconds: float

def measure(asked, say):
    program = asked["program"]
    say("compiling")
    print("a library has something to say", flush=True)
    print(17, flush=True)
    if program == "refuses":
        raise ArgumentError("nothing to measure.", fix="go home.")
    if program == "crashes":
        os.abort()
    if program == "grows":  # until the system ends it
        os.kill(os.getpid(), 9)
    if program in ("hangs", "leaves", "forgets"):  # and what it has started stays, and holds its output
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
        open(asked["pids"], "w").write(f"{os.getpid()} {child.pid}")
        if program == "leaves":
            os.abort()
        if program == "hangs":
            time.sleep(100)
    say("running")
    return Measurement(program, asked["profile"], asked["seconds"])

answer(measure)
"""


@pytest.fixture
def programs(tmp_path, monkeypatch):
    (tmp_path / "several_programs.py").write_text(PROGRAMS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]))
    return "several_programs"


def test_turns_and_what_is_said(programs):
    heard = []
    got = list(in_turns(programs, ("ours", "theirs"), {"seconds": 0.5}, 2, profile=True, say=heard.append))
    assert got == [
        {"program": program, "profile": profile, "seconds": 0.5}
        for profile in (True, False)
        for program in ("ours", "theirs")
    ]
    each = [f"{program}: {words}" for program in ("ours", "theirs") for words in ("compiling", "running")]
    assert heard == each * 2


def test_who_fails_has_no_further_turns_and_the_others_go_on(programs, capfd):
    got, heard = [], []
    with pytest.raises(mx.ArgumentError) as caught:
        for one in in_turns(programs, ("refuses", "ours", "crashes"), {"seconds": 1}, 2, False, heard.append):
            got.append(one["program"])
    assert got == ["ours", "ours"]
    assert str(caught.value).splitlines() == [
        "not every program could be measured.",
        "  values: 'refuses' failed; 'crashes' was ended by SIGABRT",
        "  fix: see its own message above; or leave it out.",
    ]
    assert heard.count("refuses failed") == 1 and "nothing to measure." in capfd.readouterr().err


def test_memory_that_does_not_suffice_is_said_to_be_the_likely_reason(programs):
    with pytest.raises(mx.ArgumentError) as caught:
        list(in_turns(programs, ("grows",), {"seconds": 1}, 1, False))
    assert str(caught.value).splitlines()[1:] == [
        "  values: 'grows' was ended by SIGKILL",
        "  fix: there was too little memory, most likely: give it fewer examples, or a smaller model; or leave it out.",
    ]


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        ("hangs", "'hangs' gave no answer in 8 seconds\n  fix: give it a longer --limit; or leave it out."),
        ("leaves", "'leaves' was ended by SIGABRT"),
    ],
)
def test_who_hangs_is_ended_with_all_it_has_started(programs, tmp_path, program, problem):
    pids, begin = tmp_path / "pids", time.monotonic()
    asked = {"seconds": 1, "pids": str(pids)}
    with pytest.raises(mx.ArgumentError, match=problem):
        list(in_turns(programs, (program,), asked, 3, False, limit=8 if program == "hangs" else 0))
    assert time.monotonic() - begin < 60
    for pid in map(int, pids.read_text().split()):
        _wait_until(lambda pid=pid: not _is_alive(pid))


def test_who_has_answered_is_not_waited_for_with_what_it_leaves(programs, tmp_path):
    pids, begin = tmp_path / "pids", time.monotonic()
    (got,) = in_turns(programs, ("forgets",), {"seconds": 1, "pids": str(pids)}, 1, False)
    assert got["program"] == "forgets" and time.monotonic() - begin < 60
    for pid in map(int, pids.read_text().split()):
        _wait_until(lambda pid=pid: not _is_alive(pid))


def _wait_until(condition, seconds=30):
    """Fails if a condition does not come true: nobody waits for a killed process's child, and dying takes a while."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def _is_alive(pid):
    """Whether a process runs still; one that has ended and that nobody has asked for does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False
