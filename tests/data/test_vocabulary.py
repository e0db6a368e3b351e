"""Subwords: deterministic, exact, and safe against text that spells their names."""

import json
import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshax import ArgumentError, DataError
from meshax.data import END, PAD, Text, Vocabulary
from messages import pinned

SOURCE = Path(__file__).parents[2] / "src"
WORDS = ["the mesh has rows and columns. " * 20, "a layout says which dim is split over which axis.\n" * 20]
VOCABULARY = Vocabulary.train(WORDS, size=300)


@given(st.text())
def test_every_text_comes_back(text):
    assert VOCABULARY.decode(VOCABULARY.encode(text)) == text


def test_frequent_words_are_short():
    assert len(VOCABULARY.encode(" which")) < len(VOCABULARY.encode(" whale")) <= len(" whale")
    assert VOCABULARY.size == 300


@pytest.mark.parametrize("name", ["<end>", "<pad>", "a<end>b"])
def test_text_that_spells_a_token_is_text(name):
    assert not {PAD, END} & set(VOCABULARY.encode(name))
    assert VOCABULARY.decode(VOCABULARY.encode(name)) == name


def test_pad_and_end_have_no_text():
    assert VOCABULARY.decode([END, *VOCABULARY.encode("rows"), END, PAD, PAD]) == "rows"


def test_a_batch_is_encoded_as_its_texts_are():
    assert VOCABULARY.encode_batch(WORDS) == [VOCABULARY.encode(text) for text in WORDS]


def test_the_same_text_gives_the_same_vocabulary_in_another_process():
    source = f"from meshax.data import Vocabulary; print(Vocabulary.train({WORDS!r}, size=300).fingerprint, end='')"
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", source], env=environment, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == (VOCABULARY.fingerprint, "")


def test_a_short_text_gives_fewer_subwords():
    assert 258 <= Vocabulary.train(["one two"], size=1000).size < 270


def test_training_takes_a_sample(tmp_path):
    (tmp_path / "a.txt").write_text("mesh " * 2**18)
    (tmp_path / "b.txt").write_text("rare " * 2**18)
    text = Text.find(str(tmp_path / "*.txt"))

    assert len(Vocabulary.train(text, 300).encode("rare rare")) == 2
    assert len(Vocabulary.train(text, 300, megabytes=1).encode("rare rare")) == len("rare rare")


def test_saved_and_loaded(tmp_path):
    path = tmp_path / "new" / "vocabulary.json"
    path.parent.mkdir()
    VOCABULARY.save(path)
    loaded = Vocabulary.load(path)

    assert loaded.fingerprint == VOCABULARY.fingerprint == sha256(path.read_bytes()).hexdigest()
    assert loaded.encode(WORDS[1] + "<end>") == VOCABULARY.encode(WORDS[1] + "<end>")
    assert [file.name for file in path.parent.iterdir()] == ["vocabulary.json"]


@pytest.mark.parametrize("cut", [0, 1, 100, -1])
def test_a_damaged_file_is_refused(tmp_path, cut):
    path = tmp_path / "vocabulary.json"
    VOCABULARY.save(path)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DataError, match="a file holds no vocabulary, or a damaged one."):
        Vocabulary.load(path)


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("cut.json").write_text('{"version"')
    path = Path("other.json")
    VOCABULARY.save(path)
    other = json.loads(path.read_text())
    for token in other["added_tokens"]:
        token["content"] = token["content"].upper()
    path.write_text(json.dumps(other).replace('"<pad>"', '"<PAD>"').replace('"<end>"', '"<END>"'))


test_messages = pinned(
    {
        "too small": (
            ArgumentError,
            lambda: Vocabulary.train(WORDS, size=100),
            """
            a vocabulary of 100 tokens is too small.
              rule: every byte is a token, and two tokens stand for no text: 258 at least.
              fix: 32768 suits most texts, 4096 a few megabytes.
            """,
        ),
        "missing": (
            DataError,
            lambda: Vocabulary.load("none.json"),
            """
            a vocabulary cannot be read.
              values: none.json: No such file or directory
              fix: name the file that Vocabulary.save wrote.
            """,
        ),
        "damaged": (
            DataError,
            lambda: Vocabulary.load("cut.json"),
            """
            a file holds no vocabulary, or a damaged one.
              values: cut.json: EOF while parsing an object at line 1 column 10
              fix: name the file that Vocabulary.save wrote, or train it again: the same text gives the same one.
            """,
        ),
        "another's": (
            DataError,
            lambda: Vocabulary.load("other.json"),
            """
            a file holds no vocabulary, or a damaged one.
              values: other.json: its first tokens are not <pad> and <end>
              fix: name the file that Vocabulary.save wrote, or train it again: the same text gives the same one.
            """,
        ),
    }
)
