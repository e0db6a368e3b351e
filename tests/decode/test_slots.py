"""What the devices are told of slots: as much as somebody asks for, and for the others what changes nothing."""

from dataclasses import replace

import numpy as np

import meshax as mx
from meshax.decode.requests import Request, Written
from meshax.decode.slots import Slot, power_of_two, state_of, wishes_of

GREEDY = Slot(0, Request((4, 5), 9, stop=(1,)), Written([6]))
DRAWN = Slot(1, Request((2,), 3, temperature=0.5, top_p=0.9, seed=2**32 - 1, banned=(7, 8, 2)), Written())


def test_wishes():
    assert wishes_of(GREEDY.request) == {"log_probabilities": True}
    assert wishes_of(replace(GREEDY.request, log_probabilities=False)) == {}
    asked = {"temperature": 0.5, "seed": 2**32 - 1, "top_p": 0.9, "banned": (7, 8, 2), "log_probabilities": True}
    assert wishes_of(DRAWN.request) == asked
    assert "seed" not in wishes_of(Request((1,), top_p=0.5, seed=3))  # nothing is drawn


def test_state():
    batch, vocab = mx.dims(batch=3, vocab=10)
    asked = {*wishes_of(DRAWN.request), "repetition_penalty"}
    state = state_of([GREEDY, DRAWN, None], batch, vocab, asked)
    numbers = {name: state[name].numpy().tolist() for name in ("token", "at", "begin", "end", "stop")}
    assert numbers == {
        "token": [6, 2, -1], "at": [2, 0, 0], "begin": [1, 0, 0], "end": [10, 3, 0], "stop": [[1], [-1], [-1]]
    }  # fmt: skip
    wishes = state["wishes"]
    np.testing.assert_allclose(wishes.top_p.numpy(), [1.0, 0.9, 1.0])
    assert wishes.temperature.numpy().tolist() == [0, 0.5, 0] and wishes.seed.numpy().tolist() == [0, -1, 0]
    assert wishes.banned.numpy().tolist() == [[-1] * 4, [7, 8, 2, -1], [-1] * 4]
    assert wishes.repetition_penalty.numpy().tolist() == [1, 1, 1] and wishes.top_k is None and wishes.forced is None
    assert [np.flatnonzero(row).tolist() for row in state["seen"].numpy()] == [[4, 5, 6], [2], []]
    assert state_of([None, GREEDY, None], batch, vocab, set())["seen"] is None


def test_powers_of_two():
    assert [power_of_two(number) for number in (0, 1, 2, 3, 4, 5, 1024, 1025)] == [1, 1, 2, 4, 4, 8, 1024, 2048]
