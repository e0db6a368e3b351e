"""`/v1/completions`: from the body of a request to what is asked of a model, and from what it writes to the answer.

Fields are OpenAI's, with the same defaults; `top_k`, `min_p` and `repetition_penalty` are ours. A field that is not
known, or that asks for what the engine cannot do, is refused: an answer to another question helps nobody.
"""

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..decode import Request
from ..decode.likelihoods import logprobs_of
from ..decode.requests import MAX_CANDIDATES, MAX_SEED
from ..decode.texts import Spelling, sure_part
from ..errors import ArgumentError, did_you_mean
from .batching import News
from .refusals import Refusal

_MAX_STOPS = 16
_KINDS = {
    "prompt": (str, list), "model": (str,), "max_tokens": (int,), "temperature": (int, float), "top_p": (int, float),
    "min_p": (int, float), "repetition_penalty": (int, float), "top_k": (int,), "n": (int,), "stop": (str, list),
    "seed": (int,), "stream": (bool,), "stream_options": (dict,), "logprobs": (int,), "echo": (bool,),
    "best_of": (int,), "suffix": (str,), "logit_bias": (dict,), "presence_penalty": (int, float),
    "frequency_penalty": (int, float), "user": (str,),
}  # fmt: skip
_NAMES = {str: "a string", int: "a whole number", float: "a number", bool: "true or false", list: "a list"}
_NAMES |= {dict: "an object", type(None): "null"}
# What these ask for the engine cannot do: they may say only that it is not asked for.
_ONLY: dict[str, tuple[Any, str]] = {
    "echo": (False, "put the prompt before the text yourself."),
    "suffix": ("", "leave it out."),
    "presence_penalty": (0, "use repetition_penalty."),
    "frequency_penalty": (0, "use repetition_penalty."),
}


class Words(Protocol):
    """A vocabulary."""

    begin: int
    stops: tuple[int, ...]  # the tokens that end a text

    def encode(self, text: str) -> list[int]:
        """Returns the tokens of a text."""
        ...

    def decode(self, tokens: Sequence[int], after: Sequence[int] = ()) -> str:
        """Returns the text of tokens that come after others."""
        ...

    def name_of(self, token: int) -> str:
        """Returns what a token is called."""
        ...


@dataclass(frozen=True)
class Limits:
    """What a request may ask for at most."""

    name: str  # of the model
    vocab: int  # how many tokens there are
    places: int  # of a text, its prompt included
    prompt: int
    tokens: int
    texts: int  # of one request: as many as may wait and be written together


@dataclass(frozen=True)
class Completion:
    """What a request asks for."""

    requests: tuple[Request, ...]  # of each prompt as many as `n`, one prompt after the other
    num_prompt_tokens: int
    streams: bool = False
    counts_at_end: bool = False  # of a stream: whether it ends with the numbers of tokens
    tells_likely: bool = False


def read_completion(body: bytes, words: Words, limits: Limits) -> Completion:
    """Reads the body of a request, or raises a `Refusal`."""
    asked = _checked(body)
    if asked.get("model", limits.name) != limits.name:
        raise Refusal(
            f"there is no model {asked['model']!r}.", status=404, param="model", code="model_not_found",
            fix=f"name {limits.name!r}, or none.",
        )  # fmt: skip
    for name, (only, fix) in _ONLY.items():
        if asked.get(name, only) != only:
            raise Refusal(f"{name} is not supported.", param=name, values=repr(asked[name]), fix=fix)
    count, tokens, told = asked.get("n", 1), asked.get("max_tokens", 16), asked.get("logprobs", 0)
    if not 0 <= told <= MAX_CANDIDATES:
        raise Refusal(f"logprobs is {told}.", param="logprobs", fix=f"give a number, 0 to {MAX_CANDIDATES}.")
    if count < 1 or asked.get("best_of", count) != count:
        raise Refusal(
            "n texts are written for each prompt, 1 or more, and all of them are answered.", param="n",
            values=f"n {count}, best_of {asked.get('best_of', count)}", fix="leave best_of out.",
        )  # fmt: skip
    prompts = _prompts(asked.get("prompt"), words)
    if len(prompts) * count > limits.texts:
        raise Refusal(
            f"{len(prompts) * count} texts are more than one request may ask for.", param="n",
            values=f"{limits.texts} at most", fix="send several requests.",
        )  # fmt: skip
    for prompt in prompts:
        _check_lengths(len(prompt), tokens, limits)
    seed = asked["seed"] if "seed" in asked else secrets.randbelow(MAX_SEED - count)
    options: dict[str, Any] = {
        name: float(asked[name]) for name in ("top_p", "min_p", "repetition_penalty") if name in asked
    } | {
        "temperature": float(asked.get("temperature", 1.0)),
        "top_k": asked.get("top_k", 0),
    }
    try:
        requests = tuple(
            Request(
                prompt, tokens, stop=tuple(words.stops), stop_strings=_stops(asked.get("stop", ())), seed=seed + i,
                banned=_banned(asked.get("logit_bias", {})), candidates=told, **options,
            )
            for prompt in prompts
            for i in range(count)
        )  # fmt: skip
    except ArgumentError as error:
        name = str(error).partition(" is ")[0]
        raise Refusal(str(error), param=name if name in _KINDS else None) from None
    for request in requests[::count]:
        if wrong := [token for token in (*request.prompt, *request.banned) if not 0 <= token < limits.vocab]:
            raise Refusal(
                f"there is no token {wrong[0]}.", param="prompt" if wrong[0] in request.prompt else "logit_bias",
                values=f"{limits.vocab} tokens", fix="encode with its vocabulary.",
            )  # fmt: skip
    return Completion(
        requests,
        sum(map(len, prompts)),
        asked.get("stream", False),
        asked.get("stream_options", {}).get("include_usage", False) is True,
        "logprobs" in asked,
    )


def _checked(body: bytes) -> dict[str, Any]:
    """Returns the fields that a body has, each of the right kind."""
    try:
        asked = json.loads(body, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is one too
        raise Refusal("the body is not JSON.", values=str(error), fix="send one JSON object.") from None
    if not isinstance(asked, dict):
        raise Refusal("the body is not an object.", values=_NAMES[type(asked)], fix="send one JSON object.")
    asked = {name: value for name, value in asked.items() if value is not None}
    for name, value in asked.items():
        if name not in _KINDS:
            raise Refusal(f"there is no field {name!r}.", param=name, fix=did_you_mean(name, _KINDS))
        if type(value) not in _KINDS[name]:
            kinds = " or ".join(_NAMES[kind] for kind in _KINDS[name] if kind is not float)
            if float in _KINDS[name]:
                kinds = _NAMES[float]
            raise Refusal(f"{name} is {_NAMES[type(value)]}.", param=name, fix=f"give {kinds}.")
        if float in _KINDS[name] and abs(value) > 1e30:
            raise Refusal(f"{name} is too large.", param=name, fix="give a smaller number.")
    return asked


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def _prompts(prompt: Any, words: Words) -> list[tuple[int, ...]]:
    """Returns the tokens of each prompt; those of a text come after the token that begins a document."""
    if prompt is None or prompt == []:
        raise Refusal("there is no prompt.", param="prompt", fix="give a string, tokens, or a list of either.")
    if isinstance(prompt, str) or all(type(token) is int for token in prompt):
        prompt = [prompt]
    if all(isinstance(one, str) for one in prompt):
        try:
            "".join(prompt).encode()
        except UnicodeEncodeError:
            raise Refusal(
                "the prompt has half a character.", param="prompt", fix="write both surrogates, or the character."
            ) from None
        return [(words.begin, *words.encode(one)) for one in prompt]
    if all(isinstance(one, list) and one and all(type(token) is int for token in one) for one in prompt):
        return [tuple(one) for one in prompt]
    raise Refusal(
        "a prompt is a string, or a list of tokens.", param="prompt", rule="several prompts are of one kind.",
        fix="give a string, tokens, or a list of either.",
    )  # fmt: skip


def _check_lengths(prompt: int, tokens: int, limits: Limits) -> None:
    code = "context_length_exceeded"
    if prompt > limits.prompt:
        raise Refusal(
            f"a prompt of {prompt} tokens is too long.", param="prompt", code=code,
            values=f"{limits.prompt} at most", fix="shorten it.",
        )  # fmt: skip
    if not 0 <= tokens <= limits.tokens:
        raise Refusal(
            f"max_tokens is {tokens}.",
            param="max_tokens",
            fix=f"give a number, 0 or more, and {limits.tokens} at most.",
        )
    if prompt + tokens > limits.places:
        raise Refusal(
            f"a prompt of {prompt} tokens and {tokens} more are too long.", param="max_tokens", code=code,
            values=f"{limits.places} at most", fix="ask for fewer, or shorten the prompt.",
        )  # fmt: skip


def _stops(stop: Any) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    if len(stops) > _MAX_STOPS or not all(isinstance(one, str) and one for one in stops):
        raise Refusal(
            "what stops a text is a string, or a list of strings.", param="stop",
            rule=f"at most {_MAX_STOPS}, none of them empty.", fix='for example ["\\n\\n", "END"].',
        )  # fmt: skip
    return stops


def _banned(bias: dict[str, Any]) -> tuple[int, ...]:
    if not all(name.isdecimal() and value == -100 for name, value in bias.items()):
        raise Refusal(
            "logit_bias can only ban tokens.", param="logit_bias", fix="give each the number -100, by its token."
        )
    return tuple(map(int, bias))


@dataclass
class Choice:
    """A text of the answer, as far as it is written."""

    index: int
    request: Request
    words: Words
    tokens: list[int] = field(default_factory=list)
    log_probabilities: list[float] = field(default_factory=list)
    candidates: list[list[tuple[int, float]]] = field(default_factory=list)
    ended_by: str = ""
    cut: str | None = None  # where a string stopped it: the text before
    text: str = ""  # what of it is sure, by `read`
    num_told: int = 0  # characters and tokens that a stream has told
    num_told_tokens: int = 0

    def __post_init__(self) -> None:
        """Begins two spellings: one of what is written, one of what was told of its tokens."""
        self._read, self._told = (Spelling(self.words.decode, self.request.prompt) for _ in range(2))
        self._num_read = 0

    def take(self, news: News) -> None:
        """Takes in what is new."""
        self.tokens += news.tokens
        self.log_probabilities += news.log_probabilities
        self.candidates += news.candidates
        self.ended_by, self.cut = news.ended_by, news.text

    def read(self) -> "Choice":
        """Makes text of the tokens: all that may not be cut any more, and without half a character."""
        self._read.add(self.tokens[self._num_read :])
        self._num_read = len(self.tokens)
        whole = self._read.text if self.cut is None else self.cut
        self.text = whole if self.ended_by else sure_part(whole, self.request.stop_strings)
        return self

    def answer(self, tells_likely: bool, streams: bool = False) -> dict[str, Any]:
        """Returns the choice as OpenAI writes it, with its seed and tokens; of a stream, what was not told yet."""
        start, first = (self.num_told, self.num_told_tokens) if streams else (0, 0)
        self.num_told, self.num_told_tokens = max(len(self.text), start), len(self.tokens)
        return {
            "index": self.index,
            "text": self.text[start:],
            "tokens": self.tokens[first:],
            "seed": self.request.seed,
            "logprobs": self._likely(first) if tells_likely else None,
            "finish_reason": self.ended_by or None,
        }

    def _likely(self, first: int) -> dict[str, Any]:
        rivals = self.candidates[first:] if self.request.candidates else None
        likely = self.log_probabilities[first:]
        return logprobs_of(self.tokens[first:], likely, rivals, self._told, self.words.name_of)


def usage_of(completion: Completion, choices: Sequence[Choice]) -> dict[str, int]:
    """Returns how many tokens were read and written."""
    written = sum(len(choice.tokens) for choice in choices)
    read = completion.num_prompt_tokens
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
