"""A token file opens only if all of it is there."""

import json
from pathlib import Path

import numpy as np
import pytest

from meshax import ArgumentError, DataError
from meshax.data import END, Text, TokenFile, TokenFiles, Vocabulary, Windows, tokenize
from messages import pinned

TEXTS = ["the first document", "second", "and a third, which is longer than the others"]
VOCABULARY = Vocabulary.train(TEXTS * 3, size=280)


@pytest.fixture(autouse=True)
def tokens(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("text").mkdir()
    for number, text in enumerate(TEXTS):
        Path(f"text/{number}.txt").write_text(text)
    return tokenize(Text.find("text/*.txt"), VOCABULARY, "tokens")


def test_it_knows_its_documents(tokens):
    assert tokens.num_documents == 3
    assert tokens.num_bytes == sum(map(len, TEXTS))
    assert len(tokens) == tokens.num_tokens == len(tokens.tokens)
    assert tokens.vocabulary_size == VOCABULARY.size
    for number, text in enumerate(TEXTS):
        document = tokens.document(number)
        assert document.dtype == np.uint16
        assert document.tolist() == [*VOCABULARY.encode(text), END]


def test_several_files_are_read_as_one(tokens):
    Path("text/more").mkdir()
    Path("text/more/3.txt").write_text("a fourth")
    more = tokenize(Text.find("text/more"), VOCABULARY, "more")
    both, stream = TokenFiles([tokens, more]), [*tokens.tokens.tolist(), *more.tokens.tolist()]
    assert len(both) == both.num_tokens == len(stream)
    assert (both.num_documents, both.num_bytes) == (4, sum(map(len, TEXTS)) + 8)
    edge = len(tokens)
    for begin, end in [
        (0, len(stream)),
        (edge - 2, edge + 2),
        (edge, edge + 1),
        (3, 5),
        (len(stream) - 1, 10**6),
        (9, 9),
    ]:
        assert both.tokens[begin:end].tolist() == stream[begin:end]
    assert [both.tokens[place] for place in (0, edge - 1, edge)] == [stream[place] for place in (0, edge - 1, edge)]
    windows, expected = Windows(both, 5), Windows(np.array(stream), 5)
    assert all(np.array_equal(windows[n][name], expected[n][name]) for n in range(len(windows)) for name in windows[n])


def test_the_manifest_says_what_it_was_made_from(tokens):
    manifest = json.loads(Path("tokens/manifest.json").read_text())
    assert manifest["vocabulary"] == VOCABULARY.fingerprint
    assert [(file["path"], file["bytes"]) for file in manifest["text"]["files"]] == [
        (f"text/{number}.txt", len(text)) for number, text in enumerate(TEXTS)
    ]


def test_many_subwords_take_four_bytes(monkeypatch):
    monkeypatch.setattr(Vocabulary, "size", 65_537)
    tokens = tokenize(Text.find("text/*.txt"), VOCABULARY, "wide")
    assert tokens.document(1).dtype == np.uint32
    assert VOCABULARY.decode(tokens.document(1)) == "second"


def cut():
    path = next(Path("tokens").glob("tokens-*.bin"))
    path.rename("tokens/tokens-key.bin")
    manifest = json.loads(Path("tokens/manifest.json").read_text())
    Path("tokens/manifest.json").write_text(json.dumps({**manifest, "key": "key", "tokens": 1000}))
    Path("tokens/tokens-key.bin").write_bytes(bytes(1999))
    TokenFile("tokens")


def of_the_future():
    Path("tokens/manifest.json").write_text('{"format": 2}')
    TokenFile("tokens")


test_messages = pinned(
    {
        "nothing": (
            DataError,
            lambda: TokenFile("elsewhere"),
            """
            a folder holds no tokens, or not all of them.
              values: elsewhere/manifest.json: No such file or directory
              rule: a manifest is written when all tokens are.
              fix: call meshax.data.tokenize(text, vocabulary, folder): it continues where it was interrupted.
            """,
        ),
        "another format": (
            DataError,
            of_the_future,
            """
            a folder of tokens was made by another version of meshax.
              values: tokens/manifest.json: format 2; this version reads format 1
              fix: make it again: meshax.data.tokenize(text, vocabulary, folder).
            """,
        ),
        "damaged": (
            DataError,
            cut,
            """
            a file of tokens is damaged.
              values: tokens/tokens-key.bin: 1,999 bytes, not 2,000
              fix: make it again: meshax.data.tokenize(text, vocabulary, folder).
            """,
        ),
        "no such document": (
            ArgumentError,
            lambda: TokenFile("tokens").document(3),
            """
            there is no document 3.
              values: tokens
              fix: there are 3.
            """,
        ),
    }
)
