"""`meshax translate`: line n of the output belongs to line n of the input, whatever the bytes and interruptions."""

import contextlib
import fcntl
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from meshax.cli import evaluate, main, written
from meshax.cli import translate as module
from meshax.decode.translating import Translation
from meshax.train.loop import Run
from meshax.train.record import record_start
from runs import small, small_translator, write_text

ROOT = Path(__file__).parents[2]
NASTY = (
    "3 cat\n\n\u2028\n5 tree\u2028 7 dog\r\n\r\n8\0 mat\n" .encode() + b"\xff\xfe 9 then\n" + b"10 ran " * 150_000
    + "\n\u0085 11 a\x0b\x0c\x1c\n   \n12 under".encode()
)  # fmt: skip


@pytest.fixture(autouse=True)
def eight_processors(monkeypatch):
    """The tests' own: JAX is in use already."""
    for command in (evaluate, written):
        monkeypatch.setattr(command, "use_processors", lambda mesh: None)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that has saved its first state: nothing is trained."""
    run = Run(small_translator(tmp_path_factory.mktemp("translate"), steps=2), Console(quiet=True))
    with contextlib.closing(run.checkpoints):
        record_start(run.config, run.mesh, run.layout, run._signature)
        run._save(2, run.first_state())
    return run.directory


def translate(run, *options):
    return main(["translate", "--run", str(run), "--beam", "2", "--slots", "16", *map(str, options)])


def lines_of(path):
    content = path.read_bytes()
    assert content.endswith(b"\n")
    return content.decode().split("\n")[:-1]


def test_nasty_bytes_give_as_many_lines(run, tmp_path, capsys):
    (tmp_path / "in.gz").write_bytes(gzip.compress(NASTY))
    assert translate(run, "--input", tmp_path / "in.gz", "--output", tmp_path / "out") == 0, capsys.readouterr().err
    said = capsys.readouterr()
    assert said.out == ""
    assert "1 line was longer than 19 tokens, and cut there" in said.err
    assert "1 line was not UTF-8, and translated with U+FFFD for the wrong bytes" in said.err
    found, sources = lines_of(tmp_path / "out"), NASTY.split(b"\n")
    assert len(found) == len(sources) == 11
    for text, source in zip(found, sources):
        assert bool(text) <= bool(source.decode(errors="replace").strip())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.gz", "out"]  # nothing is left beside it


def test_several_translations_share_a_line():
    command = module.Translate(nbest=2)
    assert command._shown("x", [Translation("a\nb\tc", 0.0), Translation("d", 0.0)]) == "a b c\td"
    assert module.Translate()._shown("x", [Translation("a\tb\nc", 0.0)]) == "a\tb c"
    assert module.Translate()._shown("", []) == command._shown("", []) == ""
    shown = json.loads(module.Translate(nbest=2, json=True)._shown("x\ty", [Translation("a\nb", -1.5)]))
    assert shown == {"source": "x\ty", "translations": [{"text": "a\nb", "score": -1.5}]}


def backwards(self, translator, texts, count):
    """In the place of the model, where it is about files."""
    return [text.strip()[::-1] for text in texts]


def test_a_half_done_file_is_continued(run, tmp_path, capsys, monkeypatch):
    (tmp_path / "in").write_text("".join(f"{number} cat\n" for number in range(10)))
    options = "--input", tmp_path / "in", "--output", tmp_path / "out", "--slots", 4
    monkeypatch.setattr(module, "_WINDOW", 1)
    monkeypatch.setattr(module.Translate, "_translated", backwards)
    append, calls = module._Output.append, []

    def failing(self, content, num_lines):
        calls.append(num_lines)
        if len(calls) == 2:
            with open(self.path, "ab") as file:
                file.write(content[: len(content) // 2])  # half a window, as of a machine that stops
            raise OSError(28, "No space left on device")
        append(self, content, num_lines)

    with monkeypatch.context() as patched:
        patched.setattr(module._Output, "append", failing)
        assert translate(run, *options) == 1
    progress = json.loads((tmp_path / "out.progress").read_text())
    assert progress["lines"] == 4 and progress["identity"]["step"] == 2  # the number, not "latest"
    capsys.readouterr()
    assert translate(run, *options, "--length-penalty", 1) == 2
    err = capsys.readouterr().err
    assert "is half done, and cannot be continued.\n  values: length_penalty was 0.6, is 1.0\n" in err
    calls.clear()
    with monkeypatch.context() as patched:
        patched.setattr(module._Output, "append", lambda self, *args: calls.append(args[1]) or append(self, *args))
        assert translate(run, *options) == 0
    assert calls == [4, 2]
    assert lines_of(tmp_path / "out") == [f"tac {number}" for number in range(10)]
    assert not (tmp_path / "out.progress").exists()
    assert translate(run, *options) == 2
    assert "exists.\n  fix: remove it, or choose another --output.\n" in capsys.readouterr().err


def test_standard_input_is_answered_as_it_comes(run, capsysbinary, monkeypatch):
    reading, writing = os.pipe()
    seen = []

    class Stdin:
        fileno = staticmethod(lambda: reading)

    monkeypatch.setattr(module.sys, "stdin", Stdin)
    parts = [b"\n4 dog\nhal", b"f\n", b"6 mat"]

    def feed():
        if parts:
            os.write(writing, parts.pop(0))
        if not parts and len(seen) == 2:
            os.close(writing)

    def watched(self, translator, texts, count):
        seen.append(texts)
        feed()
        return backwards(self, translator, texts, count)

    monkeypatch.setattr(module.Translate, "_translated", watched)
    feed()
    assert translate(run) == 0
    os.close(reading)
    assert seen == [["", "4 dog"], ["half"], ["6 mat"]]
    assert capsysbinary.readouterr().out == b"\ngod 4\nflah\ntam 6\n"


def test_eval_says_bleu_with_its_signature(run, tmp_path, capsys):
    (tmp_path / "b.tsv").write_text("3 cat\ttac 3 .\n4 dog\tgod 4 .\n5 mat\ttam 5 .\n")
    options = ["eval", "--run", str(run), "--data.pairs", str(tmp_path / "b.tsv"), "--beam", "2", "--paper"]
    assert main(options) == 0, capsys.readouterr().err
    first, *others = capsys.readouterr().out.splitlines()
    assert first.startswith("step 2: perplexity ") and len(others) == 3
    ends = ["tok:13a|smooth:exp|version:2.6.0", "nw:0|space:no|version:2.6.0", "tok:intl|smooth:none|version:2.6.0"]
    names = ["BLEU ", "chrF ", "BLEU as the paper counted "]
    for line, name, end in zip(others, names, ends):
        assert line.startswith(name) and line.endswith(f"{end}, 3 translations")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--nbest 3", "a search gives at most as many translations as it has beams.\n  values: 2 beams, the best 3\n"),
        ("--slots 0", "slots is 0.\n  fix: give a number, 1 or more.\n"),
        ("--input none.en --output x", "a file of text does not exist.\n"),
        ("--output none/x", "'none/x' cannot be written.\n  fix: name a file in a folder that exists.\n"),
        ("--output .", "'.' cannot be written.\n  fix: name a file in a folder that exists.\n"),
        (
            "--input pipe --output /proc/x",
            "a pipe or a device is no file of text.\n  values: pipe\n"
            "  rule: files are looked at before they are read.\n  fix: write it into a file first.\n",
        ),
        (
            "--output /proc/x",
            "'/proc/x' cannot be written.\n  values: No such file or directory\n  fix: choose another --output.\n",
        ),
        ("--output /dev/null", "'/dev/null' is no file.\n  fix: name one; - is standard output.\n"),
        (
            "--output locked",
            "another command writes 'locked'.\n  fix: wait for it, or choose another --output.\n",
        ),
        ("--length-penalty nan", "and the exponent of the length penalty is a number, not negative.\n"),
    ],
)
def test_what_is_wrong(run, tmp_path, monkeypatch, capsys, options, words):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    with open("locked", "wb") as locked:
        fcntl.flock(locked, fcntl.LOCK_EX)
        assert translate(run, *options.split()) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--translations -1", "--translations is -1.\n  fix: give a number, 0 or more.\n"),
        (
            "--beam 0",
            "beams are 1 or more, and the exponent of the length penalty is a number, not negative.\n"
            "  values: --beam 0 --length-penalty 0.6\n  fix: for example --beam 4 --length-penalty 0.6.\n",
        ),
    ],
)
def test_what_is_wrong_with_an_evaluation(run, capsys, options, words):
    assert main(["eval", "--run", str(run), *options.split()]) == 2
    assert capsys.readouterr().err == f"meshax: {words}"


def test_a_full_disk(run, tmp_path, monkeypatch, capsys):
    (tmp_path / "in").write_text("4 dog\n")
    monkeypatch.setattr(module.Translate, "_translated", backwards)

    def fails(number):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.os, "fsync", fails)
    assert translate(run, "--input", tmp_path / "in", "--output", tmp_path / "out") == 1
    assert capsys.readouterr().err == (
        "meshax: line 1 and those after it cannot be written.\n"
        f"  values: {tmp_path / 'out'}: No space left on device\n"
        "  fix: make room or correct the folder; the same command continues.\n"
    )


def test_each_model_has_its_command(run, capsys):
    assert main(["generate", "--run", str(run), "--prompt", "x"]) == 2
    assert "writes no text.\n  fix: name the run of a language model.\n" in capsys.readouterr().err


@pytest.mark.exhaustive
def test_a_language_model_does_not_translate(tmp_path, capsys):
    write_text(tmp_path / "text")
    Run(small(tmp_path, steps=1, mesh="x:1", layout="none", eval_every=9), Console(quiet=True)).train()
    assert translate(tmp_path / "run") == 2
    assert "does not translate.\n  fix: name the run of a model that translates.\n" in capsys.readouterr().err


@pytest.mark.exhaustive
def test_in_a_process_of_its_own(run, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "meshax", "translate", "--run", str(run), "--beam", "2"]
    done = subprocess.run(command, input=NASTY, capture_output=True, env=environment, timeout=600, check=True)
    assert done.stdout.count(b"\n") == 11
