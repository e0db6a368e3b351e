"""Choosing tokens: cut-offs as numpy makes them, draws that follow the probabilities, the same under every layout."""

import jax
import numpy as np
import pytest

import meshax as mx
from extent import some
from meshax.decode.choosing import Wishes, choose, likelihoods

SLOTS, VOCAB = 5, 23  # 23 is uneven over any axis
batch, vocab = mx.dims(batch=SLOTS, vocab=VOCAB)
LOGITS = np.random.RandomState(0).normal(0, 2, (SLOTS, VOCAB)).astype(np.float32)
LOGITS[4, [3, 7, 11]] = LOGITS[4].max() + 1  # three are the likeliest
LAYOUTS = {
    "none": ("x:1", ""),
    "vocab": ("data:2 model:4", "vocab:model"),
    "all": ("model:8", "vocab:model"),
    "both": ("data:2 model:4", "batch:data vocab:model"),
    "joined": ("data:2 model:2", "vocab:model+data"),
    "batch": ("data:4", "batch:data"),
    "three": ("model:3", "vocab:model"),
}
WISHES = {
    "temperature": np.array([1.0, 0.7, 2.0, 0.0, 1.0], np.float32),
    "top_k": np.array([5, VOCAB, 9, 3, 2], np.int32),
    "top_p": np.array([0.7, 0.9, 0.6, 0.5, 1.0], np.float32),
    "min_p": np.array([0.0, 0.05, 0.1, 0.0, 0.0], np.float32),
}


def row(values):
    return mx.tensor(np.asarray(values), (batch,))


def alone(fn):
    """In a program on one processor: sooner compiled than operations one by one."""
    return mx.spmd(fn, mx.Mesh("x:1"), "")


def drawn(logits, wishes, at):
    return choose(logits, wishes, at, at, None)


def kept_by_numpy(slot):
    """Which tokens may be drawn: the k likeliest, of these the likeliest with probability p, and no unlikely ones."""
    temperature, k, p, least = (WISHES[name][slot] for name in ("temperature", "top_k", "top_p", "min_p"))
    x = LOGITS[slot].astype(np.float64) / temperature
    kept = x >= np.sort(x)[-k]
    shares = np.where(kept, np.exp(x - x.max()), 0)
    shares /= shares.sum()
    order = np.argsort(-shares, kind="stable")
    last = order[min(np.searchsorted(np.cumsum(shares[order]), p - 1e-6), VOCAB - 1)]
    return kept & (shares >= shares[last]) & (np.exp(x - x.max()) >= least)


def many_draws(layout, number=1500):
    """Every slot many times, at other positions: [positions, slots]."""
    mesh, rules = LAYOUTS[layout]
    draws = mx.Dim("draws", number)
    wishes = Wishes(
        seed=row(np.array([1, 2, 3, 2**32 - 1, 5], np.uint32).view(np.int32)), **{n: row(v) for n, v in WISHES.items()}
    )
    program = mx.spmd(
        lambda logits, wishes: drawn(mx.broadcast(logits, (draws, batch, vocab)), wishes, mx.arange(draws)),
        mx.Mesh(mesh),
        rules,
    )
    return program(mx.tensor(LOGITS, (batch, vocab)), wishes).numpy()


@pytest.fixture(scope="module")
def unsplit():
    return many_draws("none")


def test_draws_follow_the_probabilities_of_what_is_kept(unsplit):
    for slot in range(SLOTS):
        shares = np.bincount(unsplit[:, slot], minlength=VOCAB) / len(unsplit)
        if WISHES["temperature"][slot] == 0:
            assert shares[LOGITS[slot].argmax()] == 1
            continue
        kept = kept_by_numpy(slot)
        wanted = np.where(kept, np.exp(LOGITS[slot] / WISHES["temperature"][slot]), 0)
        np.testing.assert_allclose(shares, wanted / wanted.sum(), atol=0.05)
        assert (shares[kept] > 0).all() and (shares[~kept] == 0).all()
    assert kept_by_numpy(4).sum() == 3  # as likely as the last


@pytest.mark.parametrize("layout", some([name for name in LAYOUTS if name != "none"], "both"))
def test_every_layout_draws_the_same(layout, unsplit):
    np.testing.assert_array_equal(many_draws(layout), unsplit)


@pytest.mark.parametrize("layout", some(LAYOUTS, "none", "both"))
def test_64_bits_draw_the_same(layout, unsplit):
    with jax.enable_x64(True):
        np.testing.assert_array_equal(many_draws(layout), unsplit)


def test_a_draw_depends_on_seed_and_position_alone():
    """The same request in another slot of another batch."""
    few = mx.Dim("batch", 2)
    logits = mx.tensor(LOGITS[[2, 0]], (few, vocab))
    wishes = Wishes(seed=mx.tensor([3, 1], "batch"), temperature=mx.tensor([2.0, 1.0], "batch"))
    own = alone(drawn)(logits, wishes, mx.tensor([9, 4], "batch")).numpy()
    wishes = Wishes(seed=row([1, 2, 3, 4, 5]), temperature=row(np.float32([1, 1, 2, 1, 1])))
    among = alone(drawn)(mx.tensor(LOGITS, (batch, vocab)), wishes, row([4, 7, 9, 1, 1])).numpy()
    assert own.tolist() == [among[2], among[0]]


def test_the_first_of_the_likeliest():
    assert (
        drawn(mx.tensor(LOGITS, (batch, vocab)), Wishes(), row([0] * 5)).numpy().tolist() == LOGITS.argmax(1).tolist()
    )


def test_penalties_bans_and_forced_tokens():
    logits = mx.tensor(np.array([[2.0, 1.5, -1.0], [-2.0, -1.0, -1.5]], np.float32), "batch vocab")
    seen = mx.tensor(np.array([[True, False, False], [False, True, False]]), "batch vocab")

    def chosen(made=(0, 0), seen=seen, **wishes):
        named = {name: mx.tensor(np.array(value), dims) for name, (value, dims) in wishes.items()}
        return (
            alone(choose)(logits, Wishes(**named), mx.tensor([0, 0], "batch"), mx.tensor(made, "batch"), seen)
            .numpy()
            .tolist()
        )

    assert chosen() == [0, 1]
    assert chosen(repetition_penalty=(np.float32([1.5, 1.6]), "batch")) == [1, 2]  # 2/1.5 < 1.5, and -1.6 < -1.5
    assert chosen(banned=([[0, -1], [1, 2]], "batch banned")) == [1, 0]
    forced = ([[2, 1], [-1, -1]], "batch forced")
    assert chosen(forced=forced) == [2, 1] and chosen((1, 1), forced=forced) == [1, 1]
    assert chosen((2, 2), forced=forced) == [0, 1]


@pytest.mark.parametrize("layout", some(LAYOUTS, "joined"))
def test_likelihoods(layout):
    """Also of the likeliest, of equals the first; of a split vocabulary each processor gives its candidates away."""
    mesh, rules = LAYOUTS[layout]
    token = np.array([3, 22, 0, 7, 7], np.int32)
    everything = Wishes(candidates=row(token), log_probabilities=row(token))
    program = mx.spmd(lambda logits, token: likelihoods(logits, token, everything), mx.Mesh(mesh), rules)
    arguments = mx.tensor(LOGITS, (batch, vocab)), row(token)
    told = {name: x.numpy() for name, x in program(*arguments).items()}
    wanted = LOGITS - np.log(np.exp(LOGITS).sum(1, keepdims=True))
    np.testing.assert_allclose(told["likely"], wanted[np.arange(SLOTS), token], atol=1e-6)
    best = np.argsort(-LOGITS, kind="stable")[:, :5]
    np.testing.assert_array_equal(told["candidates"], best)
    np.testing.assert_allclose(told["candidates_likely"], np.take_along_axis(wanted, best, 1), atol=1e-6)
    gathered = [record.bytes for record in program.explain(*arguments).collectives if record.kind == "all-gather"]
    slots = SLOTS if "batch" not in rules else -(-SLOTS // 2)
    assert all(size <= slots * 5 * 8 * 4 for size in gathered) and len(gathered) == (2 if "vocab" in rules else 0)


@pytest.mark.parametrize("asked, names", [((), set()), (("log_probabilities",), {"likely"})])
def test_nobody_pays_for_what_is_not_asked_for(asked, names):
    zeros = row(np.zeros(SLOTS, np.int32))
    wishes = Wishes(**dict.fromkeys(asked, zeros))
    assert set(alone(lambda *x: likelihoods(*x, wishes))(mx.tensor(LOGITS, (batch, vocab)), zeros)) == names
