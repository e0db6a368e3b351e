"""What a model thinks of texts that are there already."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..dim import Dim
from ..errors import ArgumentError
from ..layout import Layout, RulesLike
from ..mesh import Mesh
from ..models.contract import LanguageModel
from ..ops import softmax_cross_entropy
from ..ops import sum as sum_
from ..plan.cost.limits import memory_there
from ..plan.explain.report import explain
from ..plan.printing.units import show_bytes
from ..program import Program, put, spmd
from ..tensors import Tensor, tensor
from .slots import SMALLEST_BUCKET, power_of_two

_AT_ONCE = 1 << 13  # tokens


def score(
    model: LanguageModel, mesh: Mesh, layout: Layout | RulesLike, texts: Sequence[Sequence[int]], batch: int = 8
) -> list[float]:
    """Returns the log-probability of each text in nats: of all its tokens after the first.

    Texts of about one length (up to the next power of two) are read together, long ones one by one.

    Args:
        model: the model.
        mesh: the processors.
        layout: which dims are split over which mesh axes.
        texts: tokens; of each text at least one.
        batch: how many texts are read at once, at most.
    """
    if not all(texts):
        raise ArgumentError("a text without tokens has no probability.", fix="leave it out.")

    def of_each(model: Any, tokens: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        losses = softmax_cross_entropy(model(tokens).astype("float32"), targets, over="vocab")
        return sum_(losses * weights, "positions")

    program = spmd(of_each, mesh, layout)
    model = put(model, mesh, layout)
    buckets: dict[int, list[int]] = {}
    for i, text in enumerate(texts):
        buckets.setdefault(max(power_of_two(len(text) - 1), SMALLEST_BUCKET), []).append(i)
    scores = [0.0] * len(texts)
    for length, members in sorted(buckets.items(), reverse=True):  # what does not fit is found first
        together = max(1, min(batch, _AT_ONCE // length))
        for start in range(0, len(members), together):
            group = members[start : start + together]
            tokens, targets, weights = (np.zeros((together, length), kind) for kind in (np.int32, np.int32, np.float32))
            for row, i in enumerate(group):
                count = len(texts[i]) - 1
                tokens[row, :count], targets[row, :count], weights[row, :count] = texts[i][:-1], texts[i][1:], 1
            dims = Dim("batch", together), Dim("length", length)
            after = Dim("batch", together), Dim("positions", length)
            arguments = model, tensor(tokens, dims), tensor(targets, after), tensor(weights, after)
            if start == 0 and together < batch:
                _check_memory(program, arguments, max(len(texts[i]) for i in members))
            losses = program(*arguments).numpy()
            for row, i in enumerate(group):
                scores[i] = -float(losses[row])
    return scores


def _check_memory(program: Program[..., Any], arguments: tuple[Any, ...], longest: int) -> None:
    """Raises if texts so long do not fit: an operating system would end the process without a word."""
    needs, limit = explain(program, *arguments).memory["peak"], memory_there(program.mesh)
    if needs > limit:
        raise ArgumentError(
            f"a text of {longest:,} tokens is too long to be read at once.",
            values=f"{show_bytes(needs)} predicted, of {show_bytes(limit)} on each processor",
            rule="attention compares all tokens of a text with each other.",
            fix="score it in parts, or on more processors.",
        )
