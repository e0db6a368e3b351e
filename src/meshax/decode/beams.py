"""Beam search: the likeliest texts, by keeping the best few beginnings at every length.

Each prompt has so many beams: live ones, which go on, and places for finished ones. A step takes of all continuations
of the live ones the best two for each beam (one more for each further token that ends a text), or all of them where the
vocabulary is no larger. Those that end compete with the finished ones by their score, the log-probability divided by a
penalty of the length, which counts the token that ends the text:

    "paper":  ((5 + n) / 6) ^ alpha        "power":  n ^ alpha

The best of the others live on. A prompt is done when all its finished places are taken and no live beam can overtake
the worst of them, not even with the penalty of the longest text: going on would change nothing. Live beams that reach
the longest text come after all finished ones.

Ties: the beam that ranks first comes first, then the smaller token; a text that has finished earlier comes first. So it
is under every layout: of a split vocabulary each processor offers as many candidates as a beam may need.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..dim import Dim
from ..errors import ArgumentError, did_you_mean
from ..layout import Layout, RulesLike
from ..mesh import Mesh
from ..models.contract import Model
from ..ops import all as all_
from ..ops import any as any_
from ..ops import arange, broadcast, concat, gather, log_softmax, maximum, reshape, scan, top_k, transpose, where
from ..ops import max as max_
from ..ops import min as min_
from ..program import Program, spmd
from ..tensors import Tensor, is_tensor, tensor
from .choosing import are_in, penalized
from .reordering import assign_places, inverse, moved
from .requests import Request
from .room import Room
from .slots import power_of_two

PENALTIES = ("paper", "power")
_NOTHING = -math.inf  # the score of a beam that does not exist


@dataclass(frozen=True)
class Hypothesis:
    """A text that beam search has found."""

    tokens: list[int]  # without the one that ended it
    score: float  # the log-probability divided by the penalty of the length
    log_probability: float
    is_finished: bool  # whether a token has ended it, not the longest length


class Beams(eqx.Module):
    """The beams of every prompt: [batch, beam, ..]; a beam that is not there has a log-probability of -inf."""

    tokens: Tensor  # [batch, beam, outputs]
    likely: Tensor
    last: Tensor  # the token that the next step takes
    place: Tensor  # where what is kept of it stands in the cache
    done_tokens: Tensor  # [batch, beam, outputs]
    done_score: Tensor
    done_likely: Tensor
    done_length: Tensor


class BeamSearch:
    """Searches with a model on a mesh under a layout; the layout places beams as it places everything."""

    def __init__(
        self,
        model: Model,
        mesh: Mesh,
        layout: Layout | RulesLike,
        *,
        beams: int = 4,
        length_penalty: str = "paper",
        alpha: float = 0.6,
        slots: int = 8,
        places: int = 1024,
        page: int = 128,
        source_places: int = 0,
        chunk: int = 16,
    ):
        """Makes room for beams.

        Args:
            model: the model; placed on the mesh if it is not.
            mesh: the processors.
            layout: which dims are split over which mesh axes.
            beams: how many beginnings of a text live on.
            length_penalty: by its name, "paper" or "power".
            alpha: its exponent; 0: lengths do not count.
            slots: how many prompts are searched for at once.
            places: how many tokens a text has at most, its prompt included.
            page: how many tokens a page of the cache holds.
            source_places: how many tokens a source has at most, of a model that reads one; 0: as many as a text.
            chunk: how many tokens are added before it is looked whether a search is done.
        """
        if length_penalty not in PENALTIES:
            raise ArgumentError(
                f"there is no length penalty {length_penalty!r}.", fix=did_you_mean(length_penalty, PENALTIES)
            )
        if not 0 <= alpha < math.inf or beams < 1:
            raise ArgumentError(
                "beams are 1 or more, and the exponent of the length penalty is a number, not negative.",
                values=f"beams {beams}, alpha {alpha}",
                rule="a search is done when no longer text can score higher.",
                fix="for example beams=4, alpha=0.6.",
            )
        self.batch, self.beam, self.chunk = Dim("batch", slots), Dim("beam", beams), Dim("chunk", chunk)
        self.length_penalty, self.alpha = length_penalty, alpha
        self.room = Room(model, mesh, layout, (self.batch, self.beam), places, page, source_places)
        self.steps: dict[Any, Program[..., Any]] = {}  # for each number of pages that they read, and of candidates

    def search(self, requests: Sequence[Request]) -> Iterator[list[Hypothesis]]:
        """Yields for each request, in their order, the texts found, the best first: at most as many as there are beams.

        Args:
            requests: their prompts, sources, `tokens`, `forced`, `banned`, `repetition_penalty` and `stop` count;
                nothing is drawn.
        """
        for request in requests:
            self.room.check(request)
            if request.stop_strings:
                raise ArgumentError(
                    "no string stops a search.", values=repr(request.stop_strings[0]),
                    rule="whether a text ends is known by its last token.", fix="stop by tokens, or draw.",
                )  # fmt: skip
        for start in range(0, len(requests), self.batch.size):
            yield from self._searched(requests[start : start + self.batch.size])

    def _searched(self, requests: Sequence[Request]) -> list[list[Hypothesis]]:
        batch, beam = self.batch, self.beam
        rows = [*requests, *[None] * (batch.size - len(requests))]
        outputs = Dim("outputs", power_of_two(max(request.tokens for request in requests)))

        def numbers(values: Sequence[Any]) -> Tensor:
            return tensor(np.array(values, np.int32), (batch,))

        def lists(values: Sequence[Sequence[int]], name: str) -> Tensor:
            width = power_of_two(max(map(len, values)))
            padded = [[*row, *[-1] * (width - len(row))] for row in values]
            return tensor(np.array(padded, np.int32), (batch, Dim(name, width)))

        quotas = [(1 + max(len(r.stop), 1)) * beam.size if r else 1 for r in rows]
        every = beam.size * self.room.vocab.size
        facts = {
            "quota": numbers([every if quota >= self.room.vocab.size else quota for quota in quotas]),
            "start": numbers([len(r.prompt) - 1 if r else 0 for r in rows]),
            "limit": numbers([r.tokens if r else 0 for r in rows]),
            "stop": lists([r.stop if r else () for r in rows], "stop"),
            "forced": lists([r.forced if r else () for r in rows], "forced"),
        }
        if any(r.banned for r in requests):
            facts["banned"] = lists([r.banned if r else () for r in rows], "banned")
        if any(r.repetition_penalty != 1 for r in requests):
            penalties = np.array([r.repetition_penalty if r else 1.0 for r in rows], np.float32)
            facts["repetition_penalty"] = tensor(penalties, (batch,))
            facts["read"] = lists([r.prompt if r else () for r in rows], "read")
        first = np.full((batch.size, beam.size), _NOTHING, np.float32)
        nothing = tensor(first.copy(), (batch, beam))
        first[:, 0] = 0
        whole = tensor(np.full((batch.size, beam.size, outputs.size), -1, np.int32), (batch, beam, outputs))
        last = np.repeat([[r.prompt[-1] if r else 0] for r in rows], beam.size, 1).astype(np.int32)
        place = np.tile(np.arange(beam.size, dtype=np.int32), (batch.size, 1))
        state = Beams(
            whole, tensor(first, (batch, beam)), tensor(last, (batch, beam)), tensor(place, (batch, beam)), whole,
            nothing, nothing, tensor(np.zeros((batch.size, beam.size), np.int32), (batch, beam)),
        )  # fmt: skip
        cache = self.room.fill(self.room.empty(), dict(enumerate(requests)))
        lengths = [len(request.prompt) for request in requests]
        shared = min(lengths) // self.room.page  # pages: those of the prompt are the same in all beams
        made, is_done = 0, False
        while not is_done:
            num_pages = self.room.pages(max(lengths) + made + self.chunk.size - 1)
            size = num_pages, power_of_two(shared + 1) // 2, max(quotas)  # few numbers, few programs
            if size not in self.steps:
                layout = self.room.layout_of_a_step
                self.steps[size] = spmd(self._stepped(*size), self.room.mesh, layout, donate=(1, 2))
            number = tensor(np.int32(made), ())
            cache, state, done = self.steps[size](self.room.model, cache, state, facts, number)
            made, is_done = made + self.chunk.size, bool(done)
        arrays = [x.numpy() for x in jax.tree.leaves(state, is_leaf=is_tensor)]
        return [self._hypotheses(request, [x[row] for x in arrays]) for row, request in enumerate(requests)]

    def _hypotheses(self, request: Request, row: list[np.ndarray]) -> list[Hypothesis]:
        tokens, likely, _, _, done_tokens, score, done_likely, length = row
        texts = [
            Hypothesis(done_tokens[i, : length[i] - 1].tolist(), float(score[i]), float(done_likely[i]), True)
            for i in range(self.beam.size)
            if score[i] > _NOTHING
        ]
        longest = max(request.tokens, 1)
        penalty = ((5 + longest) / 6 if self.length_penalty == "paper" else longest) ** self.alpha
        texts += [
            Hypothesis(tokens[i, : request.tokens].tolist(), float(likely[i]) / penalty, float(likely[i]), False)
            for i in range(self.beam.size)
            if likely[i] > _NOTHING
        ]
        return texts[: self.beam.size]

    def _penalty(self, length: Tensor) -> Tensor:
        count = maximum(length, 1).astype(jnp.float32)
        return ((count + 5.0) / 6.0 if self.length_penalty == "paper" else count) ** self.alpha

    def _stepped(self, num_pages: int, num_shared: int, quota: int) -> Any:
        every = -(-self.room.places // self.room.page)
        pages = range(num_shared, min(num_pages, every))

        def steps(model: Any, cache: Any, beams: Beams, facts: dict[str, Tensor], made: Tensor) -> Any:
            def step(carry: Any, _: Any) -> Any:
                cache, beams, made = carry
                at = broadcast(facts["start"] + made, (self.batch, self.beam))
                logits, cache = model.step(_taken(beams.last, inverse(beams.place)), at, cache, num_pages)
                beams, comes = self._advanced(beams, logits.astype(jnp.float32), facts, made, quota)
                return (moved(cache, comes, pages, every), beams, made + 1), None

            (cache, beams, made), _ = scan(step, (cache, beams, made), over=self.chunk)
            best = max_(beams.likely, self.beam) / self._penalty(facts["limit"])
            is_settled = min_(beams.done_score, self.beam) >= best  # -inf, if there is a place left
            return cache, beams, all_(is_settled | (facts["limit"] <= made))

        return steps

    def _advanced(
        self, beams: Beams, logits: Tensor, facts: dict[str, Tensor], made: Tensor, quota: int
    ) -> tuple[Beams, Tensor]:
        """Returns the beams with one token more, and from where each place of the cache gets what it has then."""
        beam = self.beam
        likely, words, parents = self._candidates(beams, logits, facts, made, quota)
        is_going = facts["limit"] > made
        ends = any_(facts["stop"] == words, "stop")
        texts = where(arange(beams.tokens.dim("outputs")) == made, words, gather(beams.tokens, parents, beam))

        ended = where(ends & is_going, likely, _NOTHING)
        either = [
            concat([old.rename(beam="either"), new.rename(best="either")], "either")
            for old, new in (
                (beams.done_score, ended / self._penalty(made + 1)),
                (beams.done_likely, ended),
                (beams.done_length, words * 0 + (made + 1)),
                (beams.done_tokens, texts),
            )
        ]
        score, which = top_k(either[0], over="either", k=beam)
        done_likely, done_length, done_tokens = (gather(x, which, "either") for x in either[1:])

        alive, which = top_k(where(ends, _NOTHING, likely), over="best", k=beam)
        tokens, last, parent = (gather(x, which, "best") for x in (texts, words, parents))
        place, comes = assign_places(_taken(beams.place, parent))
        after = Beams(tokens, alive, last, place, done_tokens, score, done_likely, done_length)
        kept = jax.tree.map(lambda new, old: where(is_going, new, old), after, beams, is_leaf=is_tensor)
        return kept, where(is_going, comes, arange(beam))

    def _candidates(
        self, beams: Beams, logits: Tensor, facts: dict[str, Tensor], made: Tensor, quota: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the best continuations of all beams of a prompt, [batch, best]: log-probabilities, tokens, beams.

        The logits come in the order of the cache; of what each beam offers the beams' own order is made.
        """
        batch, beam, vocab = self.batch, self.beam, logits.dim("vocab")
        each = Dim("each", min(quota, vocab.size))
        flat = Dim("flat", beam.size * each.size)
        best = Dim("best", flat.size if each.size == vocab.size else each.size)
        who = inverse(beams.place)
        if "repetition_penalty" in facts:
            seen = are_in(_taken(beams.tokens, who), "outputs", vocab) | are_in(facts["read"], "read", vocab)
            logits = penalized(logits, seen, facts["repetition_penalty"])
        total = log_softmax(logits, over=vocab) + _taken(beams.likely, who)
        forced = facts["forced"]
        must = max_(where(arange(forced.dim("forced")) == made, forced, -1), "forced")
        is_out = (must >= 0) & (arange(vocab) != must)
        if "banned" in facts:
            is_out = is_out | ((must < 0) & are_in(facts["banned"], "banned", vocab))
        values, words = (_taken(x, beams.place) for x in top_k(where(is_out, _NOTHING, total), over=vocab, k=each))
        values, words = (reshape(transpose(x, (batch, beam, each)), (batch, flat)) for x in (values, words))
        likely, places = top_k(values, over=flat, k=best)
        likely = where(arange(best) < facts["quota"], likely, _NOTHING)  # of a prompt's own, whatever others ask for
        return likely, gather(words, places, flat), places // each.size


def _taken(x: Tensor, which: Tensor) -> Tensor:
    """Returns what some beams have, [batch, beam]."""
    return gather(x, which.rename(beam="to"), "beam").rename(to="beam")
