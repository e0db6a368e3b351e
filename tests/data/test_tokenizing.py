"""Tokens are made once, made again when they must be, and never taken for whole when they are not."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from extent import some
from meshax import DataError
from meshax.data import END, Limit, Text, TokenFile, Vocabulary, tokenize, tokenizing
from meshax.files import Lock
from messages import pinned

SOURCE = Path(__file__).parents[2] / "src"
LINES = [f"line {n} of the text, caf\u00e9 {n * 7919 % 1000}" for n in range(2000)]
VOCABULARY = Vocabulary.train(LINES, size=400)
EXPECTED = [token for ids in VOCABULARY.encode_batch(LINES) for token in (*ids, END)]
QUIET = Console(file=StringIO())


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("text").mkdir()
    Path("text/a.txt").write_text("\n".join(LINES[:1200]))
    Path("text/b.txt").write_text("\n".join(LINES[1200:]))


@pytest.fixture
def text(_in_a_folder):
    return Text.find("text/*.txt", per="line")


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(tokenizing, "_BATCH", 500)
    monkeypatch.setattr(tokenizing, "CHECKPOINT", 1000)


def made(text, vocabulary=VOCABULARY, folder="tokens"):
    return tokenize(text, vocabulary, folder, QUIET)


def files(folder="tokens"):
    return sorted(path.name for path in Path(folder).iterdir())


def test_every_document_is_written_with_its_end(text, small_batches):
    tokens = made(text)
    assert tokens.tokens.tolist() == EXPECTED
    assert (tokens.num_documents, tokens.num_bytes) == (2000, sum(len(line.encode()) for line in LINES))
    key = tokens.fingerprint
    assert files() == ["manifest.json", f"offsets-{key}.bin", f"tokens-{key}.bin"]


def test_a_document_in_many_pieces_is_one(monkeypatch, small_batches):
    monkeypatch.setattr("meshax.data.reading.PIECE", 100)
    text = Text.find("text/*.txt")
    tokens = made(text)
    assert tokens.num_documents == 2
    assert [VOCABULARY.decode(tokens.document(number)) for number in range(2)] == list(text.documents())
    assert np.count_nonzero(tokens.tokens == END) == 2


def test_what_is_there_is_used_again(text, monkeypatch):
    first = made(text)
    monkeypatch.setattr(Vocabulary, "encode_batch", None)
    assert made(text).manifest == first.manifest
    assert TokenFile("tokens").manifest == first.manifest


def test_it_is_made_again_when_something_changed(text):
    keys = [made(text).fingerprint]
    os.utime("text/a.txt", ns=(0, 12345))
    keys.append(made(text).fingerprint)
    Path("text/b.txt").write_text("shorter")
    keys.append(made(text).fingerprint)
    keys.append(made(Text.find("text/*.txt")).fingerprint)
    keys.append(made(text, Vocabulary.train(LINES, size=300)).fingerprint)
    keys.append(made(text.hold_out()[1]).fingerprint)

    assert len(set(keys)) == len(keys)
    assert files() == ["manifest.json", f"offsets-{keys[-1]}.bin", f"tokens-{keys[-1]}.bin"]


def test_a_damaged_file_is_made_again(text):
    path = next(Path("tokens").glob("tokens-*")) if made(text) else None
    path.write_bytes(path.read_bytes()[:-1])
    assert made(text).tokens.tolist() == EXPECTED


def test_only_our_own_files_are_removed(text):
    Path("tokens").mkdir()
    for name in ("tokens-mine.bin", "notes.txt", "tokens-0123456789abcdef.bin", "manifest.json.77.partial"):
        Path("tokens", name).write_text("")
    made(text)
    assert {"tokens-mine.bin", "notes.txt"} <= set(files())
    assert not {"tokens-0123456789abcdef.bin", "manifest.json.77.partial"} & set(files())


def interrupted(text, monkeypatch, after):
    """Makes tokens until so many batches are encoded."""
    encode, count = Vocabulary.encode_batch, 0

    def failing(self, texts):
        nonlocal count
        count += 1
        if count > after:
            raise KeyboardInterrupt
        return encode(self, texts)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Vocabulary, "encode_batch", failing)
        made(text)
    return count


@pytest.mark.parametrize("after", [0, 1, 5, 60, 100])
def test_an_interrupted_run_continues(text, monkeypatch, small_batches, after):
    interrupted(text, monkeypatch, after)
    with pytest.raises(DataError, match="holds no tokens, or not all of them"):
        TokenFile("tokens")

    encoded = []
    encode = Vocabulary.encode_batch
    monkeypatch.setattr(Vocabulary, "encode_batch", lambda self, texts: encoded.extend(texts) or encode(self, texts))
    assert made(text).tokens.tolist() == EXPECTED
    assert encoded == LINES[len(LINES) - len(encoded) :]
    assert (len(encoded) < len(LINES)) == (after >= 5)


def test_an_interrupted_run_is_forgotten_when_the_text_changed(text, monkeypatch, small_batches):
    interrupted(text, monkeypatch, 60)
    os.utime("text/a.txt", ns=(0, 12345))
    assert made(text).tokens.tolist() == EXPECTED
    assert len(files()) == 3


def test_a_run_that_met_a_wrong_byte_continues_when_it_is_to_be_replaced(text, monkeypatch, small_batches):
    with open("text/b.txt", "ab") as file:
        file.write(b"\ncaf\xe9")
    with pytest.raises(DataError, match="text/b.txt, line 801: 0xe9"):
        made(text)
    with monkeypatch.context() as patch:
        encoded, encode = [], Vocabulary.encode_batch
        patch.setattr(Vocabulary, "encode_batch", lambda self, texts: encoded.extend(texts) or encode(self, texts))
        replaced = made(Text.find("text/*.txt", per="line", errors="replace"))
    assert 0 < len(encoded) < len(LINES)
    assert VOCABULARY.decode(replaced.document(2000)) == "caf\ufffd"
    with pytest.raises(DataError, match="0xe9"):
        made(text)


@pytest.mark.parametrize("after", some([1, 40, 80], 40))
def test_what_is_left_out_is_counted_once_also_after_an_interruption(monkeypatch, small_batches, after):
    for number in range(0, 2000, 100):
        Path(f"text/{number:04}.txt").write_bytes(b"\xff\n".join(line.encode() for line in LINES[number : number + 9]))
        Path(f"text/{number:04}.json").touch()
    text = Text.find("text", per="line", errors="skip")
    interrupted(text, monkeypatch, after)
    tokens = made(text)
    assert tokens.tokens.tolist() != EXPECTED and tokens.num_documents == 2000 + 20
    assert tokens.manifest["left_out"] == {
        "empty": [20, "text/0000.json"],
        "undecodable": [160, "text/0000.txt, line 1"],
    }
    assert tokens.left_out == (
        "20 empty files (first: text/0000.json), 160 documents with undecodable bytes (first: text/0000.txt, line 1)"
    )
    assert made(text, folder="again").tokens.tolist() == tokens.tokens.tolist()


@pytest.mark.parametrize("after", some([None, 1, 30], None, 30))
def test_a_limit_is_kept_after_an_interruption_too(monkeypatch, small_batches, after):
    for limit in (Limit(documents=1500), Limit(bytes=40_001)):
        text = Text.find("text/*.txt", per="line", limit=limit)
        if after:
            interrupted(text, monkeypatch, after)
        tokens = made(text)
        expected = list(text.documents())
        assert tokens.num_documents == len(expected) == (limit.documents or len(expected))
        assert tokens.num_bytes == (limit.bytes or tokens.num_bytes)
        assert VOCABULARY.decode(tokens.tokens.tolist()) == "".join(expected)


def test_a_beginning_that_was_read_strictly_is_not_believed_if_documents_may_be_left_out(monkeypatch, small_batches):
    Path("text/c.txt").write_bytes(b"word " * 200_000 + b"\xff")
    with pytest.raises(DataError, match="text/c.txt, line 1: 0xff"):
        made(Text.find(["text/c.txt", "text/a.txt"]))
    tokens = made(Text.find(["text/c.txt", "text/a.txt"], errors="skip"))
    assert tokens.num_documents == 1 and tokens.left_out == "1 document with undecodable bytes (text/c.txt)"


def test_a_file_that_is_gone_may_be_left_out_too():
    text = Text.find("text/*.txt", per="line", errors="skip")
    Path("text/a.txt").unlink()
    tokens = made(text)
    assert tokens.num_documents == 800
    assert tokens.left_out == "1 file that cannot be opened (text/a.txt: No such file or directory)"


def test_what_was_read_strictly_needs_no_replacing(text, monkeypatch):
    first = made(text)
    monkeypatch.setattr(Vocabulary, "encode_batch", None)
    assert made(Text.find("text/*.txt", per="line", errors="replace")).manifest == first.manifest


@pytest.mark.parametrize("damage", ["", "{", '{"file": 0}', '{"other": 1}', '{"tokens": 999999999}'])
def test_damaged_progress_is_not_believed(text, monkeypatch, small_batches, damage):
    interrupted(text, monkeypatch, 60)
    next(Path("tokens").glob("progress-*.json")).write_text(damage)
    assert made(text).tokens.tolist() == EXPECTED


KILLED = """
import sys, time
from pathlib import Path
from meshax.data import Text, Vocabulary, tokenize, tokenizing
tokenizing._BATCH, tokenizing.CHECKPOINT = 500, 1000
encode = Vocabulary.encode_batch
Vocabulary.encode_batch = lambda self, texts: time.sleep(0.01) or encode(self, texts)
tokenize(Text.find("text/*.txt", per="line"), Vocabulary.load("vocabulary.json"), "tokens")
"""


def test_a_killed_process_leaves_nothing_that_looks_whole(text, monkeypatch, small_batches):
    VOCABULARY.save("vocabulary.json")
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    process = subprocess.Popen([sys.executable, "-c", KILLED], env=environment, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not list(Path().glob("tokens/progress-*.json")) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()

    assert process.returncode == -signal.SIGKILL
    with pytest.raises(DataError, match="holds no tokens, or not all of them"):
        TokenFile("tokens")
    encoded = []
    encode = Vocabulary.encode_batch
    monkeypatch.setattr(Vocabulary, "encode_batch", lambda self, texts: encoded.extend(texts) or encode(self, texts))
    assert made(text).tokens.tolist() == EXPECTED
    assert 0 < len(encoded) < len(LINES)
    assert not [name for name in files() if "progress" in name or "partial" in name]


def test_of_two_processes_one_works(text):
    Path("tokens").mkdir()
    said, found = StringIO(), []
    with Lock(Path("tokens")):
        waiting = threading.Thread(
            target=lambda: found.append(tokenize(text, VOCABULARY, "tokens", Console(file=said)))
        )
        waiting.start()
        while "waiting" not in said.getvalue():
            time.sleep(0.001)
        assert not list(Path("tokens").glob("tokens-*"))
    waiting.join()
    assert said.getvalue().startswith("waiting for another process that tokenizes into tokens\n")
    assert len(found[0]) == len(EXPECTED)


def test_progress_is_shown_on_standard_error(text, capsys, small_batches):
    """A bar on a terminal, elsewhere a line for a hundredth or more."""
    tokenize(text, VOCABULARY, "tokens")
    out, err = capsys.readouterr()
    assert out == "" and set(err.splitlines()) == {"tokenizing: 0.00 of 0.00 GB"}
    terminal = Console(file=StringIO(), force_terminal=True)
    tokenize(text, VOCABULARY, "again", terminal)
    assert "━" in terminal.file.getvalue() and " of " not in terminal.file.getvalue()


def test_a_full_disk_is_an_error_and_the_next_call_continues(text, monkeypatch, small_batches):
    """/dev/full takes everything, and keeps nothing."""
    interrupted(text, monkeypatch, 60)
    key = next(Path("tokens").glob("progress-*.json")).stem.removeprefix("progress-")
    kept = Path(f"tokens/offsets-{key}.bin")
    for path in Path("tokens").glob("*-*"):
        path.unlink()
    kept.symlink_to("/dev/full")
    with pytest.raises(DataError) as raised:
        made(text)
    assert str(raised.value) == (
        "the disk is full: not all tokens are written.\n"
        "  values: tokens: No space left on device\n"
        "  fix: free some space and call again: it continues where it was."
    )
    kept.unlink()
    assert made(text).tokens.tolist() == EXPECTED


def test_files_that_change_meanwhile_are_noticed(text, monkeypatch, small_batches):
    encode = Vocabulary.encode_batch

    def meanwhile(self, texts):
        os.utime("text/a.txt", ns=(0, 12345))
        return encode(self, texts)

    with monkeypatch.context() as patch, pytest.raises(DataError) as raised:
        patch.setattr(Vocabulary, "encode_batch", meanwhile)
        made(text)
    assert str(raised.value) == (
        "files of text changed while they were read.\n"
        "  values: text/a.txt, text/b.txt\n  fix: call again when they are complete."
    )
    assert made(text).tokens.tolist() == EXPECTED


def blank():
    for number in range(5):
        Path(f"blank{number}.txt").write_text(" \n\n")
    made(Text.find("blank*.txt"))


def unreadable():
    for number in range(2):
        Path(f"wrong{number}.txt").write_bytes(b"\xff")
    made(Text.find("wrong*.txt", errors="skip"))


def gone():
    text = Text.find("text/*.txt")
    Path("text/a.txt").unlink()
    made(text)


test_messages = pinned(
    {
        "no documents": (
            DataError,
            blank,
            """
            a text has no documents.
              values: blank0.txt, blank1.txt, blank2.txt and 2 more
              rule: blank lines and files are no documents, nor is what cannot be read.
              fix: name other files, or correct these: errors="strict" says how.
            """,
        ),
        "nothing that can be read": (
            DataError,
            unreadable,
            """
            a text has no documents.
              values: wrong0.txt, wrong1.txt; left out: 2 documents with undecodable bytes (first: wrong0.txt)
              rule: blank lines and files are no documents, nor is what cannot be read.
              fix: name other files, or correct these: errors="strict" says how.
            """,
        ),
        "a folder that is a file": (
            DataError,
            lambda: made(Text.find("text/*.txt"), folder="text/a.txt"),
            f"""
            tokens cannot be written.
              values: text/a.txt: {os.strerror(errno.EEXIST)}
              fix: choose another folder.
            """,
        ),
        "a text that has gone": (
            DataError,
            gone,
            """
            a file of text cannot be read.
              values: text/a.txt: No such file or directory
              fix: look whether it is there, and at its permissions.
            """,
        ),
    }
)
