"""Choosing the next token of each slot, exactly, over a vocabulary that may be split.

No logits are gathered. A cut-off (the k likeliest; the likeliest that together have probability p) is a threshold,
which is searched for: each of eight rounds counts, for fifteen thresholds at once, what lies above, and settles four
bits. What is counted is whole numbers, probabilities too: their sum does not depend on the order, and so not on the
layout. A draw adds noise to each logit and takes the largest (Gumbel's way); the noise of a token follows from the
request's seed, the position and the token's number, so no slot, batch or layout changes it.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.extend
import jax.numpy as jnp
import numpy as np

from ..dim import Dim, DimLike
from ..ops import any as any_
from ..ops import arange, argmax, exp, gather, lift, log, logsumexp, maximum, minimum, scatter_add, top_k, where, zeros
from ..ops import max as max_
from ..ops import sum as sum_
from ..tensors import Tensor, tensor
from .requests import MAX_CANDIDATES

_VOCAB = "vocab"
_BITS = 4  # of a threshold, settled in a round
_RUNGS = Dim("rungs", 2**_BITS - 1)
_DOMAIN = 0x6D657368  # half of the key of all draws; the other half is the seed


class Wishes(eqx.Module):
    """What the requests in the slots ask for: numbers of each slot, [slots..]; None where no request asks for it."""

    temperature: Tensor | None = None
    seed: Tensor | None = None
    top_k: Tensor | None = None
    top_p: Tensor | None = None
    min_p: Tensor | None = None
    repetition_penalty: Tensor | None = None
    banned: Tensor | None = None  # [slots.., banned], -1 where there is none
    forced: Tensor | None = None  # [slots.., forced], likewise
    candidates: Tensor | None = None  # where somebody asks for some, as many as may be asked for are told
    log_probabilities: Tensor | None = None


def choose(logits: Tensor, wishes: Wishes, at: Tensor, made: Tensor, seen: Tensor | None) -> Tensor:
    """Returns the next token of each slot.

    Args:
        logits: as the model predicts it, float32 [slots.., vocab].
        wishes: how to choose.
        at: the position that the token will have.
        made: how many tokens of the slot have been chosen.
        seen: which tokens are in the text of each slot, [slots.., vocab].

    Communication: if the vocabulary is split, all-reduces of a few numbers: two for the likeliest, two for a draw, and
    eight of fifteen numbers for each kind of cut-off.
    """
    vocab = logits.dim(_VOCAB)
    if wishes.repetition_penalty is not None and seen is not None:
        logits = penalized(logits, seen, wishes.repetition_penalty)
    if wishes.banned is not None:
        logits = where(are_in(wishes.banned, "banned", vocab), -math.inf, logits)
    if wishes.temperature is not None:
        logits = _with_noise(logits, wishes, at)
    token = argmax(logits, vocab)
    if wishes.forced is not None:
        inside = made < wishes.forced.dim("forced").size
        forced = where(inside, gather(wishes.forced, made, "forced"), -1)
        token = where(forced >= 0, forced, token)
    return token


def penalized(logits: Tensor, seen: Tensor, penalty: Tensor) -> Tensor:
    """Returns the logits, those of tokens that were seen divided by a penalty, or multiplied if negative."""
    return where(seen, where(logits > 0, logits / penalty, logits * penalty), logits)


def are_in(some: Tensor, dim: str, vocab: Dim) -> Tensor:
    """Returns which tokens are in lists, [slots.., vocab] of [slots.., dim]; -1 is none."""
    slots = tuple(d for d in some.dims if d.name != dim)
    return scatter_add(zeros((*slots, vocab), jnp.int32), some, some * 0 + 1, vocab) > 0


def _with_noise(logits: Tensor, wishes: Wishes, at: Tensor) -> Tensor:
    """Returns numbers of which the largest is the draw; where the temperature is 0, the logits."""
    assert wishes.temperature is not None and wishes.seed is not None
    is_greedy = wishes.temperature == 0
    warm = logits / where(is_greedy, 1.0, wishes.temperature)
    kept = None
    if wishes.top_k is not None:
        kept = _above(warm, (warm > -math.inf).astype(jnp.int32), wishes.top_k)
    if wishes.top_p is not None:
        shares = _shares(warm if kept is None else where(kept, warm, -math.inf))
        least = lift(jnp.ceil)(wishes.top_p * sum_(shares, _VOCAB).astype(jnp.float32))
        likeliest = _above(warm, shares, maximum(least.astype(jnp.int32), 1))
        kept = likeliest if kept is None else kept & likeliest
    if wishes.min_p is not None:
        likely = warm >= max_(warm, _VOCAB) + log(maximum(wishes.min_p, 1e-30))
        kept = likely if kept is None else kept & likely
    drawn = warm + _noise(wishes.seed, at, arange(logits.dim(_VOCAB)))
    drawn = drawn if kept is None else where(kept, drawn, -math.inf)
    return where(is_greedy, logits, drawn)


def _above(x: Tensor, weights: Tensor, wanted: Tensor) -> Tensor:
    """Returns which elements along the vocabulary are not below the highest threshold above which there is enough.

    Args:
        x: numbers.
        weights: how much each counts, int32.
        wanted: how much is enough; all, if there is less.
    """
    order = _ordered(x)
    wanted = minimum(wanted, counted(weights, _VOCAB))
    threshold = where(wanted == wanted, -(2**31), 0).astype(jnp.int32)
    for shift in range(32 - _BITS, -1, -_BITS):
        rungs = np.array([rung << shift for rung in range(1, 2**_BITS)], np.uint32).view(np.int32)
        ladder = threshold + tensor(rungs, (_RUNGS,))  # wraps around where it passes 2^31
        enough = counted(where(order >= ladder, weights, 0), _VOCAB) >= wanted
        threshold = threshold + _shifted(counted(enough, _RUNGS), shift=shift)
    return order >= threshold


def counted(x: Tensor, over: DimLike) -> Tensor:
    """Returns a sum of whole numbers or truths, int32: with `jax_enable_x64` that of `sum` has 64 bits."""
    return sum_(x, over).astype(jnp.int32)


_shifted = lift(lambda number, shift: jnp.left_shift(number, shift), name="shifted")


def _order_of(x: Any) -> Any:
    bits = jax.lax.bitcast_convert_type(x + 0.0, jnp.int32)  # so that -0.0 is 0.0
    return jnp.where(bits < 0, bits ^ jnp.int32(0x7FFFFFFF), bits)


_ordered = lift(_order_of, name="ordered")  # whole numbers in the order of float32 numbers


def _shares(x: Tensor) -> Tensor:
    """Returns probabilities as whole numbers, whose sum is between 2^29 and 2^30, or nearly so."""
    relative = exp(x - max_(x, _VOCAB))
    doublings = math.ceil(math.log2(max(x.dim(_VOCAB).size, 2)))
    rough = counted(_rounded(relative * 2.0 ** (30 - doublings)), _VOCAB)
    return _rounded(relative * _power(60 - doublings - _num_bits(rough)))


_rounded = lift(lambda x: jnp.round(x).astype(jnp.int32), name="rounded")
_num_bits = lift(lambda x: 32 - jax.lax.clz(x), name="num_bits")
_power = lift(lambda x: jax.lax.bitcast_convert_type((x + 127) << 23, jnp.float32), name="power")  # of 2, exactly


def _gumbel(seed: Any, at: Any, token: Any) -> Any:
    words = [jnp.asarray(x).astype(jnp.uint32) for x in (seed, at, token)]
    seed, at, token = jnp.broadcast_arrays(*words)
    bits, _ = jax.extend.random.threefry2x32_p.bind(seed, jnp.full_like(seed, _DOMAIN), at, token)
    evenly = ((bits >> 8).astype(jnp.float32) + 0.5) * 2.0**-24
    return -jnp.log(-jnp.log(evenly))


_noise = lift(_gumbel, name="noise")


def likelihoods(logits: Tensor, token: Tensor, wishes: Wishes) -> dict[str, Tensor]:
    """Returns what the model thinks of a token, `likely`, and of the likeliest ones, `candidates`, if that is wished.

    Args:
        logits: as the model predicts it, float32 [slots.., vocab].
        token: the token that was chosen.
        wishes: whether somebody asks. The likeliest tokens are told with their log-probabilities, `candidates_likely`:
            [slots.., candidates], the likeliest first, of equals the smaller one.

    Communication: if the vocabulary is split, all-reduces of three numbers; for candidates an all-gather of those of
    each processor.
    """
    if wishes.log_probabilities is None and wishes.candidates is None:
        return {}
    total, vocab = logsumexp(logits, _VOCAB), logits.dim(_VOCAB)
    told = {"likely": gather(logits, token, vocab) - total}
    if wishes.candidates is not None:
        values, tokens = top_k(logits, over=vocab, k=Dim("candidates", min(MAX_CANDIDATES, vocab.size)))
        told |= {"candidates": tokens, "candidates_likely": values - total}
    return told


def with_token(seen: Tensor, token: Tensor) -> Tensor:
    """Returns which tokens are in the text of each slot, with one more."""
    return seen | (arange(seen.dim(_VOCAB)) == token)


def is_among(token: Tensor, some: Tensor, dim: str) -> Tensor:
    """Whether a token is one of some."""
    return any_(some == token, dim)
