"""What a body asks for, what is refused and why, and what of a text may be told."""

import json

import pytest

from meshax.decode import Request
from meshax.serve.batching import News
from meshax.serve.completions import Choice, Limits, read_completion
from meshax.serve.refusals import Refusal


class Letters:
    """A vocabulary of the letters a to z, after a token that begins and one that ends."""

    begin, stops = 0, (1,)

    def encode(self, text):
        return [ord(letter) - 95 for letter in text]

    def decode(self, tokens, after=()):
        return "".join(chr(token + 95) for token in tokens if token > 1)

    def name_of(self, token):
        return ["<begin>", "<end>"][token]


LIMITS = Limits("letters", vocab=28, places=20, prompt=12, tokens=16, texts=6)


def read(**fields):
    return read_completion(json.dumps(fields).encode(), Letters(), LIMITS)


def test_defaults_are_those_of_openai():
    asked = read(prompt="ab", max_tokens=None)
    (request,) = asked.requests
    assert request == Request((0, 2, 3), 16, temperature=1.0, stop=(1,), seed=request.seed)
    assert not asked.streams and not asked.tells_likely and asked.num_prompt_tokens == 3


def test_everything_that_can_be_asked_for():
    asked = read(
        prompt=["ab", "c"], model="letters", max_tokens=5, temperature=0, top_p=0.5, top_k=3, min_p=0.1, n=3, seed=9,
        repetition_penalty=1.5, stop=["x", "yz"], stream=True, stream_options={"include_usage": True}, logprobs=0,
        echo=False, best_of=3, suffix="", presence_penalty=0.0, frequency_penalty=0, user="me",
        logit_bias={"4": -100},
    )  # fmt: skip
    assert asked.requests == tuple(
        Request(
            prompt, 5, temperature=0.0, top_p=0.5, top_k=3, min_p=0.1, repetition_penalty=1.5, banned=(4,), stop=(1,),
            stop_strings=("x", "yz"), seed=seed,
        )
        for prompt in ((0, 2, 3), (0, 4))
        for seed in (9, 10, 11)
    )  # fmt: skip
    assert asked.streams and asked.counts_at_end and asked.tells_likely and asked.num_prompt_tokens == 5


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [("", [(0,)]), ([""], [(0,)]), ([5, 6], [(5, 6)]), ([[5], [6, 7]], [(5,), (6, 7)]), (["a", ""], [(0, 2), (0,)])],
    ids=str,
)
def test_prompts(prompt, tokens):
    assert [request.prompt for request in read(prompt=prompt, max_tokens=3).requests] == tokens


REFUSED = {
    "no prompt": ({}, "there is no prompt.\n  fix: give a string, tokens, or a list of either."),
    "an empty list": ({"prompt": []}, "there is no prompt.\n  fix: give a string, tokens, or a list of either."),
    "no tokens": (
        {"prompt": [[]]},
        "a prompt is a string, or a list of tokens.\n  rule: several prompts are of one kind.\n"
        "  fix: give a string, tokens, or a list of either.",
    ),
    "a surrogate": (
        {"prompt": "\ud800"},
        "the prompt has half a character.\n  fix: write both surrogates, or the character.",
    ),
    "no such token": (
        {"prompt": [28]}, "there is no token 28.\n  values: 28 tokens\n  fix: encode with its vocabulary."
    ),
    "an object": ({"prompt": {}}, "prompt is an object.\n  fix: give a string or a list."),
    "words for a number": ({"top_p": "much"}, "top_p is a string.\n  fix: give a number."),
    "true for a number": ({"n": True}, "n is true or false.\n  fix: give a whole number."),
    "half a token": ({"max_tokens": 1.5}, "max_tokens is a number.\n  fix: give a whole number."),
    "a number without end": ({"temperature": 10**400}, "temperature is too large.\n  fix: give a smaller number."),
    "cold": ({"temperature": -1}, "temperature is -1.0.\n  fix: give a number, 0 or more."),
    "seeds": (
        {"seed": 2**32 - 1, "n": 2},
        "seed is 4294967296.\n  fix: give a number, 0 or more, and less than 4294967296.",
    ),
    "no field": ({"temprature": 1}, "there is no field 'temprature'.\n  fix: did you mean \"temperature\"?"),
    "echo": (
        {"echo": True}, "echo is not supported.\n  values: True\n  fix: put the prompt before the text yourself."
    ),
    "suffix": ({"suffix": "end"}, "suffix is not supported.\n  values: 'end'\n  fix: leave it out."),
    "presence_penalty": (
        {"presence_penalty": 1}, "presence_penalty is not supported.\n  values: 1\n  fix: use repetition_penalty."
    ),
    "logprobs": (
        {"logprobs": 6}, "logprobs is 6.\n  fix: give a number, 0 to 5."
    ),
    "n": (
        {"n": 0},
        "n texts are written for each prompt, 1 or more, and all of them are answered.\n  values: n 0, best_of 0\n"
        "  fix: leave best_of out.",
    ),
    "too many": (
        {"prompt": ["a", "b"], "n": 4},
        "8 texts are more than one request may ask for.\n  values: 6 at most\n  fix: send several requests.",
    ),
    "a long prompt": (
        {"prompt": "a" * 12}, "a prompt of 13 tokens is too long.\n  values: 12 at most\n  fix: shorten it."
    ),
    "many tokens": (
        {"max_tokens": 17}, "max_tokens is 17.\n  fix: give a number, 0 or more, and 16 at most."
    ),
    "both": (
        {"prompt": "a" * 9, "max_tokens": 11},
        "a prompt of 10 tokens and 11 more are too long.\n  values: 20 at most\n"
        "  fix: ask for fewer, or shorten the prompt.",
    ),
    "stop": (
        {"stop": ["a", ""]},
        "what stops a text is a string, or a list of strings.\n  rule: at most 16, none of them empty.\n"
        '  fix: for example ["\\n\\n", "END"].',
    ),
    "a bias": (
        {"logit_bias": {"3": 5}}, "logit_bias can only ban tokens.\n  fix: give each the number -100, by its token."
    ),
    "another model": ({"model": "tea"}, "there is no model 'tea'.\n  fix: name 'letters', or none."),
}  # fmt: skip


@pytest.mark.parametrize(("fields", "words"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(fields, words):
    default = {} if fields == {} else {"prompt": "a", "max_tokens": 3}
    with pytest.raises(Refusal) as refused:
        read(**(default | fields))
    assert str(refused.value) == words
    (field,) = set(fields) - {"n", "max_tokens"} or set(fields) or {"prompt"}
    assert refused.value.status == (404 if field == "model" else 400) and refused.value.param is not None
    error = refused.value.body["error"]
    assert error["message"] == " ".join(line.strip() for line in words.splitlines())
    assert error["type"] == "invalid_request_error" and not refused.value.headers


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            b"",
            "the body is not JSON.\n  values: Expecting value: line 1 column 1 (char 0)\n  fix: send one JSON object.",
        ),
        (b"[1]", "the body is not an object.\n  values: a list\n  fix: send one JSON object."),
        (b"3", "the body is not an object.\n  values: a whole number\n  fix: send one JSON object."),
    ],
)
def test_no_object(body, words):
    with pytest.raises(Refusal) as refused:
        read_completion(body, Letters(), LIMITS)
    assert str(refused.value) == words


def letters(text):
    return [ord(letter) - 95 for letter in text]


def test_a_stream_tells_only_what_stays():
    """What may be the beginning of a string that stops is held back until it is known."""
    choice = Choice(0, Request((2,), 20, stop_strings=("xyz", "yb")), Letters())
    told = []
    for part, ended in (("ax", ""), ("y", ""), ("ya", ""), ("xy", ""), ("", "length")):
        choice.take(News(letters(part), [-1.0] * len(part), ended))
        told.append(choice.read().answer(False, streams=True)["text"])
    assert told == ["a", "", "xyya", "", "xy"]

    choice = Choice(0, Request((2,), 20, stop_strings=("xyz", "yb")), Letters())
    choice.take(News(letters("ax"), [-1.0] * 2))
    first = choice.read().answer(True, streams=True)
    choice.take(News(letters("yz"), [-2.0, float("-inf")], "stop", text="a"))
    last = choice.read().answer(True, streams=True)
    assert (first["text"], first["tokens"], first["finish_reason"]) == ("a", letters("ax"), None)
    assert (last["text"], last["tokens"], last["finish_reason"]) == ("", letters("yz"), "stop")
    assert last["logprobs"] == {
        "tokens": ["y", "z"], "token_logprobs": [-2.0, None], "top_logprobs": None, "text_offset": [2, 3],
    }  # fmt: skip


def test_half_a_character_is_not_told():
    class Halves(Letters):
        def decode(self, tokens, after=()):
            return {(2,): "\N{REPLACEMENT CHARACTER}", (2, 3): "\u00e9", (): ""}[tuple(tokens)]

    choice = Choice(0, Request((2,), 20), Halves())
    told = []
    for token in (2, 3):
        choice.take(News([token], [-1.0]))
        told.append(choice.read().answer(False, streams=True)["text"])
    assert told == ["", "\u00e9"]


def test_candidates_as_openai_writes_them():
    """The token that was written is among them, whatever its rank; one without text is called by its name."""
    (request,) = read(prompt="a", max_tokens=3, logprobs=2).requests
    assert request.candidates == 2
    choice = Choice(0, request, Letters())
    choice.take(News(letters("b"), [-0.5], candidates=[[(3, -0.5), (1, -1.0)]]))
    first = choice.read().answer(True, streams=True)["logprobs"]
    choice.take(News(letters("cd"), [-3.0, -1.5], "length", candidates=[[(2, -0.25), (3, -2.5)], [(5, -1.5), (4, -2)]]))
    last = choice.read().answer(True, streams=True)["logprobs"]
    assert first["top_logprobs"] == [{"b": -0.5, "<end>": -1.0}] and first["text_offset"] == [0]
    assert last["top_logprobs"] == [{"a": -0.25, "b": -2.5, "c": -3.0}, {"d": -1.5, "c": -2}]
    assert [list(told) for told in last["top_logprobs"]] == [["a", "b", "c"], ["d", "c"]]
    assert last["tokens"] == ["c", "d"] and last["text_offset"] == [1, 2]
