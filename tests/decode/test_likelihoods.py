"""Log-probabilities as OpenAI's completions tell them, with words that are more than letters."""

import pytest

from meshax.data.vocabulary import END, Vocabulary
from meshax.decode.likelihoods import logprobs_of
from meshax.decode.texts import Spelling


@pytest.fixture(scope="module")
def words():
    return Vocabulary.train(["the cat sat on the mat"] * 9, 280)


def test_halves_of_characters_and_ends_have_names(words):
    (the, cat), (first, second) = words.encode("the cat"), words.encode("\u00e9")
    candidates = [[(the, -0.5), (END, -1.0)], [(first, -1.0), (the, -2.0)], [(second, -0.25), (cat, -0.75)]]
    told = logprobs_of(
        [the, first, second], [-0.5, -1.0, float("-inf")], candidates, Spelling(words.decode, (END,)), words.name_of
    )
    assert told["tokens"] == ["the", "\u00e9", ""] and told["text_offset"] == [0, 3, 4]
    assert told["token_logprobs"] == [-0.5, -1.0, None]
    assert told["top_logprobs"][:2] == [{"the": -0.5, "<end>": -1.0}, {"\u00e9": -1.0, "the": -2.0}]
    assert told["top_logprobs"][2] == {" cat": -0.75, "": None}
    assert words.name_of(first) == "\u00c3" and words.name_of(999) == "<999>"


def test_nothing_is_told_of_others_unless_asked_for(words):
    tokens = words.encode("the mat")
    told = logprobs_of(tokens, [-1.0] * len(tokens), None, Spelling(words.decode), words.name_of)
    assert told["top_logprobs"] is None and "".join(told["tokens"]) == "the mat"
