"""Tokenizers from elsewhere: their own tokens begin and end a document, and their special tokens are known."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from meshax import DataError
from meshax.data import Text, Vocabulary, Windows, tokenize
from messages import pinned

GOLDEN = Path(__file__).parents[1] / "golden" / "hugging_face" / "llama"


def byte_level(folder, specials, **words):
    """A tokenizer of bytes and some special tokens, as GPT-2's family has them, in a folder."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(specials)
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    if words:
        (folder / "tokenizer_config.json").write_text(json.dumps(words))
    return folder / "tokenizer.json"


def test_the_files_beside_it_say_which_tokens_begin_and_end_a_document():
    vocabulary = Vocabulary.from_tokenizer(GOLDEN / "tokenizer.json")
    assert (vocabulary.begin, vocabulary.end, vocabulary.size) == (1, 2, 34)
    reference = Tokenizer.from_file(str(GOLDEN / "tokenizer.json"))
    text = "the cat sat on the mat"
    assert [vocabulary.begin, *vocabulary.encode(text)] == reference.encode(text).ids
    assert vocabulary.decode(vocabulary.encode(text)) == text
    assert vocabulary.encode_batch([text, "dog"]) == [vocabulary.encode(text), vocabulary.encode("dog")]


def test_what_comes_after_other_tokens_keeps_its_space():
    vocabulary = Vocabulary.from_tokenizer(GOLDEN / "tokenizer.json")
    start, rest = vocabulary.encode("the cat"), vocabulary.encode("sat on")
    assert vocabulary.decode(rest) == "sat on" and vocabulary.decode(rest, after=start) == " sat on"


@pytest.mark.parametrize(
    ("words", "begin", "end"),
    [
        ({"eos_token": "<|im_end|>", "bos_token": None}, 257, 257),
        ({"eos_token": {"content": "<|endoftext|>"}, "bos_token": "<|im_end|>"}, 257, 256),
        ({}, 256, 256),  # by its usual name
    ],
)
def test_words_numbers_and_usual_names(tmp_path, words, begin, end):
    vocabulary = Vocabulary.from_tokenizer(byte_level(tmp_path, ["<|endoftext|>", "<|im_end|>"], **words))
    assert (vocabulary.begin, vocabulary.end) == (begin, end)


def test_numbers_of_a_configuration(tmp_path):
    path = byte_level(tmp_path, ["<stop>", "<start>"])
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": [256, 5], "bos_token_id": 257}))
    assert (Vocabulary.from_tokenizer(path).begin, Vocabulary.from_tokenizer(path).end) == (257, 256)


def test_all_ends_of_a_configuration_stop_a_text(tmp_path):
    """Models that were taught to chat end a turn and a text with tokens of their own."""
    path = byte_level(tmp_path, ["<|endoftext|>", "<|eot|>", "<|eom|>"], eos_token="<|eot|>")
    assert Vocabulary.from_tokenizer(path).stops == (257,)
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 256}))
    assert Vocabulary.from_tokenizer(path).stops == (256, 257)
    ends = [258, 256, 999, -1, None, True]
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    vocabulary = Vocabulary.from_tokenizer(path)
    assert (vocabulary.end, vocabulary.stops) == (257, (256, 257, 258))
    vocabulary.save(tmp_path / "vocabulary.json")
    assert Vocabulary.load(tmp_path / "vocabulary.json").stops == (256, 257, 258)


def test_special_tokens_are_known_in_a_text_and_have_none(tmp_path):
    vocabulary = Vocabulary.from_tokenizer(byte_level(tmp_path, ["<|endoftext|>", "<|user|>"]))
    assert vocabulary.encode("<|user|>hi")[0] == 257
    assert vocabulary.decode(vocabulary.encode("<|user|>hi")) == "hi"


def test_it_is_saved_in_one_file(tmp_path):
    vocabulary = Vocabulary.from_tokenizer(GOLDEN / "tokenizer.json")
    vocabulary.save(tmp_path / "vocabulary.json")
    loaded = Vocabulary.load(tmp_path / "vocabulary.json")
    assert loaded.fingerprint == vocabulary.fingerprint and (loaded.begin, loaded.end) == (1, 2)
    assert loaded.encode("the mat") == vocabulary.encode("the mat")


def test_documents_begin_with_one_token_and_end_with_another(tmp_path):
    shutil.copytree(GOLDEN, tmp_path / "llama")
    vocabulary = Vocabulary.from_tokenizer(tmp_path / "llama" / "tokenizer.json")
    (tmp_path / "text.txt").write_text("the cat sat\non the mat\n")
    tokens = tokenize(Text.find(str(tmp_path / "text.txt"), per="line"), vocabulary, tmp_path / "tokens")
    first, second = (vocabulary.encode(text) for text in ("the cat sat", "on the mat"))
    assert tokens.tokens.tolist() == [*first, 2, *second, 2]
    window = Windows(tokens, len(tokens))[0]
    assert window["tokens"].tolist() == [1, *first, 1, *second]
    assert window["targets"].tolist() == [*first, 2, *second, 2]
    assert window["segments"].tolist() == [1] * (len(first) + 1) + [2] * (len(second) + 1)
    np.testing.assert_array_equal(window["positions"], [*range(len(first) + 1), *range(len(second) + 1)])


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("cut.json").write_text("[]")
    byte_level(Path("odd"), ["<fin>"])


test_messages = pinned(
    {
        "no file": (
            DataError,
            lambda: Vocabulary.from_tokenizer("none.json"),
            """
            a tokenizer cannot be read.
              values: none.json: No such file or directory
              fix: name a tokenizer.json, as the library tokenizers writes it.
            """,
        ),
        "damaged": (
            DataError,
            lambda: Vocabulary.from_tokenizer("cut.json"),
            """
            a file holds no tokenizer, or a damaged one.
              values: cut.json: invalid type: sequence, expected struct Tokenizer at line 1 column 2
              fix: name a tokenizer.json, as the library tokenizers writes it.
            """,
        ),
        "no end": (
            DataError,
            lambda: Vocabulary.from_tokenizer("odd/tokenizer.json"),
            """
            nothing says which token of a tokenizer ends a document.
              values: odd/tokenizer.json: its special tokens are <fin>
              rule: "eos_token" of a tokenizer_config.json beside it does, or "eos_token_id" of a config.json.
              fix: write tokenizer_config.json: {"eos_token": "..."}.
            """,
        ),
    }
)
