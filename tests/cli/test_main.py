"""The command line as a whole: help, exit statuses, what goes to which stream. A few in real processes."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from meshax.cli import main

ROOT = Path(__file__).parents[2]
TINY = str(ROOT / "examples" / "transformer.py") + ":tiny"
COMMANDS = [["explain"], ["plan"], ["layout"], ["bench", "calibrate"]]
SLOW = """\
import os, pathlib, time

def slow():
    pathlib.Path(__file__).with_name("pid").write_text(str(os.getpid()))
    time.sleep(600)
"""


def start(*arguments, **options):
    paths = [str(ROOT / "src"), *options.pop("paths", ())]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **options.pop("environment", {})}
    return subprocess.Popen(
        [sys.executable, "-m", "meshax", *arguments],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options,
    )  # fmt: skip


def run(*arguments, **options):
    process = start(*arguments, **options)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


EVERY = [
    "train",
    "eval",
    "generate",
    "score",
    "average",
    "presets",
    "explain",
    "plan",
    "layout",
    "bench",
    "bench calibrate",
]


@pytest.mark.parametrize("command", ["", *EVERY])
def test_help_does_without_jax(command):
    """JAX takes a second to import."""
    source = f"import sys, meshax.cli; meshax.cli.main({[*command.split(), '--help']}); assert 'jax' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_explains_with_an_example(command, capsys):
    assert main([*command, "--help"]) == 0
    out, err = capsys.readouterr()
    assert f"\nmeshax {' '.join(command)} " in out  # the example
    assert "--json" in out and "--debug" in out
    assert err == ""


def test_help_lists_the_commands(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"• {name}" in out for name in ("explain", "plan", "layout", "bench"))


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["explian"],
        ["bench"],
        ["explain"],
        ["explain", TINY, "--messh", "data:2"],
        ["explain", "transformer.py", "--mesh", "data:2"],
        ["explain", TINY, "--mesh", "data"],
        ["explain", TINY, "--mesh", "data:2", "--layout", "dat"],
        ["explain", TINY, "--mesh", "data:2", "--layout", "batch:data batch:data"],
        ["explain", TINY, "--mesh", "data:2", "--hardware", "h2000"],
        ["explain", TINY],
        ["plan", TINY, "--mesh", "data:2"],
        ["plan", TINY, "--mesh", "data:8", "--topology", "tpu v9:2x2"],
        ["layout", TINY],
        ["layout", TINY, "--mesh", "data:2", "--processors", "2"],
        ["layout", TINY, "--processors", "2", "--memory", "lots"],
        ["bench", "calibrate", "--devices", "0"],
    ],
    ids=lambda arguments: " ".join(a.replace(TINY, "tiny") for a in arguments) or "nothing",
)
def test_wrong_usage_is_2(arguments, capsys):
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and err and "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.py:f", "--mesh", "data:2"], "there is no file 'nowhere.py'."),
        ([TINY + "y", "--mesh", "data:2"], "transformer.py has no function 'tinyy'."),
        ([TINY, "--mesh", "data:2", "--layout", "bacth:data"], "the layout does not fit the mesh or the program."),
        ([TINY, "--mesh", "data:2 model:4", "--layout", "sequence"], "dims of the operands of one operation are split"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_fails_is_1(arguments, words, capsys):
    assert main(["explain", *arguments]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"meshax: {words}") and "Traceback" not in err


def test_an_error_names_the_users_line_and_nothing_of_jax(capsys):
    main(["explain", TINY, "--mesh", "data:2 model:4", "--layout", "sequence"])
    err = capsys.readouterr().err
    assert "\n  line: transformer.py:" in err and "JAX_TRACEBACK_FILTERING" not in err


def test_debug_shows_a_traceback(capsys):
    assert main(["explain", "nowhere.py:f", "--mesh", "data:2", "--debug"]) == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err
    assert main(["explain", "nowhere", "--mesh", "data:2", "--debug"]) == 2


def test_a_process():
    """Standard output is one JSON object; standard error is empty; the message of an error is all there is."""
    status, out, err = run("explain", TINY, "--mesh", "data:2 model:4", "--layout", "data+model", "--json")
    assert status == 0 and err == ""
    assert json.loads(out)["mesh"] == {"data": 2, "model": 4}
    status, out, err = run("explain", TINY, "--mesh", "model", "--json")
    assert status == 2 and out == ""
    assert err.splitlines()[0] == "meshax: 'model' is not a part of a mesh."
    assert "line:" not in err and "Traceback" not in err


EXPLAIN = ["explain", TINY, "--mesh", "data:2 model:4", "--layout", "data+model", "--hardware", "h100"]
SEARCH = ["layout", TINY, "--mesh", "data:2", "--hardware", "h100"]
SEARCH += ["--exclude", "d_model", "d_k", "d_ff", "layers", "length", "vocab"]  # few layouts, soon searched


@pytest.mark.parametrize(
    "arguments",
    [EXPLAIN, pytest.param(SEARCH, marks=pytest.mark.exhaustive), ["presets"]],
    ids=["explain", "layout", "presets"],
)
def test_what_is_shown_fits_the_terminal(arguments, capsys, monkeypatch):
    assert main(arguments) == 0
    wide = capsys.readouterr().out
    for columns in (60, 80, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert main(arguments) == 0
        narrow = capsys.readouterr().out
        assert max(map(len, narrow.splitlines())) <= columns
        assert set(re.findall(r"\w{3,}", wide)) <= set(re.findall(r"\w{3,}", narrow))  # no column is lost


class Ascii(io.TextIOWrapper):
    """A standard output that knows 128 characters, as with PYTHONIOENCODING=ascii."""

    def __init__(self):
        super().__init__(io.BytesIO(), "ascii", "strict")

    def text(self):
        self.flush()
        return self.buffer.getvalue().decode("ascii")


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["train", "--help"], ["presets"], EXPLAIN, SEARCH, ["presets", "--json"], [*EXPLAIN, "--json"]],
    ids=lambda arguments: " ".join([arguments[0], arguments[-1]]),
)
def test_any_encoding_will_do(arguments, monkeypatch):
    monkeypatch.setattr(sys, "stdout", Ascii())
    assert main(arguments) == 0
    shown = sys.stdout.text()
    assert json.loads(shown) if arguments[-1] == "--json" else shown


def test_characters_that_cannot_be_shown_are_escaped(monkeypatch):
    monkeypatch.setattr("meshax.cli.presets.Presets.run", lambda self: self.report({"text": "caf\u00e9"}, "caf\u00e9"))
    for arguments, shown in ((["presets"], "caf\\xe9\n"), (["presets", "--json"], '{"text": "caf\\u00e9"}\n')):
        monkeypatch.setattr(sys, "stdout", Ascii())
        assert main(arguments) == 0
        assert sys.stdout.text() == shown


@pytest.mark.parametrize("environment", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C"}], ids=str)
def test_a_process_in_another_locale(environment):
    status, out, err = run(*EXPLAIN, environment=environment)
    assert status == 0 and err == "" and "all-reduce" in out


WITHOUT_UTF8 = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def test_a_name_that_the_locale_cannot_say():
    """On the command line, and in a file that it names."""
    status, _, err = run("train", "--data.text", "b\u00fccher.txt", environment=WITHOUT_UTF8)
    assert status == 2 and err == (
        "meshax: the command line is not UTF-8.\n  values: 'b\\udcc3\\udcbccher.txt'\n"
        "  fix: set a UTF-8 locale, as in LC_ALL=C.UTF-8; a file with such a name needs another one.\n"
    )


def test_a_name_in_a_file_that_the_locale_cannot_say(tmp_path):
    (tmp_path / "run.json").write_text('{"out": "b\\u00fccher", "mesh": "x:1", "layout": "none"}')
    status, _, err = run("train", "--config", "run.json", environment=WITHOUT_UTF8, cwd=tmp_path)
    assert status == 1 and err.endswith(
        "meshax: 'b\\xfccher' cannot be named in this locale.\n  fix: set a UTF-8 one, as in LC_ALL=C.UTF-8.\n"
    )


def test_a_reader_that_has_seen_enough():
    process = start("explain", TINY, "--mesh", "data:2")
    process.stdout.close()
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()
    process.wait(timeout=120)


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not (status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z")


def wait_until(true, seconds=60):
    limit = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < limit
        time.sleep(0.05)


@pytest.fixture
def slow_plan(tmp_path):
    """A plan that hangs in its child process, and that child's id."""
    (tmp_path / "slow.py").write_text(SLOW)
    (tmp_path / "libtpu.py").write_text("")  # a compiler, as far as anyone asks before the child does
    arguments = ["plan", f"{tmp_path}/slow.py:slow", "--mesh", "data:8", "--topology", "tpu v4:2x2x1", "--json"]
    process = start(*arguments, paths=[str(tmp_path)])
    wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    yield process, int((tmp_path / "pid").read_text())
    process.kill()
    process.communicate()


def test_ctrl_c_ends_the_whole_tree(slow_plan):
    process, child = slow_plan
    assert is_alive(child)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=150)
    assert process.returncode == 130 and out == ""
    assert err.endswith("meshax: interrupted\n") and "Traceback" not in err
    wait_until(lambda: not is_alive(child), 10)


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_parent_leaves_no_orphan(slow_plan, end):
    process, child = slow_plan
    process.send_signal(end)
    process.communicate(timeout=150)
    wait_until(lambda: not is_alive(child), 10)
