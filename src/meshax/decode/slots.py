"""The texts that are being written, and what the devices are told of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..dim import Dim
from ..tensors import Tensor, tensor
from .choosing import Wishes
from .requests import Request, Written
from .texts import Spelling

SMALLEST_BUCKET = 16  # tokens: shorter texts are read as if they had so many
_LISTS = ("banned", "forced")
_WHOLE = ("seed", "top_k", "candidates", "log_probabilities")


@dataclass
class Slot:
    """A text that is being written."""

    number: int
    request: Request
    written: Written
    spelling: Spelling | None = None  # where strings may stop it

    @property
    def length(self) -> int:
        """How many tokens it has so far, its prompt included."""
        return len(self.request.prompt) + len(self.written.tokens)

    @property
    def left(self) -> int:
        """How many tokens may still come."""
        return self.request.tokens - len(self.written.tokens)

    @property
    def last(self) -> int:
        """The last token so far."""
        return (self.written.tokens or self.request.prompt)[-1]


def wishes_of(request: Request) -> dict[str, Any]:
    """Returns what a request asks for beyond the likeliest token, by name."""
    usual: dict[str, Any] = {"repetition_penalty": 1.0, "banned": (), "forced": (), "candidates": 0}
    usual |= {"log_probabilities": False}
    if request.temperature > 0:
        usual |= {"temperature": 0.0, "seed": None, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    return {name: getattr(request, name) for name, value in usual.items() if getattr(request, name) != value}


def state_of(slots: Sequence[Slot | None], batch: Dim, vocab: Dim, asked: set[str]) -> dict[str, Any]:
    """Returns what a program needs to know of the slots, free ones included.

    `token` is the last one of each text, -1 if there is none, and `at` its position; `begin` and `end` are those of the
    last token of the prompt, and of the last one that may be written.

    Args:
        slots: the texts.
        batch: the dim of the slots.
        vocab: the dim of the tokens.
        asked: the wishes that a program knows; a slot whose request does not ask for one gets what changes nothing.
    """
    nothing = {"top_k": vocab.size, "top_p": 1.0, "repetition_penalty": 1.0}

    def numbers(of: Callable[[Slot], Any], free: Any, dtype: Any = np.int32) -> Tensor:
        values = np.array([free if slot is None else of(slot) for slot in slots])
        return tensor(values.astype(np.uint32).view(np.int32) if dtype == np.int32 else values.astype(dtype), (batch,))

    def lists(of: Callable[[Slot], Sequence[int]], name: str) -> Tensor:
        rows = [() if slot is None else tuple(of(slot)) for slot in slots]
        width = power_of_two(max(map(len, rows)))  # few widths, few programs
        padded = np.array([[*row, *[-1] * (width - len(row))] for row in rows], np.int32)
        return tensor(padded, (batch, Dim(name, width)))

    def wish(name: str) -> Tensor:
        if name in _LISTS:
            return lists(lambda slot: getattr(slot.request, name), name)
        usual = nothing.get(name, 0)
        kind = np.int32 if name in _WHOLE else np.float32
        return numbers(lambda slot: wishes_of(slot.request).get(name, usual), usual, kind)

    seen = None
    if "repetition_penalty" in asked:
        whole = np.zeros((batch.size, vocab.size), np.bool_)
        for row, slot in zip(whole, slots, strict=True):
            if slot is not None:
                row[[*slot.request.prompt, *slot.written.tokens]] = True
        seen = tensor(whole, (batch, vocab))
    return {
        "token": numbers(lambda slot: slot.last, -1),
        "at": numbers(lambda slot: slot.length - 1, 0),
        "begin": numbers(lambda slot: len(slot.request.prompt) - 1, 0),
        "end": numbers(lambda slot: slot.length - 1 + slot.left, 0),
        "stop": lists(lambda slot: slot.request.stop, "stop"),
        "wishes": Wishes(**{name: wish(name) for name in sorted(asked)}),
        "seen": seen,
    }


def power_of_two(number: int) -> int:
    """Returns the least power of two that is not less than a number."""
    return 1 << max(number - 1, 0).bit_length()
